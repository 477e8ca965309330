"""Two tables of optimizers, for every method alike: by which steps clients learn, and how servers follow them.

Of a server: the change of a round is d = mean of what came - model. Without one the next model is that mean.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from splitmix.core.errors import UserError, by_name, make_named
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
    name, options = by_name("server", value, SERVERS)
    return make_named("server", name, SERVERS[name], options)


def find_optimizer(value: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """What a client's plan says of its optimizer, by its name or by {name=..., its own settings}.

    >>> find_optimizer({"name": "adamw", "beta1": 0.8})
    {'optimizer': 'adamw', 'betas': (0.8, 0.999)}
    """
    name, options = by_name("optimizer", value, OPTIMIZERS)
    return make_named("optimizer", name, OPTIMIZERS[name], options)


def _sgd() -> dict[str, Any]:
    return {"optimizer": "sgd"}


def _adam(beta1: float = 0.9, beta2: float = 0.999) -> dict[str, Any]:
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not is_factor(value):
            raise UserError(f"{name} {value!r} of the optimizer adam is outside [0, 1); try 0.9 and 0.999")
    return {"optimizer": "adam", "betas": (float(beta1), float(beta2))}


def _adamw(beta1: float = 0.9, beta2: float = 0.999) -> dict[str, Any]:
    return _adam(beta1, beta2) | {"optimizer": "adamw"}


OPTIMIZERS: dict[str, Callable[..., dict[str, Any]]] = {"sgd": _sgd, "adam": _adam, "adamw": _adamw}
SERVERS: dict[str, Callable[..., Server | None]] = {"mean": lambda: None, "momentum": Momentum, "adam": Adam}


def is_factor(value: object) -> bool:
    """Whether it is a number by which what is kept fades."""
    return is_number(value) and 0 <= value < 1
