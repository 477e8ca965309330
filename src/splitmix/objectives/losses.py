"""Losses on images as they are: plain, masked, of a drawn width; and of bases that learn from their mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from splitmix.core.objective import Forward, Objective, Predict, Trial
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
        teacher, student = Heard(OneWidth(forward, widest)), Heard(OneWidth(forward, drawn))
        loss = self.given(teacher, x, y, rng)
        if drawn == widest:
            return loss
        loss = loss + (1 - self.share) * self.given(student, x, y, rng)
        for z_widest, z_drawn in zip(teacher.seen, student.seen, strict=True):
            loss = loss + self.share * divergence(z_widest.detach(), z_drawn, self.temperature)
        return loss


@dataclass(frozen=True)
class Mutual(Objective):
    """The `given` loss, where the bases of a client learn from each other as well (deep mutual learning):

    + weight T^2 sum_i KL(softmax(z / T) || softmax(z_i / T)), z the mean of the logits z_i of all bases, a constant.
    A loss of several passes, such as clean and attacked images, has the mean of this over them. All classes count, also
    those that are masked: what the bases know of absent classes they tell each other. One base alone trains as given.
    Of several, the first `taught` learn so, or all: who learns from the mean grows like it, which helps it alone and
    leaves less for the mean to gain.
    """

    given: Objective
    weight: float
    temperature: float = 2.0
    taught: int | None = None

    def terms(self, parts: int) -> int:
        return self.given.terms(parts)

    @property
    def needs(self) -> Mapping[str, bool]:
        return self.given.needs

    @property
    def trials(self) -> tuple[Trial, ...]:
        return self.given.trials

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        heard = Heard(forward)
        loss = self.given(heard, x, y, rng)
        for logits in heard.seen:
            if len(logits) > 1:
                learning = logits[: self.taught]
                mean = logits.detach().mean(0, keepdim=True).expand_as(learning)
                loss = loss + self.weight / len(heard.seen) * divergence(mean, learning, self.temperature)
        return loss


@dataclass(frozen=True)
class OneWidth:
    """One width of a forward."""

    forward: Forward
    place: int

    @property
    def widths(self) -> Sequence[Width]:
        return [self.forward.widths[self.place]]

    def __call__(
        self, x: Tensor, robust: float = 0.0, *, training: bool = True, only: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        places = [self.place] if only is None else [self.place for _ in only]
        return self.forward(x, robust, training=training, only=places)

    def fixed(self, place: int, robust: float = 0.0) -> Predict:
        return self.forward.fixed(self.place, robust)


@dataclass(frozen=True)
class Heard:
    """A forward that keeps the logits that it was trained on."""

    forward: Forward
    seen: list[Tensor] = field(default_factory=list)

    @property
    def widths(self) -> Sequence[Width]:
        return self.forward.widths

    def __call__(
        self, x: Tensor, robust: float = 0.0, *, training: bool = True, only: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        logits = self.forward(x, robust, training=training, only=only)
        if training:
            self.seen.extend(logits)
        return logits

    def fixed(self, place: int, robust: float = 0.0) -> Predict:
        return self.forward.fixed(place, robust)


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
