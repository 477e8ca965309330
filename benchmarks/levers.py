"""What each lever is worth beside the others, and what peers make of the same ones: one run after the other.

python benchmarks/levers.py --out runs/levers [--data-root FOLDER] [--workers N] [--only WORD]

Runs that are among the rows already are left out, a run that was begun goes on, and its numbers are stored as soon as
it is done: stop it whenever you like. The page of what is there by then: `python benchmarks/evidence.py levers`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evidence import Row, rows_of
from study import StudyRun, carry_out

from splitmix.runs.config import Config, make_config
from splitmix.runs.records import read_metrics

NAME = "levers"
ANCHORED: dict[str, object] = {"draws": "anchored"}
FIRST: dict[str, object] = {"mutual": 0.5, "taught": "first"}
LIGHTLY: dict[str, object] = {"mutual": 0.25, "taught": "first"}
ALL: dict[str, object] = {"mutual": 0.2}
FORK: dict[str, object] = {"fork": 0.2}
FEDAVG = {"name": "fedavg", "width": "1/8"}
MOMENTUM: dict[str, object] = {"server": {"name": "momentum", "beta": 0.5}}
LATE: dict[str, object] = {"average": 0.2}


def splitmix(*levers: Mapping[str, object]) -> dict[str, object]:
    """Split-Mix with some of its own levers."""
    return {"method": {"name": "splitmix"} | {key: value for lever in levers for key, value in lever.items()}}


LEVERS: dict[str, dict[str, object]] = {  # in the order in which they are run
    "Split-Mix, anchored, first taught, momentum": splitmix(ANCHORED, FIRST) | MOMENTUM,
    "Split-Mix, anchored, first taught lightly, momentum": splitmix(ANCHORED, LIGHTLY) | MOMENTUM,
    "Split-Mix, anchored, momentum": splitmix(ANCHORED) | MOMENTUM,
    "Split-Mix": {"method": "splitmix"},
    "FedAvg 1/8, momentum": {"method": FEDAVG} | MOMENTUM,
    "SHeteroFL, momentum": {"method": "sheterofl"} | MOMENTUM,
    "FedAvg 1/8": {"method": FEDAVG},
    "SHeteroFL": {"method": "sheterofl"},
    "Split-Mix, anchored, first taught": splitmix(ANCHORED, FIRST),
    "Split-Mix, first taught, momentum": splitmix(FIRST) | MOMENTUM,
    "Split-Mix, fork, momentum": splitmix(FORK) | MOMENTUM,
    "Split-Mix, anchored, fork, momentum": splitmix(ANCHORED, FORK) | MOMENTUM,
    "Split-Mix, anchored, momentum, late mean": splitmix(ANCHORED) | MOMENTUM | LATE,
    "Split-Mix, anchored": splitmix(ANCHORED),
    "Split-Mix, momentum": splitmix() | MOMENTUM,
    "Split-Mix, first taught": splitmix(FIRST),
    "Split-Mix, fork": splitmix(FORK),
    "Split-Mix, late mean": splitmix() | LATE,
    "Split-Mix, all taught": splitmix(ALL),
    "Split-Mix, anchored, first taught, momentum, late mean": splitmix(ANCHORED, FIRST) | MOMENTUM | LATE,
    "Split-Mix, anchored, first taught, late mean": splitmix(ANCHORED, FIRST) | LATE,
}
DIGITS: dict[str, object] = {"task": "digits", "rounds": 100, "cohort": 10, "eval_every": 10, "checkpoint_every": 10}
TASKS: dict[str, dict[str, object]] = {
    "digits": DIGITS,
    "digits, budgets shuffled": DIGITS | {"budgets": {"name": "exponential", "order": "shuffled"}},
    "digits of all clients": {
        "task": "digits",
        "rounds": 300,
        "eval_every": 20,
        "checkpoint_every": 10,
        "kernels": "native",  # the same sums in C, as three hundred rounds are long
    },
    "cifar10": {
        "task": "cifar10",
        "clients": 20,
        "partition": {"name": "classes", "k": 5},
        "objective": "masked",
        "net": "stock_nets:small_cnn",  # which gets far enough to say something in a few minutes
        "statistics": "global",  # which a choice would take too: clients differ in their classes
        "lr": 0.03,
        "rounds": 50,
        "epochs": 2,
        "cohort": 10,
        "eval_every": 10,
        "checkpoint_every": 10,
    },
    "office-caltech10": {
        "task": "office-caltech10",
        "lr": 0.01,  # the best of three on validation images, for Split-Mix and for FedAvg: results/rates.md
        "rounds": 100,
        "cohort": 10,
        "eval_every": 10,
        "checkpoint_every": 10,
    },
}
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class LeverRun(StudyRun):
    """One lever, or several, on one task with one seed."""

    study = NAME
    label: str
    part: str
    config: Config
    folder: Path


def with_validation(run: LeverRun) -> Iterator[Row]:
    """The rows of a run but for those of test-batch norms, each with its validation accuracy in the best round."""
    found = {(row.get("round"), row.get("width")): row.get("accuracy") for row in read_metrics(run.folder)}
    for row in rows_of(run.folder):
        if row["norm"] != "batch":
            yield {"part": run.part, **row, "val": found.get((row["best_round"], row["width"]))}


def slug(name: str) -> str:
    return name.lower().replace(", ", "-").replace(" ", "-").replace("/", "-")


def planned(out: Path) -> list[LeverRun]:
    """Each lever with every seed before the next one."""
    return [
        LeverRun(f"{task}: {name}", name, make_config(TASKS[task] | LEVERS[name] | {"seed": seed}), out / slug(folder))
        for task in TASKS
        for name in LEVERS
        for seed in SEEDS
        for folder in [f"{task}-{name}-{seed}"]
    ]


if __name__ == "__main__":
    carry_out(__doc__, planned, with_validation)
