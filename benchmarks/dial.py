"""Whether the robustness dial opens: one model with both dials, beside what it must not fall short of.

python benchmarks/dial.py --out runs/dial [--data-root FOLDER] [--workers N] [--only WORD]

Runs whose rows are there already are left out, a run that was begun goes on, and what it shows is stored as soon as it
is measured: stop it whenever you like. The page of what is there by then: `python benchmarks/evidence.py robustness`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evidence import Row, read_rows, rows_of, where
from study import ANNEALED, StudyRun, carry_out, keep_grid

from splitmix.attacks import find_attack
from splitmix.compare.suite import Setups, Workshop, run_once
from splitmix.core.width import parse_width
from splitmix.runs.config import Config, make_config
from splitmix.runs.measure.evaluate import FinishedRun
from splitmix.runs.measure.grid import Sweep

PAGE = "robustness"
WIDTHS = [parse_width(width) for width in ("1/8", "1/4", "1/2", "1")]
COMMON: dict[str, object] = {
    "task": "digits",
    "rounds": 150,
    "cohort": 10,
    "eval_every": 15,
    "checkpoint_every": 10,
    "statistics": "client",  # which a choice would take too: clients differ in their domains
}
RECIPE: dict[str, object] = {"recipe": "recommended", "kernels": "native"}  # the same sums in C: attacks are long
USUAL = {"name": "adversarial"}  # seven steps
ALONE: dict[str, object] = {
    "method": {"name": "fedavg", "width": "1/8"},
    "norm_rate": 1.0,  # which there are no two norms to part by
    "objective": USUAL | {"dual": False, "weight": 1.0},
}
DRAWS = {"name": "splitmix", "draws": "anchored"}
ANCHORED: dict[str, object] = ANNEALED | {"kernels": "native", "method": DRAWS}
TAUGHT: dict[str, object] = {"method": DRAWS | {"mutual": 0.5, "taught": "first"}}
FEWER: dict[str, object] = ANNEALED | TAUGHT | {"objective": USUAL | {"steps": 4}}
MODELS: dict[str, dict[str, object]] = {  # by the part of the page that they are for
    "recommended": RECIPE | {"objective": USUAL},
    "attacks only": RECIPE | ALONE,
    "no attacks": RECIPE,
    "annealed": ANCHORED | {"objective": USUAL},
    "attacks only, annealed": ANCHORED | ALONE,
    "drawn": ANCHORED | {"objective": USUAL | {"dials": "drawn"}},
    "first taught": ANCHORED | TAUGHT | {"objective": USUAL},
    "first taught, four steps": FEWER,
    "first taught, four steps, ten times": FEWER | {"norm_rate": 10.0},
}
SEEDS = (1, 2)
ATTACK, IMAGES = {"name": "pgd20", "restarts": 2}, 10  # of each client
ENSEMBLE, MORE = "autoattack", 20  # of the first client of each domain: it takes hundreds of times as long


@dataclass(frozen=True)
class DialRun(StudyRun):
    """One model, trained and then measured at its dials."""

    study = PAGE
    label: str
    config: Config
    folder: Path

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        run_once(setups.of(self.config), self.folder, workshop)
        if self.label != "no attacks":
            keep_grid(self.folder, workshop, all_dials)


@dataclass(frozen=True)
class EnsembleRun(DialRun):
    """The narrowest width of a model of before, under AutoAttack at both ends of its dial."""

    @property
    def done(self) -> bool:
        return self.label in {row["part"] for row in where(read_rows(PAGE), config=self.config.digest())}

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        keep_grid(self.folder, workshop, both_ends, "grid-ensemble.json")


def all_dials(run: FinishedRun) -> Sweep:
    widths = [width for width in WIDTHS if width in run.setup.mixes()]
    return Sweep(widths, (0.0, 0.5, 1.0) if run.setup.dial else (), find_attack(ATTACK), IMAGES, seed=1)


def both_ends(run: FinishedRun) -> Sweep:
    """At the narrowest width, of one client in each domain."""
    first = {domain: client for client, domain in reversed(run.setup.domains.items())}
    dials = (0.0, 1.0) if run.setup.dial else ()
    return Sweep(WIDTHS[:1], dials, find_attack(ENSEMBLE), MORE, seed=1, clients=tuple(first.values()))


def planned(out: Path) -> list[DialRun]:
    """All models with one seed before the next, and then the slowest attack on two of them."""
    runs = [
        DialRun(part, make_config(COMMON | MODELS[part] | {"seed": seed}), out / f"{part.replace(' ', '-')}-{seed}")
        for seed in SEEDS
        for part in MODELS
    ]
    return runs + [
        EnsembleRun(f"{run.label}, {ENSEMBLE}", run.config, run.folder)
        for run in runs
        if run.label in ("recommended", "attacks only") and run.config.seed == SEEDS[-1]
    ]


def measured(run: DialRun) -> Iterator[Row]:
    """Accuracy on all test images at dial 0, and on some of them at every dial and under attack."""
    for row in rows_of(run.folder):
        match isinstance(run, EnsembleRun), row.get("part"):
            case (True, "grid-ensemble") | (False, "grid"):
                yield {**row, "part": run.label}
            case (False, None) if row["norm"] == "client":
                yield {**row, "part": f"{run.label}, all images"}


if __name__ == "__main__":
    carry_out(__doc__, planned, measured)
