"""One step of local adversarial training: eight Digit bases side by side against one after the other.

python benchmarks/adversarial.py    prints what each takes and its ratio to ours (a few minutes on one core)
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from timing import in_turns, ratio_text, timed
from torch import Tensor, nn
from torch.nn import functional as F

from splitmix.core.client import Parts
from splitmix.core.net import Net
from splitmix.core.objective import Objective, Predict
from splitmix.core.types import Layout, Part
from splitmix.core.width import Width
from splitmix.nets import layers
from splitmix.nets.digit import Digit
from splitmix.nets.native.stages import NativeStages
from splitmix.nets.stages import Stages
from splitmix.objectives.adversarial import Adversarial

ATOM, BASES, BATCH = Width(1, 8), 8, 32
STEPS = 4  # in a turn: a single one is too short for the clock of processors
OURS = "side by side"
SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=5e-4)


def adversarial_steps() -> dict[str, dict[str, Any]]:
    """Dual norms with tracked statistics, PGD of seven steps, in turns: a row for each way to compute the same.

    *One after another* is our own code with one base at a time; *as it is* is side by side, but with an attack on the
    net with its norms by themselves, and PyTorch's own way back to the images; *plain* is stock nets, one by one.
    """
    x = torch.rand(BATCH, 28, 28, 3).permute(0, 3, 1, 2)
    y = torch.arange(BATCH) % 10
    together = [tuple(range(BASES))]
    steps = {
        OURS: partial(our_step(together), x, y),
        "side by side, native kernels": partial(our_step(together, stages=NativeStages()), x, y),
        "side by side, attacked as it is": partial(unfolded, our_step(together, Unfolded), x, y),
        "one after another": partial(our_step([(base,) for base in range(BASES)]), x, y),
        "plain": partial(_plain(), x.contiguous(), y),
    }
    ways = {name: partial(timed, partial(several, step)) for name, step in steps.items()}
    for way in ways.values():  # to warm up
        way()
    turns = in_turns(ways, OURS)
    return {name: turns.row(name, OURS) for name in ways}


def several(step: Callable[[], None]) -> None:
    for _ in range(STEPS):
        step()


class Unfolded(Parts):
    """Parts that an attack runs like everybody else."""

    def fixed(self, place: int, robust: float = 0.0) -> Predict:
        return lambda images: self(images, robust, training=False, only=[place])[0]


def unfolded(step: Callable[[Tensor, Tensor], None], x: Tensor, y: Tensor) -> None:
    """A step in which images of bases are nothing special."""
    few, layers.FEW = layers.FEW, 0
    step(x, y)
    layers.FEW = few


def our_step(
    groups: list[tuple[int, ...]],
    kind: type[Parts] = Parts,
    stages: Stages | None = None,
    objective: Objective = Adversarial(),  # noqa: B008 - frozen
) -> Callable[[Tensor, Tensor], None]:
    """A step of all bases: those of a group are attacked and trained side by side, groups one after the other."""
    net = Net(partial(Digit, dual=True, stages=stages))
    weights = net.init(Layout(BASES, ATOM), 0, tracked=True)
    names = net.parameter_names(ATOM)
    leaves = [{n: v[list(g)].clone().requires_grad_(n in names) for n, v in weights.items()} for g in groups]
    forwards = [kind(net, tuple(Part(b, ATOM) for b in g), own) for g, own in zip(groups, leaves, strict=True)]
    optimizer = SGD([own[name] for own in leaves for name in names], fused=True)
    rng = torch.Generator().manual_seed(0)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        for forward in forwards:
            objective(forward, x, y, rng).backward()
        optimizer.step()

    return step


def _plain() -> Callable[[Tensor, Tensor], None]:
    """The same step as one would first write it: stock layers, one base after the other (Algorithm 4)."""
    nets = [StockDigit() for _ in range(BASES)]
    optimizer = SGD([p for net in nets for p in net.parameters()])

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        for net in nets:
            clean = F.cross_entropy(net.train()(x, 0), y)
            images = plain_pgd(net.eval(), x, y)
            (0.5 * clean + 0.5 * F.cross_entropy(net.train()(images, 1), y)).backward()
        optimizer.step()

    return step


def plain_pgd(net: nn.Module, x: Tensor, y: Tensor, eps: float = 8 / 255, step: float = 2 / 255) -> Tensor:
    images = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
    for _ in range(7):
        images.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(net(images, 1), y, reduction="sum"), images)
        moved = images.detach() + step * slope.sign()
        images = torch.clamp(x + torch.clamp(moved - x, -eps, eps), 0, 1)
    return images


class StockDigit(nn.Module):
    """The Digit CNN of width 1/8 with two norms behind each layer but the last."""

    def __init__(self) -> None:
        super().__init__()
        convs = [nn.Conv2d(3, 8, 5, padding=2), nn.Conv2d(8, 8, 5, padding=2), nn.Conv2d(8, 16, 5, padding=2)]
        self.layers = nn.ModuleList([*convs, nn.Linear(16 * 49, 256), nn.Linear(256, 64)])
        self.last = nn.Linear(64, 10)
        kinds = [(nn.BatchNorm2d, 8), (nn.BatchNorm2d, 8), (nn.BatchNorm2d, 16), (nn.BatchNorm1d, 256)]
        pairs = [nn.ModuleList([kind(size), kind(size)]) for kind, size in [*kinds, (nn.BatchNorm1d, 64)]]
        self.norms = nn.ModuleList(pairs)

    def forward(self, x: Tensor, noisy: int) -> Tensor:
        for i, (layer, norms) in enumerate(zip(self.layers, self.norms, strict=True)):
            norm = cast(nn.ModuleList, norms)[noisy]
            x = F.relu(norm(layer(x.flatten(1) if i == 3 else x)))
            x = F.max_pool2d(x, 2) if i < 2 else x
        return self.last(x)


def main() -> None:
    torch.set_num_threads(1)
    rows = adversarial_steps()
    for name, row in rows.items():
        clock, processor = (row[what] for what in ("clock", "processor"))
        ratios = f"{ratio_text(clock['ratio'])} by the clock, {ratio_text(processor['ratio'])} by processor time"
        print(f"{name}: {1e3 * clock['seconds'] / STEPS:.0f} ms a step; times ours: {ratios}")
    print(rows[OURS]["verdict"])


if __name__ == "__main__":
    main()
