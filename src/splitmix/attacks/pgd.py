"""Projected gradient descent (PGD): images that a net gets wrong, each within a small distance of a given one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from splitmix.core.errors import UserError, unknown
from splitmix.core.objective import Predict, check_labels


@dataclass(frozen=True)
class PGD:
    """Walks up the cross-entropy, never further than `eps` from the images and never out of [0, 1].

    The defaults are the paper's. With one restart the end of the walk counts; with several each sample keeps the first
    image that fools the net, or else that of the largest loss among the ends and the image itself.

    >>> print(PGD().name)
    L-inf PGD, eps 8/255, 7 steps of 2/255, random start, 1 restart
    >>> PGD(steps=20, restarts=5).weak
    False
    """

    eps: float = 8 / 255
    steps: int = 7
    step: float = 2 / 255
    norm: str = "linf"
    restarts: int = 1
    random_start: bool = True

    def __post_init__(self) -> None:
        if self.norm not in BALLS:
            raise unknown("norm", str(self.norm), BALLS)
        check_eps(self.eps)
        if not (math.isfinite(self.step) and (self.step > 0 or self.eps == 0)):
            raise UserError(f"step {self.step} leads nowhere; give a number above 0, such as 2/255")
        for what, count in (("steps", self.steps), ("restarts", self.restarts)):
            if not isinstance(count, int) or count < 1:
                raise UserError(f"{what}={count} makes no attack; give a whole number from 1 up")
        if self.restarts > 1 and not self.random_start:
            raise UserError(f"{self.restarts} restarts at the same point are one; set random_start or restarts=1")

    @property
    def name(self) -> str:
        """All settings in words, to be printed beside every robust accuracy."""
        norm, eps = BALLS[self.norm].label, f"eps {in_pixels(self.eps)}"
        if self.steps == 1 and self.step == self.eps and not self.random_start:
            return f"{norm} FGSM, {eps}"
        steps = f"{_count(self.steps, 'step')} of {in_pixels(self.step)}"
        start = "random start" if self.random_start else "start at the image"
        return f"{norm} PGD, {eps}, {steps}, {start}, {_count(self.restarts, 'restart')}"

    @property
    def weak(self) -> bool:
        """Fewer than 20 steps, or a single start, or steps too short to cross the ball."""
        return self.steps < 20 or self.restarts < 2 or self.steps * self.step < 2 * self.eps

    def __call__(self, predict: Predict, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        """Adversarial images like x (batch, ...), or (base, batch, ...) where `predict` gives logits of several bases.

        All bases are attacked at once, each with images of its own; x may be such images already, of five dimensions.
        Parameters get no gradient.
        """
        with torch.inference_mode(False), torch.enable_grad():
            x, lead = _for_each_base(predict, x.detach(), y)
            if self.eps == 0:
                return x
            if self.restarts == 1:
                return self._walk(predict, x, y, lead, rng)
            return self._strongest(predict, x, y, lead, rng)

    def _strongest(self, predict: Predict, x: Tensor, y: Tensor, lead: int, rng: torch.Generator) -> Tensor:
        """The best of all walks; samples that are fooled (by all bases) walk no more."""
        best, left = x.clone(), torch.arange(len(y), device=y.device)
        for _ in range(self.restarts):
            start, found = (images.index_select(lead - 1, left) for images in (x, best))
            found, right = _stronger(predict, y[left], found, self._walk(predict, start, y[left], lead, rng))
            best.index_copy_(lead - 1, left, found)
            left = left[right if lead == 1 else right.any(0)]
            if not len(left):
                break
        return best

    def _walk(self, predict: Predict, x: Tensor, y: Tensor, lead: int, rng: torch.Generator) -> Tensor:
        ball = BALLS[self.norm]
        change = ball.draw(x, self.eps, lead, rng) if self.random_start else torch.zeros_like(x)
        here, project = (x + change).clamp_(0, 1), ball.around(x, self.eps, lead)
        for _ in range(self.steps):
            loss = losses(predict(here.requires_grad_()), y).sum()  # bases are independent: one sum serves all
            (slope,) = torch.autograd.grad(loss, here)
            with torch.no_grad():
                here = project(here.detach().add_(ball.ascend(slope, self.step, lead)))
        return here


def losses(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample: (batch,) or (base, batch)."""
    labels = y.expand(logits.shape[:-1])
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


class Ball(Protocol):
    """What PGD must know of a norm; the first `lead` axes of a tensor number the samples."""

    label: str

    def draw(self, x: Tensor, eps: float, lead: int, rng: torch.Generator) -> Tensor:
        """A change for each image, uniform in the ball."""
        ...

    def ascend(self, slope: Tensor, step: float, lead: int) -> Tensor:
        """The step that increases the loss most; it may be written in place of the slope."""
        ...

    def around(self, x: Tensor, eps: float, lead: int) -> Callable[[Tensor], Tensor]:
        """Gives the nearest point that is in the ball around x and in [0, 1], written to what it gets."""
        ...


