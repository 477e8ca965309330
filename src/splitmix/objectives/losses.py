"""Losses on images as they are: plain, masked, and of a drawn width."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from splitmix.core.objective import Forward, Objective
from splitmix.core.width import Width


@dataclass(frozen=True)
class Plain(Objective):
    """Cross-entropy, summed over the parts (Algorithm 3)."""

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        return torch.stack([cross_entropy(logits, y) for logits in forward(x)]).sum()


@dataclass(frozen=True)
class Masked(Objective):
    """Cross-entropy for clients that lack classes: the logits of classes absent from the batch are multiplied by 0."""

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        return torch.stack([cross_entropy(mask_absent(logits, y), y) for logits in forward(x)]).sum()


@dataclass(frozen=True)
class DrawnWidth(Objective):
    """Ordered dropout (FjORD): each batch trains one width, drawn uniformly among the parts', by the `given` loss.

    With `distill` the widest part trains on every batch as well, and the drawn one also learns from its logits z:
    given(widest) + (1 - share) given(drawn) + share T^2 KL(softmax(z_widest / T) || softmax(z_drawn / T)).
    """

    given: Objective = Plain()
    distill: bool = False
    share: float = 0.5
    temperature: float = 1.0

    def terms(self, parts: int) -> int:
        return 2 if self.distill else 1

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        widths = list(forward.widths)
        widest, drawn = widths.index(max(widths)), int(torch.randint(len(widths), (), generator=rng))
        if not self.distill:
            return self.given(OneWidth(forward, drawn), x, y, rng)
        teacher, student = OneWidth(forward, widest), OneWidth(forward, drawn)
        loss = self.given(teacher, x, y, rng)
        if drawn == widest:
            return loss
        loss = loss + (1 - self.share) * self.given(student, x, y, rng)
        for z_widest, z_drawn in zip(teacher.seen, student.seen, strict=True):
            loss = loss + self.share * divergence(z_widest.detach(), z_drawn, self.temperature)
        return loss


class OneWidth:
    """One width of a forward; keeps the logits that it was trained on."""

    def __init__(self, forward: Forward, place: int) -> None:
        self.forward, self.place = forward, place
        self.seen: list[Tensor] = []

    @property
    def widths(self) -> Sequence[Width]:
        return [self.forward.widths[self.place]]

    def __call__(
        self, x: Tensor, robust: float = 0.0, *, training: bool = True, only: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        places = [self.place] if only is None else [self.place for _ in only]
        logits = self.forward(x, robust, training=training, only=places)
        if training:
            self.seen.extend(logits)
        return logits


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student), mean over the batch, sum over the bases; T^2 keeps the size of its gradient."""
    p, q = (F.log_softmax(logits / temperature, -1) for logits in (teacher, student))
    return F.kl_div(q, p, reduction="sum", log_target=True) * temperature**2 / teacher.shape[1]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch, sum over the bases, of logits (base, batch, class)."""
    bases, batch, _ = logits.shape
    return F.cross_entropy(logits.flatten(0, 1), y.repeat(bases), reduction="sum") / batch


def mask_absent(logits: Tensor, y: Tensor) -> Tensor:
    """Zero the logits of classes that no sample of the batch has: they get no gradient."""
    present = torch.zeros(logits.shape[-1], dtype=logits.dtype, device=logits.device).index_fill_(0, y, 1.0)
    return logits * present
