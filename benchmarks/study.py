"""A study of many runs: those that have no rows yet are carried out, and each is stored as soon as it is done."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from evidence import Row, read_rows, write_page, write_rows

from splitmix.compare.suite import Suite, SuiteRun, Workshop
from splitmix.runs.measure.evaluate import FinishedRun, open_run
from splitmix.runs.measure.grid import Sweep, measure_grid
from splitmix.runs.records import write_record

ANNEALED: dict[str, object] = {  # what the recommended recipe fills in, but for what it has against attacks alone
    "lr": 0.1,
    "order": "greedy",
    "norm": "post",
    "rescale_init": True,
    "server": {"name": "momentum", "beta": 0.5},
    "norm_rate": 30.0,
}


class StudyRun(SuiteRun):
    """A run of a study, which is done when its rows are stored."""

    study: ClassVar[str]

    @property
    def done(self) -> bool:
        return self.config.digest() in {row["config"] for row in read_rows(self.study)}


def keep_grid(folder: Path, workshop: Workshop, sweep: Callable[[FinishedRun], Sweep], name: str = "grid.json") -> None:
    """Measure a finished run as its sweep says, unless that was done before."""
    if not (folder / name).exists():
        run = open_run(folder, fixed=True, root=workshop.root)
        write_record(folder / name, measure_grid(run, sweep(run), workers=workshop.workers))


R = TypeVar("R", bound=StudyRun)


def carry_out(about: str, planned: Callable[[Path], Sequence[R]], rows: Callable[[R], Iterable[Row]]) -> None:
    """What a script of a study does: the planned runs that wait, those that were begun from where they stopped."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs' folders")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; default: SPLITMIX_DATA")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="only runs in whose name, or that of their folder, this stands")
    given = parser.parse_args()
    script = Path(sys.argv[0]).stem
    command = f"python benchmarks/{script}.py --out runs/{script}"
    workshop = Workshop(given.workers, root=given.data_root, command=command, say=print)
    named = [run for run in planned(given.out) if given.only in run.label or given.only in run.folder.name]
    for run in Suite([run for run in named if not run.done], workshop):
        new = [{"study": run.study, **row} for row in rows(run)]
        write_rows(run.study, [*read_rows(run.study), *new])
        write_page(run.study)