class Linf:
    """No pixel changes by more than eps."""

    label = "L-inf"

    def draw(self, x: Tensor, eps: float, lead: int, rng: torch.Generator) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype).uniform_(-eps, eps, generator=rng).to(x.device)

    def ascend(self, slope: Tensor, step: float, lead: int) -> Tensor:
        return slope.sign_().mul_(step)

    def around(self, x: Tensor, eps: float, lead: int) -> Callable[[Tensor], Tensor]:
        low, high = (x - eps).clamp_(min=0), (x + eps).clamp_(max=1)
        return lambda point: point.clamp_(low, high)


class L2:
    """The changes of an image, squared and summed over its pixels, stay within eps squared."""

    label = "L2"

    def draw(self, x: Tensor, eps: float, lead: int, rng: torch.Generator) -> Tensor:
        direction = torch.empty(x.shape, dtype=x.dtype).normal_(generator=rng)
        share = torch.rand(x.shape[:lead], dtype=x.dtype, generator=rng)  # of the volume
        radius = eps * share ** (1 / math.prod(x.shape[lead:]))
        return (direction * _spread(radius / _length(direction, lead), x)).to(x.device)

    def ascend(self, slope: Tensor, step: float, lead: int) -> Tensor:
        steepest = slope.abs().flatten(lead).amax(-1).clamp(min=torch.finfo(slope.dtype).tiny)
        slope = slope / _spread(steepest, slope)  # the square of a tiny slope would be 0
        return slope * _spread(step / _length(slope, lead), slope)

    def around(self, x: Tensor, eps: float, lead: int) -> Callable[[Tensor], Tensor]:
        return lambda point: self.project(x, point, eps, lead)

    def project(self, x: Tensor, point: Tensor, eps: float, lead: int) -> Tensor:
        """It is x + clamp(s * change), with the largest s <= 1 that the ball allows.

        Each turn counts what the pixels stopped by the box use up and spends the rest on the others: s only grows,
        and it stays in the ball.
        """
        change = point - x
        low, high = -x, 1 - x
        scale = (eps / _length(change, lead)).clamp(max=1)
        for _ in range(20):
            wanted = change * _spread(scale, x)
            allowed = wanted.clamp(low, high)
            stopped = allowed != wanted
            left = (eps**2 - allowed.where(stopped, 0).flatten(lead).square().sum(-1)).clamp(min=0).sqrt()
            grown = (left / _length(change.where(~stopped, 0), lead)).clamp(max=1)
            if not (grown > scale).any():
                break
            scale = grown.maximum(scale)
        return (x + allowed).clamp_(0, 1)


BALLS: Mapping[str, Ball] = {"linf": Linf(), "l2": L2()}


def _for_each_base(predict: Predict, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """Images for each base that `predict` runs, and how many axes number the samples; refuses what cannot be."""
    if not ((x >= 0) & (x <= 1)).all():
        raise UserError("an attack needs images in [0, 1]; scale them, and look for NaN")
    own = x.dim() == 5
    with torch.no_grad():
        logits = predict(x[:, :2] if own else x[:2])  # two images: norms may need a variance
    check_labels(y, logits.shape[-1])
    if logits.dim() == 2:
        return x, 1
    return _bases_beside_channels(x if own else x.expand(len(logits), *x.shape)), 2


def _bases_beside_channels(x: Tensor) -> Tensor:
    """The same images, in the order in memory that stacked bases read without a copy (channels last)."""
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2) if x.dim() == 5 else x


def _stronger(predict: Predict, y: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Of two images for each sample the one that fools the net; if both or neither do, that of the larger loss.

    And which of those chosen the net still gets right.
    """
    with torch.no_grad():
        logits = [predict(x) for x in (one, other)]
        (loss, new_loss), (right, new_right) = zip(*((losses(z, y), z.argmax(-1) == y) for z in logits), strict=True)
    better = (right & ~new_right) | ((right == new_right) & (new_loss > loss))
    return torch.where(_spread(better, other), other, one), right & new_right


def _length(x: Tensor, lead: int) -> Tensor:
    """L2 norm of each sample, never 0: it is divided by."""
    return torch.linalg.vector_norm(x.flatten(lead), dim=-1).clamp(min=1e-12)


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """One value for each sample, with axes for its pixels."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))


def check_eps(eps: float) -> None:
    """Refuse what is no distance."""
    if not (math.isfinite(eps) and eps >= 0):
        raise UserError(f"eps {eps} is not a distance; give a number from 0 up, such as 8/255")


def in_pixels(value: float) -> str:
    """A distance in steps of a byte.

    >>> in_pixels(8 / 255)
    '8/255'
    """
    return f"{255 * value:.4g}/255"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
