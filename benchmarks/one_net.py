"""One net with a dial beside a separate net for each trade of accuracy for robustness, all of the same size.

python benchmarks/one_net.py --out runs/one_net [--data-root FOLDER] [--workers N] [--only WORD]

Runs whose rows are there already are left out, a run that was begun goes on, and what it shows is stored as soon as it
is measured: stop it whenever you like. The page of what is there by then: `python benchmarks/evidence.py robustness`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evidence import Row, rows_of
from study import ANNEALED, StudyRun, carry_out, keep_grid

from splitmix.attacks import find_attack
from splitmix.compare.suite import Setups, Workshop, run_once
from splitmix.runs.config import Config, make_config
from splitmix.runs.measure.evaluate import FinishedRun
from splitmix.runs.measure.grid import Sweep

COMMON: dict[str, object] = ANNEALED | {
    "task": "digits",
    "method": {"name": "fedavg", "width": "1/8"},
    "rounds": 100,
    "cohort": 10,
    "eval_every": 20,
    "checkpoint_every": 10,
    "statistics": "client",  # which a choice would take too: clients differ in their domains
    "kernels": "native",  # the same sums in C: attacks are long
}
SINGLE: dict[str, object] = {"norm_rate": 1.0}  # there are no two norms to part by more
FILM: dict[str, object] = SINGLE | {"objective": "oat", "kernels": "torch"}  # norms that no kernel in C is for
WEIGHTS = (0.0, 0.1, 0.3, 0.5, 1.0)  # of the attacked images
DIALS = (0.0, 0.2, 0.5, 0.8, 1.0)
SEEDS = (1, 2)
ATTACK, IMAGES = {"name": "pgd20", "restarts": 2}, 10  # of each client


@dataclass(frozen=True)
class OneRun(StudyRun):
    """A net of one kind: `at` for one weight of attacked images, or `dat`, `drawn` or `oat` with a dial."""

    study = "robustness"
    label: str
    curve: str
    point: str
    config: Config
    folder: Path

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        run_once(setups.of(self.config), self.folder, workshop)
        keep_grid(self.folder, workshop, all_dials)


def all_dials(run: FinishedRun) -> Sweep:
    return Sweep((), DIALS if run.setup.dial else (), find_attack(ATTACK), IMAGES, seed=1)


def planned(out: Path) -> list[OneRun]:
    """All nets with one seed before the next."""
    return [
        run
        for seed in SEEDS
        for run in (
            with_dial(out, seed, "dat", {"objective": "adversarial"}),
            with_dial(out, seed, "drawn", {"objective": {"name": "adversarial", "dials": "drawn"}}),
            *(separate(out, seed, weight) for weight in WEIGHTS),
            with_dial(out, seed, "oat", FILM),
        )
    ]


def with_dial(out: Path, seed: int, curve: str, settings: dict[str, object]) -> OneRun:
    return OneRun(curve, curve, "", make_config(COMMON | settings | {"seed": seed}), out / f"{curve}-{seed}")


def separate(out: Path, seed: int, weight: float) -> OneRun:
    objective = {"name": "adversarial", "dual": False, "weight": weight}
    config = make_config(COMMON | SINGLE | {"objective": objective, "seed": seed})
    return OneRun(f"weight {weight:g}", "at", f"{weight:g}", config, out / f"weight-{weight:g}-{seed}")


def measured(run: OneRun) -> Iterator[Row]:
    """Accuracy at each dial on the same test images, as they are and under attack."""
    for row in rows_of(run.folder):
        if row.get("part") == "grid":
            yield {**row, "part": "one net", "kind": run.curve, "point": run.point or f"{row['robust']:g}"}


if __name__ == "__main__":
    carry_out(__doc__, planned, measured)
