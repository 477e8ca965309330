"""A run on Flower, as the server sees it: who the nodes are, and the same steps as in the simulator."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import TypeAdapter
from rich.console import Console

from splitmix.core.errors import UserError, in_a_line
from splitmix.core.files import write_atomically
from splitmix.core.inputs import Kind, Scaling
from splitmix.core.width import Width, parse_width
from splitmix.data.budgets import RoundBudgets, parse_budgets
from splitmix.flower.engine import FlowerEngine
from splitmix.flower.fleet import Fleet
from splitmix.flower.wire import Agreement, Member, read_member, to_text
from splitmix.runs.config import Config, make_config, read_toml
from splitmix.runs.finish import Outcome
from splitmix.runs.progress import Lines, Watcher
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import Setup, set_up

# what is set unless the user sets it: nodes may be anybody's
STRANGERS: dict[str, object] = {"clip": 2.0, "max_samples": "10x"}
ROSTER = "nodes.jsonl"  # in the run's folder: what each node said of itself


@dataclass(frozen=True)
class Order:
    """A run as it is handed to a server."""

    config: Config
    out: Path  # the run's folder, on the server's machine
    resume: bool = False
    command: str = ""  # by which the user asked for it
    deadline: float = 600.0  # seconds for an answer to a job
    wait: float = 120.0  # seconds for nodes to connect before the first round

    def text(self) -> str:
        return TypeAdapter(Order).dump_json(self).decode()

    @staticmethod
    def read(text: str) -> "Order":
        """An order whose settings were checked by who gave it; on what, only the nodes may know."""
        said = json.loads(text)
        return TypeAdapter(Order).validate_python({**said, "config": make_config(said["config"], own=("task",))})


def run_on_grid(grid: Grid, order: Order, watchers: Sequence[Watcher] = ()) -> Outcome | None:
    """The run that the simulator would do, on the nodes of a grid."""
    config, out, count = order.config, order.out, client_count(order.config)

    def note(text: str) -> None:
        for watcher in watchers:
            watcher.note(text)

    begun = order.resume and (out / "config.toml").exists()
    members = read_roster(out, count) if begun else {}
    atom = parse_width(config.atom)
    fleet = Fleet(grid, Agreement(config).text(), count, atom, order.deadline, note, members)
    if begun:
        config = begun_config(out, config)
        fleet.budgets = set(set_budgets(config, count).at(0))
    fleet.gather(order.wait)
    setup = remote_setup(config, fleet)
    return run_in_folder(
        setup,
        out,
        resume=order.resume,
        watchers=[*watchers, RosterKeeper(out, fleet)],
        command=order.command,
        engine=remote_engine(setup, fleet),
    )


def client_count(config: Config) -> int:
    """The number of clients, in settings that a run on Flower can have."""
    if config.clients is None:
        raise UserError("on Flower the number of clients must be given, such as -o clients=4: one for each node")
    if config.norm == "local":
        raise UserError(
            "norm 'local' keeps norms on the clients between rounds, which nodes on Flower do not; "
            "choose norm 'post', 'batch' or 'tracked'"
        )
    return config.clients


def begun_config(out: Path, config: Config) -> Config:
    """The settings, with the budgets that the nodes named when the run was begun."""
    stored = make_config(read_toml(out / "config.toml"), own=("task", "net"))  # of which nothing else is used
    return config.model_copy(update={"budgets": stored.budgets})


def true_config(config: Config, fleet: Fleet) -> Config:
    """The settings, with the budgets that nodes name themselves: methods build on them, and a record tells them."""
    usual = set_budgets(config, fleet.count)
    budgets = RemoteBudgets(fleet, usual).at(0)
    if fleet.budgets or budgets == usual.at(0):
        return config
    return config.model_copy(update={"budgets": {"name": "each", "widths": [str(width) for width in budgets]}})


def set_budgets(config: Config, count: int) -> RoundBudgets:
    """The budgets that the settings give."""
    return parse_budgets(config.budgets, clients=count, seed=config.seed)


def remote_setup(config: Config, fleet: Fleet) -> Setup:
    """The objects of a run whose images are elsewhere; whoever comes later gets a budget that there is by now."""
    config = true_config(config, fleet)
    names = fleet.class_names if len(fleet.class_names) == fleet.classes else ()
    how = (fleet.image, fleet.classes, config.net or net_most_name(fleet), names, fleet.kind)
    task = RemoteTask(Path(config.task).name, fleet, *how)
    setup = set_up(config, task=task)
    fleet.budgets = fleet.budgets or set(setup.budgets.at(0))
    return replace(setup, budgets=RemoteBudgets(fleet, setup.budgets))


def net_most_name(fleet: Fleet) -> str:
    """The net that most nodes name; a name of the table, since these may be anybody's."""
    named = Counter(member.net for _, member in sorted(fleet.members.items()) if member.net is not None)
    if not named:
        raise UserError("no node names a net of the table; give one, such as -o net=digit or -o net=module:function")
    return named.most_common(1)[0][0]


def remote_engine(setup: Setup, fleet: Fleet) -> FlowerEngine:
    """The engine of such a run, whose nodes know by now what all of them agree on."""
    agreed = Agreement(setup.config, setup.task.classes, setup.task.net).text()
    return FlowerEngine(fleet, setup.net, setup.method.layout, setup.budgets, agreed)


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
    class_names: tuple[str, ...] = ()
    kind: Kind = "image"
    scaling: Scaling | None = None  # on each node its own

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
class RosterKeeper(Watcher):
    """Keeps what the nodes said of themselves beside the run, so that a resumed run knows those who are away."""

    out: Path
    fleet: Fleet
    written: str = ""

    def begin(self, setup: Setup, start: int) -> None:
        self._write()

    def round(self, row: object) -> None:
        self._write()

    def _write(self) -> None:
        text = roster_text(self.fleet.members)
        if text != self.written:
            write_atomically(self.out / ROSTER, text.encode())
            self.written = text


def roster_text(members: dict[int, Member]) -> str:
    """All members, a line of JSON each."""
    return "".join(to_text(members[client]) + "\n" for client in sorted(members))


def read_roster(out: Path, count: int) -> dict[int, Member]:
    """Who took part in a run; nobody, if that cannot be read."""
    try:
        members = [read_member(line, count) for line in (out / ROSTER).read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {member.client: member for member in members}


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the run that `splitmix train` ordered; a mistake of the user's is one line that it knows by its beginning."""
    try:
        order = Order.read(str(context.run_config["order"]))
        run_on_grid(grid, order, [Lines(Console(width=200, color_system=None))])
    except UserError as mistake:
        print(in_a_line(mistake), flush=True)
        raise
