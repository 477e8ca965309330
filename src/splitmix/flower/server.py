"""A run on Flower, as the server sees it: who the nodes are, and the same steps as in the simulator."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.width import Width
from splitmix.data.budgets import RoundBudgets, parse_budgets
from splitmix.flower.apps import server_app
from splitmix.flower.engine import FlowerEngine
from splitmix.flower.fleet import Fleet, Grid, from_file, to_file
from splitmix.flower.node import Settings, app_for
from splitmix.runs.config import Config, make_config, read_toml
from splitmix.runs.progress import Lines
from splitmix.runs.records import MetricRow
from splitmix.runs.run import Outcome, Watcher, run_in_folder
from splitmix.runs.setup import Setup, set_up

ROSTER = "nodes.jsonl"  # in the run's folder: what each node said of itself


@dataclass(frozen=True)
class Terms:
    """How long a run waits for its nodes, in seconds."""

    deadline: float = 600.0  # for an answer to a job
    wait: float = 120.0  # for nodes to connect before the first round


def run_on_grid(
    grid: Grid,
    config: Config,
    out: Path,
    terms: Terms,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    command: str = "",
) -> Outcome | None:
    """The run that the simulator would do, on the nodes of a grid."""
    check_config(config)

    def note(text: str) -> None:
        for watcher in watchers:
            watcher.note(text)

    begun = resume and (out / "config.toml").exists()
    members = known_members(out, config) if begun else {}
    fleet = Fleet(grid, Settings(config).text(), cast(int, config.clients), terms.deadline, note, members)
    if begun:
        config = begun_config(out, config)
        fleet.budgets = set(set_budgets(config).at(0))
    fleet.gather(terms.wait)
    setup = remote_setup(config, fleet)
    settings = Settings(setup.config, setup.task.classes, setup.task.net).text()
    engine = FlowerEngine(fleet, setup.net, setup.method.layout, setup.budgets, settings)
    roster = Roster(out, fleet)
    return run_in_folder(setup, out, resume=resume, watchers=[*watchers, roster], command=command, engine=engine)


def check_config(config: Config) -> None:
    if config.clients is None:
        raise UserError("on Flower the number of clients must be given, such as -o clients=4: one for each node")
    if config.norm == "local":
        raise UserError(
            "norm 'local' keeps norms on the clients between rounds, which nodes on Flower do not; "
            "choose norm 'post', 'batch' or 'tracked'"
        )


def begun_config(out: Path, config: Config) -> Config:
    """The settings, with the budgets that the nodes named when the run was begun."""
    stored = make_config(read_toml(out / "config.toml"), own=("task",))
    return config.model_copy(update={"budgets": stored.budgets})


def true_config(config: Config, fleet: Fleet) -> Config:
    """The settings, with the budgets that nodes name themselves: methods build on them, and a record tells them."""
    usual = set_budgets(config)
    budgets = RemoteBudgets(fleet, usual).at(0)
    if fleet.budgets or budgets == usual.at(0):
        return config
    return config.model_copy(update={"budgets": {"name": "each", "widths": [str(width) for width in budgets]}})


def set_budgets(config: Config) -> RoundBudgets:
    """The budgets that the settings give."""
    return parse_budgets(config.budgets, clients=cast(int, config.clients), seed=config.seed)


def remote_setup(config: Config, fleet: Fleet) -> Setup:
    """The objects of a run whose images are elsewhere; whoever comes later gets a budget that there is by now."""
    config = true_config(config, fleet)
    first = next(iter(fleet.members.values()))
    task = RemoteTask(Path(config.task).name, fleet, first.image, fleet.classes, config.net or first.net)
    setup = set_up(config, task=task)
    fleet.budgets = fleet.budgets or set(setup.budgets.at(0))
    return replace(setup, budgets=RemoteBudgets(fleet, setup.budgets))


@dataclass(frozen=True)
class RemoteShard:
    """A client's images, of which the server knows how many there are."""

    domain: str
    train: range = range(0)
    val: range = range(0)
    test: range = range(0)


@dataclass(frozen=True)
class RemoteTask:
    """A task as far as the server knows it: sizes and names, which grow as nodes come."""

    name: str
    fleet: Fleet
    image: tuple[int, ...]
    classes: int
    net: str

    @property
    def shards(self) -> tuple[RemoteShard, ...]:
        return tuple(self._shard(client) for client in range(self.fleet.count))

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.domain for member in self.fleet.members.values()))

    def _shard(self, client: int) -> RemoteShard:
        member = self.fleet.members.get(client)
        if member is None:
            return RemoteShard("not yet known")
        return RemoteShard(member.domain, range(member.train), range(member.val), range(member.test))


@dataclass(frozen=True)
class RemoteBudgets:
    """The budgets that nodes name themselves; where they name none, those of the run's settings."""

    fleet: Fleet
    usual: RoundBudgets

    def at(self, round: int) -> tuple[Width, ...]:
        members = self.fleet.members
        own = {client: member.budget for client, member in members.items() if member.budget is not None}
        return tuple(own.get(client, budget) for client, budget in enumerate(self.usual.at(round)))


@dataclass
class Roster:
    """Keeps what the nodes said of themselves beside the run, so that a resumed run knows those who are away."""

    out: Path
    fleet: Fleet
    written: str = ""

    def begin(self, setup: Setup, start: int) -> None:
        self._write()

    def round(self, row: MetricRow) -> None:
        self._write()

    def scores(self, rows: Sequence[MetricRow]) -> None:
        """Scores change no roster."""

    def note(self, text: str) -> None:
        """Notes are for the terminal."""

    def end(self) -> None:
        """All is written."""

    def _write(self) -> None:
        text = to_file(self.fleet.members)
        if text != self.written:
            write_atomically(self.out / ROSTER, text.encode())
            self.written = text


def known_members(out: Path, config: Config) -> dict[int, Any]:
    try:
        return from_file((out / ROSTER).read_text(), cast(int, config.clients))
    except (OSError, ValueError):
        return {}


def serve(grid: Grid, given: Mapping[str, Any]) -> None:
    """What the server app does: `given` is the run configuration that `splitmix train` wrote."""
    console = Console(width=200, color_system=None)
    try:
        config = make_config(json.loads(str(given["config"])), own=("task",))
        terms = Terms(float(given["deadline"]), float(given["wait"]))
        out, command = Path(str(given["out"])), str(given["command"])
        run_on_grid(grid, config, out, terms, bool(given["resume"]), [Lines(console)], command)
    except UserError as mistake:
        print(f"splitmix: {' '.join(str(mistake).split())}", flush=True)
        raise


@dataclass(frozen=True)
class Share:
    """What of this machine Ray may use."""

    workers: int = 1
    root: Path | None = None  # folder of data sets


def train_on_ray(
    config: Config,
    out: Path,
    terms: Terms,
    share: Share,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    command: str = "",
) -> Outcome | None:
    """The same run on Flower's simulation: nodes are played by Ray's workers, on many cores or a cluster."""
    from splitmix.flower.simulation import simulate

    if config.clients is None:  # all that the task has
        config = config.model_copy(update={"clients": len(set_up(config, root=share.root).task.shards)})
    root = {} if share.root is None else {"data-root": str(share.root.resolve())}
    nodes = app_for({"task": config.task, **root})

    def run(grid: Grid) -> Outcome | None:
        return run_on_grid(grid, config, out, terms, resume, watchers, command)

    return simulate(run, nodes, cast(int, config.clients), share.workers)


app = server_app(serve)
