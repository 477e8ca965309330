"""The command line: train, evaluate, report, count costs, and look at what can be named."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not burn the cores that work

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from cyclopts import App, CycloptsError
from rich.console import Console

from splitmix import __version__
from splitmix.cli.options import HERE, Flag, Json, Machine, Option, Words
from splitmix.core.errors import UserError
from splitmix.core.width import Width, check_multiple, parse_width

app = App(
    name="splitmix",
    version=__version__,
    help="Federated learning for devices of uneven strength: train small base nets together, serve any width.",
    help_epilogue="Begin with: splitmix train mini",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # we say how to go on
)

Counted = TypeVar("Counted")


@app.command
def train(
    source: str = "mini",
    /,
    *,
    option: Option = None,
    out: Path | None = None,
    resume: Flag = False,
    machine: Machine = HERE,
    tensorboard: Flag = False,
    engine: str = "simulator",
    state: Path = Path(".flower"),
    deadline: float = 600.0,
    as_json: Json = False,
) -> None:
    """Train a model that can be served at any width.

    Examples:

      splitmix train mini

      splitmix train mini -o rounds=12 -o "budgets=1/8 1" --out runs/two

      splitmix train my.toml -o seed=2 --out runs/mine --resume

      splitmix train digits --data-root DATA

      splitmix train mini --engine flower

    Parameters
    ----------
    source
        A task (see `splitmix tasks`), a folder of .npz files, or a config file (.toml).
    option
        A setting as key=value (see `splitmix settings`); may be given several times.
    out
        Folder of the run; default: a name made of the settings, under runs/.
    resume
        Go on where the run in the folder stopped, or begin it.
    tensorboard
        Log for TensorBoard too.
    engine
        Where clients are: simulator (here), flower (a federation, see `splitmix flower`), or ray (Flower's simulation).
    state
        Folder of the federation, from `splitmix flower up` or `splitmix flower link`.
    deadline
        Seconds after which an answer from a federation is late.
    as_json
        Print the result as JSON.
    """
    from splitmix.cli.flower import RemoteClients, train_remotely
    from splitmix.report.run_page import write_report
    from splitmix.runs.config import read_config, read_settings
    from splitmix.runs.progress import Board, terminal_watcher
    from splitmix.runs.run import Watcher, run_in_folder
    from splitmix.runs.setup import set_up

    count, on, root = machine.processes(), machine.checked_device(), machine.data_root
    command = shlex.join(["splitmix", *sys.argv[1:]])
    if engine != "simulator":
        where = RemoteClients(engine, state, deadline, count, root)
        folder = train_remotely(where, read_settings(source, option or ()), out, resume=resume, command=command)
    else:
        config = read_config(source, option or ())
        setup = set_up(config, root=root)
        name = f"{setup.task.name}-{config.method_name}-s{config.seed}-{config.digest()[:8]}"
        folder = out or Path("runs") / name
        watchers: list[Watcher] = [terminal_watcher(), *([Board(folder)] if tensorboard else [])]
        run_in_folder(setup, folder, resume=resume, workers=count, device=on, watchers=watchers, command=command)
    page = write_report(folder)
    show_run(folder, as_json)
    if not as_json:
        say(f"Pictures and details: {page}")


@app.command
def report(run: Path, /) -> None:
    """Write report.html for a finished run and print its table.

    Example: splitmix report runs/two

    Parameters
    ----------
    run
        Folder of a finished run.
    """
    from splitmix.report.run_page import write_report

    page = write_report(run)
    show_run(run, as_json=False)
    say(f"Pictures and details: {page}")


@app.command
def cost(
    net: str,
    /,
    *,
    width: Words = None,
    atom: str = "1/8",
    image: str | None = None,
    method: str | None = None,
    budgets: Words = None,
    batch: int = 32,
    as_json: Json = False,
) -> None:
    """Count what a net costs: to serve each width, and to a client of each budget in one round.

    Examples:

      splitmix cost digit

      splitmix cost preresnet18 --width 1/4 1 --json

      splitmix cost preresnet18 --method sheterofl --budgets 1/8 1/4 1/2 1 --batch 128

    Parameters
    ----------
    net
        A net (see `splitmix nets`), or your own as module:function.
    width
        Words to count; default: 1/8, 1/4, 1/2 and 1, or all that the method serves.
    atom
        Width of one base.
    image
        Size of an image as HEIGHTxWIDTHxCHANNELS; default: the net's own.
    method
        A method (see `splitmix methods`), or its settings as {name="fedavg", width="1/4"}; default: splitmix.
    budgets
        Budgets of the clients: widths, or a name (see `splitmix budgets`); default: 1/8, 1/4, 1/2 and 1.
    batch
        Images in a training batch.
    as_json
        Print JSON: a list of widths, or with --method an object.
    """
    from splitmix.compare.costs import account_for, budgets_for, client_table, mix_table, records, width_table
    from splitmix.nets import find_net
    from splitmix.report.tables import Table, show

    build, base = find_net(net), parse_width(atom)
    widths = [parse_width(text) for text in width or (("1/8", "1/4", "1/2", "1") if method is None else ())]
    for wanted in widths if method is None else ():
        check_multiple(wanted, base)
    clients = budgets_for(" ".join(budgets or ()), base)

    def count(size: tuple[int, ...]) -> tuple[Table, Table]:
        account = account_for(method or "splitmix", build, size, atom=base, budgets=clients, batch=batch)
        served = mix_table(net, build, size, base, widths) if method is None else width_table(net, account, widths)
        return served, client_table(account, clients)

    served, asked = cost_of(net, build, image, count)
    if as_json:
        rows, about = records(served), {"net": net, "method": method, "atom": str(base), "batch": batch}
        print(json.dumps(rows if method is None else {**about, "widths": rows, "clients": records(asked)}, indent=1))
    else:
        show(served, Console())
        say("")
        show(asked, Console())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a user's mistake is one sentence on standard error, and exit code 2."""
    import splitmix.cli.compare
    import splitmix.cli.eval
    import splitmix.cli.export
    import splitmix.cli.flower
    import splitmix.cli.lists
    import splitmix.cli.runtime
    import splitmix.cli.serve  # noqa: F401  (they register their commands)

    for extra in entry_points(
        group="splitmix.commands"
    ):  # such as the reproduction of the paper, where it is installed
        extra.load()
    sys.path.insert(0, "")  # a user's own nets live where the command is run
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (UserError, CycloptsError) as mistake:
        print(f"splitmix: {' '.join(str(mistake).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("splitmix: stopped; go on with --resume", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a disk, a folder or a file that will not do what was asked
        where = f"'{error.filename}': " if error.filename else ""
        print(f"splitmix: {where}{error.strerror or error}; choose another place or make room", file=sys.stderr)
        sys.exit(2)


def show_run(folder: Path, as_json: bool) -> None:
    from splitmix.report.attendance import summary
    from splitmix.report.tables import show, width_table
    from splitmix.runs.records import read_metrics, read_result

    result = read_result(folder)
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        show(width_table(result), Console())
        if told := summary(read_metrics(folder)):
            say(told)


def show_rows(title: str, columns: Sequence[Any], rows: Sequence[Any], as_json: bool, caption: str = "") -> None:
    """Print rows as a table, or as a JSON list."""
    from splitmix.report.tables import Table, show

    if as_json:
        print(json.dumps(list(rows), indent=1))
    else:
        show(Table(title, columns, [[row[column.key] for column in columns] for row in rows], caption), Console())


def say(text: str) -> None:
    Console().print(text, highlight=False, soft_wrap=True, markup=False)


def cost_of(net: str, build: Any, image: str | None, count: Callable[[tuple[int, ...]], Counted]) -> Counted:
    """What is counted on images of a size; what the net itself cannot do is one sentence."""
    try:
        return count(checked_image(net, build, image))
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, IndexError) as error:
        size = f" on images of {image}" if image else ""
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"the net '{net}' cannot be run{size}: {reason}") from None


def checked_image(net: str, build: Any, image: str | None) -> tuple[int, ...]:
    """The size of an image, given or the net's own."""
    own = getattr(build, "image", None) or getattr(build(Width(1)), "image", None)
    if image is None:
        if own is None:
            raise UserError(f"the net '{net}' does not say which images it takes; give --image, such as 32x32x3")
        return tuple(own)
    try:
        height, width, channels = (int(part) for part in image.split("x"))
        if min(height, width, channels) < 1:
            raise ValueError
    except ValueError:
        raise UserError(
            f"'{image}' is not the size of an image; write HEIGHTxWIDTHxCHANNELS, such as 32x32x3"
        ) from None
    return height, width, channels
