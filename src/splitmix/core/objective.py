"""Local losses: what a client minimises on one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Forward(Protocol):
    """Runs the job's parts on a batch: logits (base, batch, class) for each width among the parts."""

    def __call__(self, x: Tensor, robust: float = 0.0, *, training: bool = True) -> Sequence[Tensor]: ...


class Objective(Protocol):
    """Loss of one batch, to be minimised by all parts of a job; `rng` is the client's own."""

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Plain:
    """Cross-entropy, summed over the parts (Algorithm 3)."""

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        return torch.stack([cross_entropy(logits, y) for logits in forward(x)]).sum()


@dataclass(frozen=True)
class Masked:
    """Cross-entropy for clients that lack classes: the logits of classes absent from the batch are multiplied by 0."""

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        return torch.stack([cross_entropy(mask_absent(logits, y), y) for logits in forward(x)]).sum()


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch, sum over the bases, of logits (base, batch, class)."""
    bases, batch, _ = logits.shape
    return F.cross_entropy(logits.flatten(0, 1), y.repeat(bases), reduction="sum") / batch


def mask_absent(logits: Tensor, y: Tensor) -> Tensor:
    """Zero the logits of classes that no sample of the batch has: they get no gradient."""
    present = torch.zeros(logits.shape[-1], dtype=logits.dtype, device=logits.device).index_fill_(0, y, 1.0)
    return logits * present


OBJECTIVES: dict[str, Objective] = {"plain": Plain(), "masked": Masked()}
