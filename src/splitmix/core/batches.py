"""The images of a client, batches of them, what augmentation makes of a batch, and the steps that a batch leads to."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from splitmix.core.inputs import Lazy
from splitmix.core.types import Plan, Weights


@dataclass(frozen=True)
class Split:
    """A client's labelled images: rows of tensors that all clients of a machine share."""

    images: Tensor | Lazy  # (n, height, width, channel) as uint8 or float, (n, feature), or any other shape
    labels: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, picks: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] as (batch, channel, height, width), and labels."""
        rows = self.rows[picks].to(self.labels.device)
        if isinstance(self.images, Tensor):
            images = self.images.index_select(0, rows)
        else:
            images = torch.from_numpy(self.images.take(rows.cpu().numpy())).to(rows.device)
        return as_images(images), self.labels.index_select(0, rows)


@dataclass(frozen=True)
class ClientData:
    """What a client holds: disjoint train, validation and test images."""

    train: Split
    val: Split
    test: Split
    augment: bool | str = False  # crop and flip, or "turn": flip and turn

    def split(self, name: str) -> Split:
        return {"train": self.train, "val": self.val, "test": self.test}[name]


def as_images(x: Tensor) -> Tensor:
    """Pixels as float in [0, 1], channels first; the memory stays in the channels-last order, which is fast.

    Samples of another rank are floats in their own order; int64 are tokens, and stay what they are.
    """
    if x.dtype == torch.int64:
        return x
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def shuffled(samples: int, batch: int, epochs: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Batches of row numbers in random order, epoch after epoch.

    The last joins its neighbour if it is less than a quarter: two alike samples have next to no variance, and a step
    on what a norm makes of them can go a hundred times as far as others.
    """
    for _ in range(epochs):
        order = torch.randperm(samples, generator=rng)
        for picks in even_batches(samples, batch, _least(batch)):
            yield order[picks]


def step_count(samples: int, batch: int, epochs: int) -> int:
    """How many batches `shuffled` makes, without making them."""
    batches = math.ceil(samples / batch)
    last = samples - batch * (batches - 1)
    return epochs * (batches - (batches > 1 and last < _least(batch)))


def _least(batch: int) -> int:
    return max(2, batch // 4)


def even_batches(samples: int, batch: int, least: int = 2) -> Iterator[Tensor]:
    """Consecutive batches; a last one of fewer than `least` joins its neighbour: one sample has no variance at all."""
    pieces = list(torch.split(torch.arange(samples), batch)) if samples else []
    if len(pieces) > 1 and len(pieces[-1]) < least:
        pieces[-2:] = [torch.cat(pieces[-2:])]
    yield from pieces


def augmented(x: Tensor, how: bool | str, rng: torch.Generator) -> Tensor:
    """Training images as the client's data asks for them."""
    return (flip_and_turn if how == "turn" else crop_and_flip)(x, rng) if how else x


def flip_and_turn(x: Tensor, rng: torch.Generator, degrees: float = 30) -> Tensor:
    """Mirrored half of the time and turned by up to so many degrees, corners black; own draws for each image."""
    n, _, height, width = x.shape
    angle = (2 * torch.rand(n, generator=rng) - 1) * math.radians(degrees)
    sign = torch.where(torch.rand(n, generator=rng) < 0.5, -1.0, 1.0)
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros(n)
    rows = [sign * cos, -sign * sin * height / width, none, sin * width / height, cos, none]
    where = torch.stack(rows, 1).view(n, 2, 3).to(x.device, x.dtype)
    grid = F.affine_grid(where, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, "nearest", "zeros", align_corners=False)


def crop_and_flip(x: Tensor, rng: torch.Generator, pad: int = 4) -> Tensor:
    """A random crop of the image padded with black, mirrored half of the time; own draws for each image."""
    n, _, height, width = x.shape
    top, left = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=rng)
    mirrored = torch.rand(n, 1, generator=rng) < 0.5
    columns = torch.arange(width).expand(n, width)
    columns = torch.where(mirrored, columns.flip(1), columns) + left
    rows = torch.arange(height) + top
    padded = F.pad(x, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    where = (torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :])
    return padded[tuple(index.to(x.device) for index in where)].permute(0, 3, 1, 2)


