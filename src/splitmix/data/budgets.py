"""Budgets: the largest total width each client can train, fixed or redrawn every round, as exact fractions."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator

from splitmix.core.errors import UserError, unknown
from splitmix.core.reproducible import rng_for
from splitmix.core.width import Width, parse_width


def parse_widths(value: Any) -> tuple[Width, ...]:
    """Read several widths: text with spaces or commas, a list, or a single number.

    >>> parse_widths("1/8, 1")
    (Fraction(1, 8), Fraction(1, 1))
    """
    if isinstance(value, str):
        value = [word for word in re.split(r"[\s,]+", value) if word]
    widths = tuple(parse_width(item) for item in (value if isinstance(value, Iterable) else [value]))
    if not widths:
        raise UserError("there are no widths; give at least one, such as 1/8")
    return widths


class Law(Protocol):
    """Draws one budget per client."""

    def __call__(self, clients: int, rng: Generator) -> tuple[Width, ...]: ...


@dataclass(frozen=True)
class Groups:
    """Equal groups of clients, one per width, from the smallest width up; a width may be given several times.

    >>> [str(width) for width in Groups(parse_widths("1 1/2"))(5, None)]
    ['1/2', '1/2', '1/2', '1', '1']
    """

    widths: tuple[Width, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", parse_widths(self.widths))

    def __call__(self, clients: int, rng: Generator) -> tuple[Width, ...]:
        widths = sorted(self.widths)
        return tuple(widths[len(widths) * client // clients] for client in range(clients))


@dataclass(frozen=True)
class LogNormal:
    """Many weak clients and a few strong ones: a log-normal law of median `scale`, given that a client fits one atom.

    A client gets the largest multiple of the atom below its place in the law; what lies above 1 counts as 1.
    """

    s: float = 0.5
    scale: float = 0.4
    atom: Width = Fraction(1, 8)

    def __post_init__(self) -> None:
        object.__setattr__(self, "atom", parse_width(self.atom))
        for name, value in (("s", self.s), ("scale", self.scale)):
            if not 0 < value < math.inf:
                raise UserError(f"{name} {value} of the log-normal law is not positive; the paper has s 0.5, scale 0.4")

    def __call__(self, clients: int, rng: Generator) -> tuple[Width, ...]:
        widths = [self.atom * i for i in range(1, int(1 / self.atom) + 1)]
        below = [NormalDist(0, self.s).cdf(math.log(width / self.scale)) for width in widths]
        if below[0] > 1 - 1e-12:
            raise UserError(
                f"with s {self.s} and scale {self.scale} no client would reach the atom {self.atom}; "
                "choose a larger scale"
            )
        starts = [int(clients * (mass - below[0]) / (1 - below[0])) for mass in below]
        counts = np.diff([*starts, clients])
        return tuple(width for width, count in zip(widths, counts, strict=True) for _ in range(count))


@dataclass(frozen=True)
class Each:
    """One width per client, in the order of the clients."""

    widths: tuple[Width, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", parse_widths(self.widths))

    def __call__(self, clients: int, rng: Generator) -> tuple[Width, ...]:
        if len(self.widths) != clients:
            raise UserError(
                f"{len(self.widths)} budgets for {clients} clients; give one per client, or groups of widths"
            )
        return self.widths


LAWS: dict[str, type] = {"groups": Groups, "lognormal": LogNormal, "each": Each}
BUDGETS: dict[str, Law] = {
    "full": Groups(parse_widths("1")),
    "exponential": Groups(parse_widths("1/8 1/4 1/2 1")),
    "skewed-8111": Groups(parse_widths("1/8 1 1 1")),  # the figures are the divisors of 1: 8 stands for 1/8
    "skewed-8211": Groups(parse_widths("1/8 1/2 1 1")),
    "skewed-8221": Groups(parse_widths("1/8 1/2 1/2 1")),
    "skewed-8441": Groups(parse_widths("1/8 1/4 1/4 1")),
    "steps-eighth": Groups(parse_widths("1/8 1/4 3/8 1/2")),  # nobody can train the full net
    "steps-quarter": Groups(parse_widths("1/4 1/2 3/4 1")),
    "lognormal": LogNormal(),
}


@dataclass(frozen=True)
class Budgets:
    """Who can train how much: the law's budgets, handed to the clients in some order.

    `order` is "in order" (the law's first budget to client 0), "shuffled" (by the seed), or the clients' numbers in the
    order in which they are served. With `redraw` a device's spare capacity changes: all is shuffled anew every round.

    >>> [str(width) for width in Budgets(BUDGETS["exponential"], clients=4, order=(3, 2, 1, 0)).at(0)]
    ['1', '1/2', '1/4', '1/8']
    """

    law: Law
    clients: int
    order: str | tuple[int, ...] = "in order"
    redraw: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise UserError(f"{self.clients} clients is too few; ask for 1 or more")
        if self.seed < 0:
            raise UserError(f"seed {self.seed} is negative; give 0 or a positive whole number")
        if isinstance(self.order, str):
            if self.order not in ("in order", "shuffled"):
                raise unknown("order of budgets", self.order, ["in order", "shuffled"])
            return
        if self.redraw:
            raise UserError("budgets that are redrawn every round cannot keep an order; leave out order or redraw")
        if not isinstance(self.order, tuple) or sorted(map(str, self.order)) != sorted(map(str, range(self.clients))):
            raise UserError(f"the order of budgets must name each client from 0 to {self.clients - 1} once")

    def at(self, round: int) -> tuple[Width, ...]:
        """The budget of every client in this round."""
        return self._handed(rng_for(self.seed, "budgets", round)) if self.redraw else self._fixed

    @cached_property
    def _fixed(self) -> tuple[Width, ...]:
        """Of every round, if it does not matter which; found once, however many clients there are."""
        return self._handed(rng_for(self.seed, "budgets"))

    def _handed(self, rng: Generator) -> tuple[Width, ...]:
        """The law's budgets, each with its client."""
        drawn = self.law(self.clients, rng)
        if len(drawn) != self.clients:
            raise UserError(f"the law {self.law!r} gave {len(drawn)} budgets for {self.clients} clients; give one each")
        served: Iterable[int] = range(self.clients)
        if self.redraw or self.order == "shuffled":
            served = rng.permutation(self.clients).tolist()
        elif not isinstance(self.order, str):
            served = self.order
        else:
            return tuple(drawn)
        budgets = dict(zip(served, drawn, strict=True))
        return tuple(budgets[client] for client in range(self.clients))


class RoundBudgets(Protocol):
    """Whatever says what each client can train in a round: a law, or the clients themselves."""

    def at(self, round: int) -> tuple[Width, ...]: ...


def parse_budgets(value: Any, *, clients: int, seed: int = 0) -> Budgets:
    """Read budgets: a preset's name, widths as text or list (one equal group each), or a mapping with settings.

    >>> parse_budgets("1/8, 1", clients=2).at(0)
    (Fraction(1, 8), Fraction(1, 1))
    >>> parse_budgets({"name": "each", "widths": ["1", "1/2"]}, clients=2).at(0)
    (Fraction(1, 1), Fraction(1, 2))
    """
    if isinstance(value, Budgets):
        return value
    settings = dict(value) if isinstance(value, Mapping) else {}
    order = settings.pop("order", "in order")
    redraw = settings.pop("redraw", False)
    seed = settings.pop("seed", seed)
    if isinstance(order, list):
        order = tuple(order)
    law = parse_law(settings if isinstance(value, Mapping) else value)
    return Budgets(law, clients, order, redraw, seed)


def parse_law(value: Any) -> Law:
    """Read the law alone: a preset's name, widths as text or list, or a mapping such as {name: groups, widths: ...}."""
    if isinstance(value, Mapping):
        return _law_with_settings(dict(value))
    if isinstance(value, str) and value in BUDGETS:
        return BUDGETS[value]
    if isinstance(value, str) and not re.match(r"[\d.+-]", value.strip()):
        raise unknown("budgets", value, BUDGETS)
    if callable(value):
        law: Law = value
        return law
    return Groups(parse_widths(value))


def check_budgets(budgets: Budgets, atom: Width) -> None:
    """Refuse budgets that are too small for a single base."""
    given = budgets.at(0)
    small = [client for client, width in enumerate(given) if width < atom]
    if small:
        raise UserError(
            f"client {small[0]} has a budget of {given[small[0]]}, below the atom {atom}, and could train no base "
            f"({len(small)} of {budgets.clients} clients); raise these budgets to {atom} or choose a smaller atom"
        )


def _law_with_settings(settings: dict[str, Any]) -> Law:
    if "name" not in settings and "widths" in settings:
        settings["name"] = "groups"
    name = str(settings.pop("name", ""))
    if name in BUDGETS and not settings:
        return BUDGETS[name]
    if name not in LAWS:
        if name in BUDGETS:
            raise UserError(f"the budgets {name} have no setting '{next(iter(settings))}'; use groups with your widths")
        raise unknown("budgets", name, {*BUDGETS, *LAWS})
    known = [field.name for field in fields(LAWS[name])]
    for key in settings:
        if key not in known:
            raise unknown(f"setting of the budgets {name}", str(key), [*known, "order", "redraw", "seed"])
    try:
        law: Law = LAWS[name](**settings)
    except TypeError:
        raise UserError(
            f"the budgets {name} cannot be made from {settings or 'nothing'}; give {', '.join(known)}"
        ) from None
    return law
