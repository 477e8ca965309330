"""What an attack is, and which answers of a model stand against it."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from splitmix.core.errors import UserError

Predict = Callable[[Tensor], Tensor]  # images -> logits (batch, class), or (base, batch, class) of several bases


class Attack(Protocol):
    """Makes adversarial images; `name` says in full which attack it is, `weak` that it proves little robustness."""

    @property
    def name(self) -> str: ...

    @property
    def weak(self) -> bool: ...

    def __call__(self, predict: Predict, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor: ...


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
