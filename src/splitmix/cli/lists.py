"""Commands that show what can be named: tasks, methods, nets, budgets, settings, and the images themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from splitmix.cli import app, say, show_rows
from splitmix.cli.options import Flag, Json
from splitmix.core.errors import UserError
from splitmix.report.tables import Column

if TYPE_CHECKING:
    from splitmix.data.prepare.fetch import Watch

data = App(name="data", help="Look at tasks and their images.", help_epilogue="Example: splitmix data show mini")
app.command(data)


@app.command
def tasks(*, as_json: Json = False) -> None:
    """List the tasks.

    Example: splitmix tasks --json
    """
    from splitmix.data.tasks import TASKS

    rows = [{"task": name, "about": entry.about} for name, entry in TASKS.items()]
    show_rows("Tasks", _text("task", "about"), rows, as_json, "or a folder of .npz files, one domain each")


@app.command
def methods(*, as_json: Json = False) -> None:
    """List the methods.

    Example: splitmix methods
    """
    from splitmix.methods import METHODS

    rows = [{"method": name, "about": _about(make)} for name, make in METHODS.items()]
    show_rows("Methods", _text("method", "about"), rows, as_json)


@app.command
def nets(*, as_json: Json = False) -> None:
    """List the nets.

    Example: splitmix nets
    """
    from splitmix.nets import NETS

    rows = [
        {"net": name, "about": _about(build), "image": "x".join(map(str, getattr(build, "image", ())))}
        for name, build in NETS.items()
    ]
    show_rows("Nets", _text("net", "about", "image"), rows, as_json, "or your own build(width), as module:function")


@app.command
def budgets(law: str | None = None, /, *, clients: int = 50, out: Path | None = None, as_json: Json = False) -> None:
    """List the named budgets, or show who gets what.

    Examples:

      splitmix budgets

      splitmix budgets lognormal --clients 50 --out budgets.png

      splitmix budgets "1/8 1/4 1/2 1" --clients 20

    Parameters
    ----------
    law
        A name, or widths for equal groups of clients.
    clients
        Number of clients.
    out
        Draw a picture of every client's budget (.png, .svg or .pdf).
    as_json
        Print JSON.
    """
    from splitmix.data.budgets import BUDGETS, parse_budgets
    from splitmix.report.budgets import budget_picture

    rows = []
    for name in [law] if law else BUDGETS:
        given = parse_budgets(name, clients=clients).at(0)
        groups = {str(width): given.count(width) for width in sorted(set(given))}
        shown = ", ".join(f"{count} x {width}" for width, count in groups.items())
        rows.append({"budgets": name, "clients": shown, "mean": f"{float(sum(given) / clients):.3f}"})
        if out is not None and law:
            budget_picture(given, ["all clients"] * clients, out)
    if out is not None and not law:
        raise UserError("name the budgets to draw, such as: splitmix budgets exponential --out budgets.png")
    show_rows(f"Budgets of {clients} clients", _text("budgets", "clients", "mean"), rows, as_json)


@app.command
def settings(*, as_json: Json = False) -> None:
    """List the settings of a run with their defaults, for -o key=value and for config files.

    Example: splitmix settings
    """
    from splitmix.runs.config import Config
    from splitmix.runs.recipes import RECIPES

    recipe = {"key": "recipe", "default": "None", "about": f"fills in what is left open: {' or '.join(RECIPES)}"}
    rows = [recipe] + [
        {"key": key, "default": str(entry.default), "about": entry.description or ""}
        for key, entry in Config.model_fields.items()
    ]
    show_rows("Settings", _text("key", "default", "about"), rows, as_json)


@data.command(name="list")
def data_list(*, as_json: Json = False) -> None:
    """List the tasks.

    Example: splitmix data list
    """
    tasks(as_json=as_json)


@data.command(name="show")
def data_show(task: str, /, *, out: Path | None = None, data_root: Path | None = None, as_json: Json = False) -> None:
    """Draw a contact sheet of a task's images and count them.

    Example: splitmix data show mini --out mini.png

    Parameters
    ----------
    task
        A task's name or a folder of .npz files.
    out
        Where to put the picture; default: the task's name, .png.
    data_root
        Folder of data sets; default: the variable SPLITMIX_DATA.
    as_json
        Print the counts as JSON.
    """
    from splitmix.data.task import describe, domains_of
    from splitmix.data.tasks import find_task
    from splitmix.report.sheet import contact_sheet

    found = find_task(task, root=data_root)
    path = out or Path(f"{found.name}.png")
    contact_sheet(domains_of(found), path)
    rows = describe(found)
    show_rows(f"Task {found.name}", [Column(key, key) for key in rows[0]], rows, as_json)
    if not as_json:
        say(f"Contact sheet: {path}")


@data.command(name="prepare")
def data_prepare(
    task: str,
    /,
    *,
    data_root: Annotated[Path | None, Parameter()] = None,
    download: Flag = False,
    as_json: Json = False,
) -> None:
    """Make a task's files from the original ones, once; check them, and count the images.

    Examples: splitmix data prepare mini | splitmix data prepare cifar10 --data-root DATA --download

    Parameters
    ----------
    task
        A task's name or a folder of .npz files.
    data_root
        Folder of data sets, with the original files in its folder "originals"; default: the variable SPLITMIX_DATA.
    download
        Fetch original files that are not there, where their authors offer them.
    as_json
        Print the counts as JSON.
    """
    from splitmix.data import folder
    from splitmix.data.prepare import NEEDS, prepare
    from splitmix.data.task import describe
    from splitmix.data.tasks import check_task, find_task

    check_task(task)
    if task in NEEDS:
        with _download_bars() as watch:
            prepare(task, folder.data_root(data_root), download=download, tell=_note, watch=watch)
    rows = describe(find_task(task, root=data_root))
    show_rows(f"Task {task} is ready", [Column(key, key) for key in rows[0]], rows, as_json)


@contextmanager
def _download_bars() -> "Iterator[Watch]":
    """A bar for each download; nothing is drawn where there is none."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    bars: dict[str, TaskID] = {}

    def watch(name: str, done: int, total: int | None) -> None:
        if name not in bars:
            progress.start()
            bars[name] = progress.add_task(name)
        progress.update(bars[name], completed=done, total=total)

    try:
        yield watch
    finally:
        if bars:
            progress.stop()


def _note(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def _text(*keys: str) -> list[Column]:
    return [Column(key, key, number=False) for key in keys]


def _about(thing: object) -> str:
    owner = getattr(thing, "__self__", thing)  # a classmethod's class says it
    return (owner.__doc__ or "").strip().splitlines()[0] if owner.__doc__ else ""
