"""Commands for one run: train it, and report it."""

import shlex
import sys
from pathlib import Path

from splitmix.cli.flower import RemoteClients, default_folder, train_remotely
from splitmix.cli.options import HERE, Flag, Json, Machine, Option, say, show_json, show_table
from splitmix.report.attendance import summary
from splitmix.report.run_page import write_report
from splitmix.report.tables import width_table
from splitmix.runs.config import read_config, read_settings
from splitmix.runs.progress import Board, Watcher, terminal_watcher
from splitmix.runs.records import read_metrics, read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up


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
    count, on, root = machine.processes(), machine.checked_device(), machine.data_root
    command = shlex.join(["splitmix", *sys.argv[1:]])
    if engine != "simulator":
        where = RemoteClients(engine, state, deadline, count, root)
        folder = train_remotely(where, read_settings(source, option or ()), out, resume=resume, command=command)
    else:
        config = read_config(source, option or ())
        setup = set_up(config, root=root)
        folder = out or default_folder(config)
        watchers: list[Watcher] = [terminal_watcher(), *([Board(folder)] if tensorboard else [])]
        run_in_folder(setup, folder, resume=resume, workers=count, device=on, watchers=watchers, command=command)
    page = write_report(folder)
    show_run(folder, as_json)
    if not as_json:
        say(f"Pictures and details: {page}")


def report(run: Path, /) -> None:
    """Write report.html for a finished run and print its table.

    Example: splitmix report runs/two

    Parameters
    ----------
    run
        Folder of a finished run.
    """
    page = write_report(run)
    show_run(run, as_json=False)
    say(f"Pictures and details: {page}")


def show_run(folder: Path, as_json: bool) -> None:
    """Print what a finished run found."""

    result = read_result(folder)
    if as_json:
        show_json(result)
    else:
        show_table(width_table(result))
        if told := summary(read_metrics(folder)):
            say(told)
