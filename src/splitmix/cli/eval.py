"""The command that scores a finished run: at any width, at any dial, under attack."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from splitmix.attacks import find_attack
from splitmix.cli.options import Flag, Json, Words, checked_workers, note, say, show_json, show_rows, show_table
from splitmix.core.errors import UserError
from splitmix.core.objective import Attack
from splitmix.core.width import parse_dial, parse_width
from splitmix.report.grid_page import WEAK, grid_table, masking_table
from splitmix.report.run_page import write_report
from splitmix.report.tables import Column, percent
from splitmix.runs.config import parse_override
from splitmix.runs.evaluate import FinishedRun, evaluate_run, open_run
from splitmix.runs.grid import Sweep, measure_grid
from splitmix.runs.masking import check_masking
from splitmix.runs.progress import Countdown
from splitmix.runs.records import write_record


def evaluate(
    run: Path,
    /,
    *,
    width: Words = None,
    robust: Words = None,
    attack: str | None = None,
    images: int | None = None,
    masking: Flag = False,
    split: str = "test",
    norm: str | None = None,
    out: Path | None = None,
    workers: int | None = None,
    data_root: Path | None = None,
    as_json: Json = False,
) -> None:
    """Score a finished run at any width on its clients' images.

    With --robust or --attack it measures a grid of widths and robustness dials, and keeps it in grid.json.

    Examples:

      splitmix eval runs/two

      splitmix eval runs/two --width 1/8 3/8 1 --norm batch --json

      splitmix eval runs/dual --robust 0 .2 .5 .8 1 --attack pgd20 --images 20

      splitmix eval runs/dual --attack autoattack --images 2 --out runs/dual/grid-autoattack.json

      splitmix eval runs/dual --masking

    Parameters
    ----------
    run
        Folder of a finished run.
    width
        Widths to score; default: all.
    robust
        Robustness dials from 0 (accurate) to 1 (robust); default for a run with a dial: 0 .2 .5 .8 1.
    attack
        fgsm, pgd7, pgd20, l2-pgd20, autoattack ..., or {name="pgd20", eps="4/255"}; white box, at the dial served.
    images
        At most so many images of each client, drawn once; default: all.
    masking
        Check that robustness does not come from hidden gradients, with PGD like --attack (default: pgd7), and keep
        what is found in masking.json.
    split
        Images: train, val or test.
    norm
        Statistics of the norms: batch, client or global; default: as trained.
    out
        File of the grid; default: grid.json in the run's folder.
    workers
        Client processes; default: one per core.
    data_root
        Folder of data sets; default: the variable SPLITMIX_DATA.
    as_json
        Print JSON.
    """
    widths, dials = [parse_width(text) for text in width or ()], [parse_dial(text) for text in robust or ()]
    count = checked_workers(workers)
    if masking or attack or dials:
        sweep = Sweep(widths, dials, parse_attack(attack), images)
        opened = open_run(run, split=split, norm=norm, fixed=bool(masking or attack or any(dials)), root=data_root)
        measure = check_run if masking else measure_run
        measure(opened, sweep, count, out, as_json)
        return
    if images is not None or out is not None:
        raise UserError("--images and --out belong to a grid; ask for one with --robust or --attack")
    rows = evaluate_run(run, widths, split, norm, workers=count, root=data_root)
    show_scores(run, rows, split, as_json)


def parse_attack(given: str | None) -> Attack | None:
    """An attack by its name, or as {name=..., its own settings}."""
    return None if given is None else find_attack(parse_override(f"attack={given}")[1])


def measure_run(opened: FinishedRun, sweep: Sweep, workers: int, out: Path | None, as_json: bool) -> None:
    """Measure the grid of a run, keep it, and show it."""
    with Countdown("answers of clients") as left:
        grid = measure_grid(opened, sweep, workers=workers, begin=left.begin, on_answer=left.step)
    path = out or opened.path / "grid.json"
    write_record(path, grid)
    show_json(grid) if as_json else show_table(grid_table(grid))
    if grid["weak"]:
        note(f"warning: {WEAK}", style="yellow")
    page = write_report(opened.path)
    if not as_json:
        say(f"Grid: {path}; pictures: {page}")


def check_run(opened: FinishedRun, sweep: Sweep, workers: int, out: Path | None, as_json: bool) -> None:
    """Check a run for hidden gradients, keep what was found, and show it."""
    if out is not None:
        raise UserError("--masking keeps what it finds in masking.json in the run's folder; leave out --out")
    with Countdown("answers of clients") as left:
        findings = check_masking(opened, sweep, workers=workers, begin=left.begin, on_answer=left.step)
    path = opened.path / "masking.json"
    write_record(path, findings)
    show_json(findings) if as_json else show_table(masking_table(findings))
    page = write_report(opened.path)
    if not as_json:
        say(f"Checks: {path}; page: {page}")


def show_scores(run: Path, rows: Sequence[Mapping[str, Any]], split: str, as_json: bool) -> None:
    """A row per width, with the accuracy in each domain."""
    flat = [{**row, **{f"in {name}": value for name, value in row["domains"].items()}} for row in rows]
    columns = [
        Column("width", "width"),
        Column("bases", "bases"),
        Column("accuracy", "accuracy %", percent),
        Column("pooled", "pooled %", percent),
        *(Column(f"in {name}", name, percent) for name in rows[0]["domains"]),
    ]
    caption = f"accuracy is the mean over clients; {rows[0]['norm']} statistics in the norms, {split} images"
    show_rows(f"Accuracy of {run}", columns, flat if not as_json else rows, as_json, caption)