class Clock:
    """Tells where a client's time goes: what passed since the last lap belongs to a step. This one counts nothing."""

    def lap(self, step: str) -> None:
        """A step is done."""


UNTIMED = Clock()


class Optimizer:
    """SGD, Adam or AdamW as in `torch.optim`, but without its classes, whose first use imports a compiler (seconds).

    With `proximal` each leaf is drawn back to where it began by so much of its way (FedProx, Li et al. 2020).
    """

    def __init__(self, leaves: Weights, norms: Collection[str], plan: Plan) -> None:
        self.plan = plan
        self.leaves: dict[float, list[Tensor]] = {}  # by their rate, which those of norms may have for themselves
        for name, leaf in leaves.items():
            self.leaves.setdefault(plan.lr * (plan.norm_rate if name in norms else 1.0), []).append(leaf)
        self.velocities: dict[float, list[Tensor | None]] = {
            rate: [None for _ in own] for rate, own in self.leaves.items() if plan.optimizer == "sgd"
        }
        # made here, not at the first step: that batch may reach only some of the leaves
        self.moments = {
            rate: [[torch.zeros_like(leaf) for leaf in own] for _ in range(2)]
            for rate, own in self.leaves.items()
            if plan.optimizer != "sgd"
        }
        self.steps = {
            rate: [torch.zeros((), device=leaf.device) for leaf in own]
            for rate, own in self.leaves.items()
            if plan.optimizer != "sgd"
        }
        self.start = {
            rate: [leaf.detach().clone() for leaf in own] for rate, own in self.leaves.items() if plan.proximal
        }

    def step(self, loss: Tensor, clock: Clock = UNTIMED) -> None:
        """Move each leaf that the loss depends on."""
        for leaf in (leaf for own in self.leaves.values() for leaf in own):
            leaf.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        clock.lap("backward")
        with torch.no_grad():
            for rate, leaves in self.leaves.items():
                reached = [i for i, leaf in enumerate(leaves) if leaf.grad is not None]
                self._move(rate, reached, [gradient for leaf in leaves if (gradient := leaf.grad) is not None])
        clock.lap("optimizer")

    def _move(self, rate: float, reached: list[int], gradients: list[Tensor]) -> None:
        leaves, plan = [self.leaves[rate][i] for i in reached], self.plan
        if plan.proximal:
            way = torch._foreach_sub(leaves, [self.start[rate][i] for i in reached])
            torch._foreach_add_(gradients, way, alpha=plan.proximal)
        if plan.optimizer == "sgd":
            velocities = [self.velocities[rate][i] for i in reached]
            if any(velocity is not None for velocity in velocities):  # else it is the gradient: nothing was moved yet
                pairs = zip(velocities, leaves, strict=True)
                velocities = [torch.zeros_like(leaf) if old is None else old for old, leaf in pairs]
            sgd(
                leaves,
                gradients,
                velocities,
                fused=True,
                lr=rate,
                momentum=plan.momentum,
                weight_decay=plan.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            for i, velocity in zip(reached, velocities, strict=True):
                self.velocities[rate][i] = velocity
            return
        first, second = ([slot[i] for i in reached] for slot in self.moments[rate])
        adam(
            leaves,
            gradients,
            first,
            second,
            [],
            [self.steps[rate][i] for i in reached],
            fused=True,
            decoupled_weight_decay=plan.optimizer == "adamw",
            amsgrad=False,
            beta1=plan.betas[0],
            beta2=plan.betas[1],
            lr=rate,
            weight_decay=plan.weight_decay,
            eps=1e-8,
            maximize=False,
        )
