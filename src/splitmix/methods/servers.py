"""The table of servers: how the next model follows from what a round changed, for every method alike.

The change of a round is d = mean of what came - model. Without a server the next model is that mean.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

from torch import Tensor

from splitmix.core.errors import UserError, unknown
from splitmix.core.method import Server
from splitmix.core.width import is_number


@dataclass(frozen=True)
class Momentum:
    """v <- beta v + d, and the model moves by v (FedAvgM, Hsu et al. 2019)."""

    beta: float = 0.5
    slots: ClassVar = ("velocity",)

    def __post_init__(self) -> None:
        if not is_factor(self.beta):
            raise UserError(f"beta {self.beta!r} of the server momentum is outside [0, 1); try 0.5")

    def step(self, change: Tensor, kept: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        velocity = self.beta * kept[0] + change
        return velocity, (velocity,)


@dataclass(frozen=True)
class Adam:
    """m <- beta1 m + (1 - beta1) d, v <- beta2 v + (1 - beta2) d^2; the model moves by lr m / (sqrt(v) + tau).

    FedAdam of Reddi et al., ICLR 2021: without a correction of the first steps, in which m and v are small alike.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    slots: ClassVar = ("mean", "square")

    def __post_init__(self) -> None:
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not is_factor(value):
                raise UserError(f"{name} {value!r} of the server adam is outside [0, 1); try {getattr(Adam, name)}")
        for name, value in (("lr", self.lr), ("tau", self.tau)):
            if not is_number(value) or not 0 < value < math.inf:
                raise UserError(f"{name} {value!r} of the server adam is not positive; try {getattr(Adam, name)}")

    def step(self, change: Tensor, kept: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        mean = self.beta1 * kept[0] + (1 - self.beta1) * change
        square = self.beta2 * kept[1] + (1 - self.beta2) * change.square()
        return self.lr * mean / (square.sqrt() + self.tau), (mean, square)


def find_server(value: str | Mapping[str, Any]) -> Server | None:
    """A server by its name, or by {name=..., its own settings}; None for the mean.

    >>> find_server({"name": "momentum", "beta": 0.9})
    Momentum(beta=0.9)
    """
    options: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"a server needs a name, got {value!r}; choose one of {', '.join(SERVERS)}")
    if name not in SERVERS:
        raise unknown("server", name, SERVERS)
    own = list(signature(SERVERS[name]).parameters)
    for key in options:
        if key not in own:
            raise unknown(f"setting of server {name}", key, own)
    return SERVERS[name](**options)


SERVERS: dict[str, Callable[..., Server | None]] = {"mean": lambda: None, "momentum": Momentum, "adam": Adam}


def is_factor(value: object) -> bool:
    """Whether it is a number by which what is kept fades."""
    return is_number(value) and 0 <= value < 1
