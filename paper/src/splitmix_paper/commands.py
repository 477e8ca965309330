"""The paper's tables and figures: list them, run them, report them."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from splitmix.cli.compare import checked_seeds, make_workshop
from splitmix.cli.options import HERE, Flag, Json, Machine, Numbers, say, show_rows
from splitmix.core.errors import UserError, unknown

app = App(name="paper", help=__doc__)

Scale = Annotated[str, Parameter(help="paper (a GPU), cpu (two cores, real data) or smoke (a test).")]
Out = Annotated[Path | None, Parameter(help="Folder of the runs; default: runs/paper-SCALE.")]
Seeds = Annotated[Numbers, Parameter(help="Seeds of all runs; default: those of each entry.")]


@app.command(name="list")
def list_entries(*, scale: Scale = "cpu", out: Out = None, as_json: Json = False) -> None:
    """List every table and figure, what it takes, and how much of it is done.

    Example: splitmix paper list --scale cpu

    Parameters
    ----------
    as_json
        Print JSON.
    """
    from splitmix.report.tables import Column
    from splitmix_paper.exhibits import EXHIBITS
    from splitmix_paper.runs import Store, overview
    from splitmix_paper.texts import time_text

    rows = overview([*EXHIBITS.values()], checked_scale(scale), Store(folder(out, scale)))
    columns = [
        Column("name", "name", number=False),
        Column("place", "place", number=False),
        Column("title", "what it shows", number=False, spare=True),
        Column("runs", "runs done"),
        Column("seconds", "alone", time_text),
        Column("first", "in the queue", time_text),
        Column("left", "still to come", time_text),
    ]
    left = time_text(sum(row["left"] or 0 for row in rows))
    caption = (
        "Times are of two quiet cores. Alone: all runs of an entry. In the queue: without those that entries above it "
        f"have run already. All that is still to come: {left}. Run with: splitmix paper run NAME ..., or all."
    )
    show_rows(f"The paper's tables and figures at the scale {scale}", columns, rows, as_json, caption)


@app.command(name="run")
def run_entries(
    *names: str,
    scale: Scale = "cpu",
    out: Out = None,
    seeds: Seeds = None,
    mixed_precision: Flag = False,
    machine: Machine = HERE,
) -> None:
    """Run what some tables or figures need, or go on with it; nothing is run twice.

    Examples:

      splitmix paper run table1-digits --scale smoke

      splitmix paper run all --scale cpu --out runs/paper-cpu

    Parameters
    ----------
    names
        Entries of `splitmix paper list`, or all.
    mixed_precision
        Train in bfloat16 where that is safe: faster on a GPU. Such runs are kept apart from the others.
    """
    from splitmix_paper.exhibit import Change
    from splitmix_paper.exhibits import find_exhibits
    from splitmix_paper.runs import Store, jobs_of, work

    chosen, where = find_exhibits(names), folder(out, checked_scale(scale))
    workshop = make_workshop(machine)
    jobs = jobs_of(chosen, scale, Store(where), Change(tuple(checked_seeds(seeds, ())), mixed_precision))
    work(jobs, workshop)
    say(f"{len(jobs)} runs of {len(chosen)} entries are done; report them with: splitmix paper report --out {where}")


@app.command(name="report")
def report_entries(
    *,
    scale: Scale = "cpu",
    out: Path | None = None,
    seeds: Seeds = None,
    mixed_precision: Flag = False,
    data_root: Path | None = None,
) -> None:
    """Write one page and one Markdown file: our tables and figures, the paper's values beside them, and verdicts.

    What has not been run yet is listed as such.

    Example: splitmix paper report --scale cpu --out runs/paper-cpu

    Parameters
    ----------
    out
        Folder of the runs, where the report is written too; default: runs/paper-SCALE.
    mixed_precision
        Report the runs that were trained so.
    data_root
        Folder of data sets, for sample images; default: the variable SPLITMIX_DATA.
    """
    from splitmix_paper.exhibit import Change
    from splitmix_paper.report import write_report

    change = Change(tuple(checked_seeds(seeds, ())), mixed_precision)
    files = write_report(checked_scale(scale), folder(out, scale), data_root, change)
    say(files.headline)
    say(f"Report: {files.page}; as Markdown: {files.markdown}; rows: {files.rows}")


@app.command(name="keep")
def keep_runs(to: Path, *, scale: Scale = "cpu", out: Out = None) -> None:
    """Copy finished runs without their weights: all that a report needs, small enough for a repository.

    Example: splitmix paper keep results/paper --out runs/paper-cpu

    Parameters
    ----------
    to
        Folder for the copies; `paper report` and `paper run` take it as --out.
    """
    from splitmix_paper.exhibits import EXHIBITS
    from splitmix_paper.runs import Store, copy_rows, jobs_of

    if checked_scale(scale) == "smoke":
        raise UserError("runs at the scale smoke mean nothing and are quickly made; keep those of cpu or paper")
    jobs = jobs_of(EXHIBITS.values(), scale, Store(folder(out, scale)))
    copied, there = copy_rows(jobs, to)
    say(f"{copied} runs copied, {there} were there; report them with: splitmix paper report --out {to}")


def folder(out: Path | None, scale: str) -> Path:
    return out or Path("runs") / f"paper-{scale}"


def checked_scale(scale: str) -> str:
    from splitmix_paper.studies import SCALES

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale
