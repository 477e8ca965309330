"""What a cheaper attack in training gives up: the same net trained on the paper's attack and on shorter ones.

python benchmarks/training_attack.py --out runs/training_attack [--data-root FOLDER] [--workers N] [--only WORD]
python benchmarks/training_attack.py times      measures a step of each instead (three minutes on one core)

Runs whose rows are there already are left out, a run that was begun goes on. The page of what is there by then:
`python benchmarks/evidence.py training_attack`.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

import torch
from adversarial import BATCH, our_step
from evidence import Row, in_turns, publish, read_rows, rows_of
from study import ANNEALED, StudyRun, carry_out, keep_grid
from timing import middle
from torch import Tensor

from splitmix.attacks import find_attack
from splitmix.attacks.pgd import PGD
from splitmix.compare.suite import Setups, Workshop, run_once
from splitmix.core.objective import Forward, Predict
from splitmix.nets.native.stages import NativeStages
from splitmix.nets.stages import Stages
from splitmix.objectives import OBJECTIVES, find_objective
from splitmix.objectives.adversarial import Adversarial
from splitmix.runs.config import Config, make_config
from splitmix.runs.measure.grid import Sweep

PAGE = "training_attack"
COMMON: dict[str, object] = ANNEALED | {
    "task": "digits",
    "method": {"name": "fedavg", "width": "1/8"},
    "rounds": 60,
    "cohort": 10,
    "eval_every": 30,
    "checkpoint_every": 10,
    "statistics": "client",  # which a choice would take too: clients differ in their domains
    "kernels": "native",
}
FIRST = "7 steps of 2/255"  # the paper's
ATTACKS: dict[str, dict[str, object]] = {
    FIRST: {"name": "adversarial"},
    "2 steps of 8/255": {"name": "adversarial", "steps": 2, "step": "8/255"},
    "2 steps of 5/255": {"name": "adversarial", "steps": 2, "step": "5/255"},
    "2 steps of 8/255, warm start": {"name": "warm", "steps": 2, "step": "8/255"},
    "1 step of 8/255, warm start": {"name": "warm", "steps": 1, "step": "8/255"},
}
SEEDS = {FIRST: (1, 2, 3), "2 steps of 8/255": (1, 2, 3)}  # of the others 1 and 2
ATTACK, IMAGES = {"name": "pgd20", "restarts": 2}, 40  # of each client


@dataclass(frozen=True)
class WarmStart(Adversarial):
    """Attacks begin beside a random point, where the gradient of the clean loss points to.

    That gradient is taken for itself here, which costs a pass back; `AtBest` shows what it would cost as a part of the
    pass that the weights need anyway.
    """

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        total = []
        for place in range(len(forward.widths)):
            predict = forward.fixed(place, 1.0)
            images = PGD(eps=0)(predict, x, y, rng).clone().requires_grad_()  # for each base its own, as they are
            clean = (1 - self.weight) * self._loss(forward(images, only=[place])[0], y)
            clean, slope = self.slope(clean, images)
            made = self.walk(predict, images.detach(), slope, y, rng)
            total.append(clean + self.weight * self._loss(forward(made, 1.0, only=[place])[0], y))
        return torch.stack(total).sum()

    def slope(self, clean: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        return clean, torch.autograd.grad(clean, images, retain_graph=True)[0]

    def walk(self, predict: Predict, x: Tensor, slope: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        attack = self.attack
        assert isinstance(attack, PGD)
        low, high = (x - attack.eps).clamp_(min=0), (x + attack.eps).clamp_(max=1)
        drawn = torch.empty(slope.shape).uniform_(-attack.eps, attack.eps, generator=rng)
        here = (x + drawn + 6 / 255 * slope.sign()).clamp_(low, high)
        for _ in range(attack.steps):
            loss = self._loss(predict(here.requires_grad_()), y)
            here = (here.detach() + attack.step * torch.autograd.grad(loss, here)[0].sign()).clamp_(low, high)
        return here


class AtBest(WarmStart):
    """The same where the pass back that the weights need gives the images' gradient as well."""

    def slope(self, clean: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        clean.backward()
        assert images.grad is not None
        return clean.detach(), images.grad


OBJECTIVES["warm"] = WarmStart


@dataclass(frozen=True)
class AttackRun(StudyRun):
    """One model, trained on one attack and then measured under another, stronger one."""

    study = PAGE
    label: str
    config: Config
    folder: Path

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        run_once(setups.of(self.config), self.folder, workshop)
        keep_grid(self.folder, workshop, lambda _: Sweep((), (0.0, 1.0), find_attack(ATTACK), IMAGES, seed=1))


def planned(out: Path) -> list[AttackRun]:
    """All runs, the paper's attack first."""
    return [
        AttackRun(label, config_of(label, seed), out / f"{label.replace(' ', '-').replace('/', '-')}-{seed}")
        for label in ATTACKS
        for seed in SEEDS.get(label, (1, 2))
    ]


def config_of(label: str, seed: int) -> Config:
    return make_config(COMMON | {"objective": ATTACKS[label], "seed": seed})


def measured(run: AttackRun) -> Iterator[Row]:
    """Accuracy at both ends of the dial on the same test images, as they are and under attack."""
    yield from ({**row, "part": run.label} for row in rows_of(run.folder) if row.get("part") == "grid")


def step_times(turns: int = 15) -> Iterator[Row]:
    """A step of local training on each attack, in turns: processor time, and how many of it one on the first takes."""
    torch.set_num_threads(1)
    x, y = torch.rand(BATCH, 28, 28, 3).permute(0, 3, 1, 2), torch.arange(BATCH) % 10
    for bases in (1, 8):
        for kernels, stages in (("torch", Stages()), ("native", NativeStages())):
            together = [tuple(range(bases))]
            steps = {name: our_step(together, stages=stages, objective=objective_of(name)) for name in ATTACKS}
            ways = {name: partial(step, x, y) for name, step in steps.items()}
            spent = in_turns(ways, process_time, turns)
            for label, each in spent.items():
                ratio = middle([first / own for first, own in zip(spent[FIRST], each, strict=True)])
                yield {
                    "study": PAGE,
                    "part": "step",
                    "attack": label,
                    "bases": bases,
                    "kernels": kernels,
                    "seconds": median(each),
                    "ratio": ratio._asdict(),
                }


def objective_of(label: str) -> Adversarial:
    objective = find_objective(ATTACKS[label])
    assert isinstance(objective, Adversarial)
    return AtBest(objective.attack) if isinstance(objective, WarmStart) else objective


if __name__ == "__main__":
    if sys.argv[1:] == ["times"]:
        publish(PAGE, [row for row in read_rows(PAGE) if row["part"] != "step"] + list(step_times()))
    else:
        carry_out(__doc__, planned, measured)
