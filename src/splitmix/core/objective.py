"""What a client minimises: objectives, attacks that they may make on its images, and trials that judge a round.

Both are protocols; the tables `OBJECTIVES` and `ATTACKS` hold those that a config can name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from splitmix.core.errors import UserError
from splitmix.core.width import Width

Predict = Callable[[Tensor], Tensor]  # images -> logits (batch, class), or (base, batch, class) of several bases


class Forward(Protocol):
    """Runs the job's parts on a batch: logits (base, batch, class) for each width among the parts."""

    @property
    def widths(self) -> Sequence[Width]:
        """The widths among the parts, in the order of the logits."""
        ...

    def __call__(
        self, x: Tensor, robust: float = 0.0, *, training: bool = True, only: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        """Logits of all widths, or of those at the places `only`; nothing else is computed."""
        ...

    def fixed(self, place: int, robust: float = 0.0) -> Predict:
        """The parts of the width at a place as a function of images: fixed norms, and no gradient for the weights."""
        ...


class Attack(Protocol):
    """Makes adversarial images; `name` says in full which attack it is, `weak` that it proves little robustness."""

    @property
    def name(self) -> str: ...

    @property
    def weak(self) -> bool: ...

    def __call__(self, predict: Predict, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Trial:
    """Accuracy at a dial, on images as they are or under an attack; it has a `share` in what a round is judged by."""

    share: float = 1.0
    robust: float = 0.0
    attack: Attack | None = None


@runtime_checkable
class Objective(Protocol):
    """Local loss; the call must be written, the rest is what most objectives say, and comes by inheriting from this."""

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        """Loss of one batch, summed over the parts of a job; `rng` is the client's own."""
        ...

    def terms(self, parts: int) -> int:
        """How many of a job's parts one batch trains."""
        return parts

    @property
    def needs(self) -> Mapping[str, bool]:
        """Settings of the net without which it cannot be trained so; a net that needs any has a robustness dial."""
        return {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What the rounds of a run are judged by; the shares sum to 1."""
        return (Trial(),)


def withstood(
    attack: Attack, served: Predict, x: Tensor, y: Tensor, rng: torch.Generator, *, surrogate: Predict | None = None
) -> Tensor:
    """Which answers of the served model are right both on the images and on what the attack makes of them.

    The attack knows the very model that is served (white box), or else only a `surrogate` (black box, by transfer).
    Images that are misread anyway need no attack.
    """
    with torch.no_grad():
        logits = served(x)
    check_labels(y, logits.shape[-1])
    right = logits.argmax(-1) == y
    if right.any():
        made = attack(surrogate or served, x[right], y[right], rng)
        with torch.no_grad():
            right[right.clone()] = served(made).argmax(-1) == y[right]
    return right


def check_labels(y: Tensor, classes: int) -> None:
    """Refuse labels that a net of so many classes cannot give."""
    if not ((y >= 0) & (y < classes)).all():
        raise UserError(
            f"labels from {int(y.min())} to {int(y.max())} do not fit a net of {classes} classes; "
            f"give labels from 0 to {classes - 1}"
        )
