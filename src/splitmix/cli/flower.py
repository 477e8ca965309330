"""Real clients on a network, by Flower."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from splitmix.cli.options import Flag, Json, note, say, show_rows
from splitmix.core.errors import MISTAKE, UserError, unknown
from splitmix.core.files import write_atomically

if TYPE_CHECKING:
    from splitmix.flower.server import Order
    from splitmix.flower.site import Site
    from splitmix.runs.config import Config

flower = App(
    name="flower",
    help=__doc__,
    help_epilogue="Example: splitmix flower up --nodes 4; splitmix train mini --engine flower; splitmix flower down",
)
STATE = Path(".flower")
NODE_BUDGETS = "1/8 1/4 1/2 1"
ENGINES = ("simulator", "flower", "ray")
StateFolder = Annotated[Path, Parameter(name="--state")]


@flower.command
def up(
    *,
    nodes: int = 4,
    task: str = "mini",
    budgets: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    data_root: Path | None = None,
    tls: Flag = False,
    state: StateFolder = STATE,
) -> None:
    """Start a federation on this machine: a SuperLink, and a SuperNode for each client; or start what has died of it.

    Examples:

      splitmix flower up --nodes 4

      splitmix flower up --nodes 6 --task mini --budgets 1/8 1/4 1/2 1 --tls

    Parameters
    ----------
    nodes
        How many clients, each with its own share of the task.
    task
        A task (see `splitmix tasks`), a folder of pictures or .npz files, or a table.
    budgets
        What clients can train: widths for equal groups, or a name (see `splitmix budgets`); default: 1/8 1/4 1/2 1.
    data_root
        Folder of data sets; default: the variable SPLITMIX_DATA.
    tls
        Encrypt, and let in only nodes whose keys are registered; all certificates and keys are made here.
    state
        Folder for processes, logs and keys.
    """
    need_flower()
    from splitmix.data.budgets import parse_budgets
    from splitmix.data.tasks import check_task
    from splitmix.flower.site import marked, read_site, revive, start_link, start_nodes, stop

    if marked(state) and (state / "site.json").exists():
        site = revive(read_site(state))
        say(f"{site.clients} nodes at {site.address}, as they were; another federation needs another --state")
        return
    check_task(task)
    if nodes < 1:
        raise UserError(f"--nodes {nodes} is too few; give 1 or more")
    widths = parse_budgets(" ".join(budgets or ()) or NODE_BUDGETS, clients=nodes).at(0)
    root = {} if data_root is None else {"data-root": str(data_root.resolve())}
    configs = [{"task": task, "budget": str(width), **root} for width in widths]
    try:
        site = start_nodes(start_link(state, tls=tls), configs)
    except BaseException:
        with suppress(UserError):
            stop(state)
        raise
    say(f"{nodes} nodes at {site.address}{', encrypted' if tls else ''}; logs: {site.path / 'logs'}")
    more = partition_needed(task, nodes, data_root)
    say(f"Next: splitmix train {task} --engine flower{more}    At the end: splitmix flower down")


def partition_needed(task: str, clients: int, root: Path | None) -> str:
    """What a run must say where the task's own partition cannot be dealt to so few clients."""
    from splitmix.data.tasks import find_task

    for partition, words in (({}, ""), ({"partition": "iid"}, " -o partition=iid")):
        with suppress(UserError):  # what else is wrong, a run will tell
            find_task(task, root=root, settings={"clients": clients, **partition})
            return words
    return ""


@flower.command
def status(*, state: StateFolder = STATE, as_json: Json = False) -> None:
    """Show which processes of the federation are running.

    Example: splitmix flower status

    Parameters
    ----------
    state
        Folder of the federation.
    as_json
        Print JSON.
    """
    from splitmix.flower.site import describe, read_site
    from splitmix.report.tables import Column

    columns = [Column(key, key, number=key == "pid") for key in ("what", "client", "holds", "pid", "running")]
    show_rows(f"Federation in {state}", columns, [vars(row) for row in describe(read_site(state))], as_json)


@flower.command
def down(*, state: StateFolder = STATE) -> None:
    """Stop the federation and all its processes.

    Example: splitmix flower down

    Parameters
    ----------
    state
        Folder of the federation.
    """
    from splitmix.flower.site import stop

    say(f"{stop(state)} processes stopped")


@flower.command
def link(
    address: str, /, *, root_certificates: Path | None = None, insecure: Flag = False, state: StateFolder = STATE
) -> None:
    """Use a SuperLink that runs already, here or elsewhere, for `splitmix train --engine flower`.

    Example: splitmix flower link fl.example.org:8000 --root-certificates ca.crt

    Parameters
    ----------
    address
        HOST:PORT of the SuperLink.
    root_certificates
        Certificate of the authority that signed the SuperLink's.
    insecure
        Talk to it without encryption.
    state
        Folder for what is known of it.
    """
    from splitmix.flower.site import Site, refuse_running, write_connection

    check_encryption(root_certificates, insecure)
    if not address.rpartition(":")[0] or not address.rpartition(":")[2].isdigit():
        raise UserError(f"'{address}' is no address; give HOST:PORT, such as fl.example.org:8000")
    refuse_running(state)
    site = Site(state.resolve(), address, root_certificates is not None)
    if root_certificates is not None:
        write_atomically(site.authority, root_certificates.read_bytes())
    write_connection(site)
    site.save()
    say(f"Next: splitmix train nodes --engine flower -o clients=NUMBER    (a client for each node at {address})")


