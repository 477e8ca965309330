"""Look at tasks and their images."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cyclopts import App
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

from splitmix.cli.lists import tasks
from splitmix.cli.options import Flag, Json, note, say, show_rows
from splitmix.core.inputs import Lazy, made
from splitmix.data.folder import data_root as find_data_root
from splitmix.data.prepare import NEEDS, prepare
from splitmix.data.prepare.store import Watch
from splitmix.data.task import describe_task, domains_of
from splitmix.data.tasks import check_task, find_task
from splitmix.report.pictures import contact_sheet
from splitmix.report.tables import Column

data = App(name="data", help=__doc__, help_epilogue="Example: splitmix data show mini")


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
        A task's name, a folder of pictures or .npz files, or a table.
    out
        Where to put the picture; default: the task's name, .png.
    data_root
        Folder of data sets; default: the variable SPLITMIX_DATA.
    as_json
        Print the counts as JSON.
    """
    found = find_task(task, root=data_root)
    path = out or Path(f"{found.name}.png")
    contact_sheet(domains_of(found), path)
    rows = describe_task(found)
    show_rows(f"Task {found.name}", [Column(key, key) for key in rows[0]], rows, as_json)
    if not as_json:
        say(f"Contact sheet: {path}")


@data.command(name="prepare")
def data_prepare(
    task: str,
    /,
    *,
    data_root: Path | None = None,
    download: Flag = False,
    as_json: Json = False,
) -> None:
    """Make a task's files from the original ones, once; check them, and count the images.

    Examples: splitmix data prepare mini | splitmix data prepare cifar10 --data-root DATA --download

    Parameters
    ----------
    task
        A task's name, a folder of pictures or .npz files, or a table.
    data_root
        Folder of data sets, with the original files in its folder "originals"; default: the variable SPLITMIX_DATA.
    download
        Fetch original files that are not there, where their authors offer them.
    as_json
        Print the counts as JSON.
    """
    check_task(task)
    if task in NEEDS:
        with download_bars() as watch:
            prepare(task, find_data_root(data_root), download=download, tell=note, watch=watch)
    found = find_task(task, root=data_root)
    for samples in (found.train, found.test):  # pictures in files are looked at one by one
        for row in range(len(samples.labels) if isinstance(samples.images, Lazy) else 0):
            made(samples.images, [row])
    rows = describe_task(found)
    show_rows(f"Task {task} is ready", [Column(key, key) for key in rows[0]], rows, as_json)


@contextmanager
def download_bars() -> Iterator[Watch]:
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