@flower.command
def node(
    *,
    superlink: str,
    client: int,
    clients: int,
    budget: str | None = None,
    data: Path | None = None,
    loader: str | None = None,
    task: str | None = None,
    data_root: Path | None = None,
    root_certificates: Path | None = None,
    key: Path | None = None,
    insecure: Flag = False,
) -> None:
    """Be one client of a federation, until stopped; its images stay here.

    Examples:

      splitmix flower node --superlink fl.example.org:8000 --client 0 --clients 4 --data images --budget 1/4
        --root-certificates ca.crt --key node-0

      splitmix flower node --superlink 127.0.0.1:8000 --client 1 --clients 4 --loader my_module:load --insecure

    Parameters
    ----------
    superlink
        Address of the SuperLink, as HOST:PORT.
    client
        Number of this client, from 0 on.
    clients
        How many clients there are.
    budget
        The largest width it can train, such as 1/4; default: as the run's settings say.
    data
        This client's own data: a folder of pictures in class folders, .npz files, or a table (CSV, Parquet).
    loader
        Function of no arguments that returns arrays (x, y) or a data set, as module:function.
    task
        A task of which this client gets its share, for trying things out on one machine.
    data_root
        Folder of data sets, for --task; default: the variable SPLITMIX_DATA.
    root_certificates
        Certificate of the authority that signed the SuperLink's.
    key
        Private key by which the SuperLink knows this node.
    insecure
        Talk to the SuperLink without encryption.
    """
    need_flower()
    from splitmix.flower.forking import SuperLink, be_node

    check_encryption(root_certificates, insecure)
    given = {"budget": budget, "data": data, "loader": loader, "task": task, "data-root": data_root}
    config: dict[str, object] = {"partition-id": client, "num-partitions": clients}
    config |= {name: str(value) for name, value in given.items() if value is not None}
    be_node(config, SuperLink(superlink, root_certificates, key))


@dataclass(frozen=True)
class RemoteClients:
    """Clients that `splitmix train` does not simulate itself: where they are, and how long it waits for them."""

    engine: str
    state: Path
    deadline: float
    workers: int  # these two are for Ray
    data_root: Path | None


def train_remotely(
    where: RemoteClients, given: Mapping[str, object], out: Path | None, *, resume: bool, command: str
) -> Path:
    """Train on Flower, or on its simulation; returns the run's folder."""
    if where.engine not in ENGINES:
        raise unknown("engine", where.engine, ENGINES)
    if not 0 < where.deadline < float("inf"):
        raise UserError(f"--deadline {where.deadline:g} is no time to answer in; give seconds above 0")
    need_flower()
    from splitmix.flower.server import STRANGERS, Order, client_count
    from splitmix.flower.simulation import train_on_ray
    from splitmix.flower.site import read_site
    from splitmix.runs.config import make_config
    from splitmix.runs.progress import terminal_watcher

    if where.engine == "ray":
        config = make_config(given)
        order = Order(config, out or run_folder(config), resume, command, where.deadline)
        train_on_ray(order, [terminal_watcher()], workers=where.workers, root=where.data_root)
        return order.out
    site = read_site(where.state)
    if site.nodes:  # we know them
        budgets = [node.config["budget"] for node in site.nodes]
        given = {"clients": site.clients, "budgets": {"name": "each", "widths": budgets}, **given}
    alone = {"clip": 0.0} if given.get("privacy") else {}  # privacy has a bound of its own
    config = make_config({**STRANGERS, **alone, **given})
    client_count(config)
    folder = out or run_folder(config)
    submit(site, Order(config, folder.resolve(), resume, command, where.deadline))
    if not (folder / "result.json").exists():
        raise UserError(f"the run in '{folder}' ended early; see the SuperLink's log, then go on with --resume")
    return folder


def submit(site: "Site", order: "Order") -> None:
    """Hand the run to the SuperLink, and print what its server says."""
    from splitmix.flower.submit import follow

    mistakes: list[str] = []

    def hear(line: str) -> None:
        if line.startswith(MISTAKE):
            mistakes.append(line.removeprefix(MISTAKE))
        elif not mistakes:  # what follows is of no use to a user
            note(line)

    follow(site, order, hear)
    if mistakes:
        raise UserError(mistakes[0])
    if not order.out.exists():
        raise UserError(f"the run's folder is not on this machine; look for {order.out} on the SuperLink's")


def run_folder(config: "Config") -> Path:
    name = f"{Path(config.task).absolute().name}-{config.method_name}-s{config.seed}-{config.digest()[:8]}"
    return Path("runs") / name


def check_encryption(root_certificates: Path | None, insecure: bool) -> None:
    if (root_certificates is None) != insecure:
        raise UserError("give either --root-certificates, so that the connection is encrypted, or --insecure")
    if root_certificates is not None and not root_certificates.is_file():
        raise UserError(
            f"there is no certificate '{root_certificates}'; give the file of the authority, such as ca.crt"
        )


def need_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError('Flower is not installed; pip install "splitmix[flower]"')
