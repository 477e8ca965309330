"""Methods of one net whose narrower nets are windows of it: FedAvg, HeteroFL, SHeteroFL, FedRolex, FjORD."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from splitmix.core.errors import UserError, unknown
from splitmix.core.method import Method
from splitmix.core.objective import Objective
from splitmix.core.types import Layout, Part, Profile, Setting
from splitmix.core.width import Width, parse_width
from splitmix.objectives.losses import DrawnWidth

MODES = ("free", "strict")


@dataclass(frozen=True)
class FedAvg(Method):
    """One net; `free`: every client trains it, an upper bound that asks too much of the weak ones.

    `strict`: only clients that can afford it train it, so the data of the others is lost.
    """

    width: Width
    mode: str = "free"

    @classmethod
    def for_setting(cls, setting: Setting, *, width: Any = None, mode: str = "free") -> Self:
        """As wide as the largest budget, unless told otherwise."""
        widest = max(setting.budgets)
        method = cls(widest if width is None else parse_width(width), mode)
        if method.respects_budgets and method.width > widest:
            raise UserError(
                f"no client can train width {method.width}, the largest budget is {widest}; "
                f"choose a width up to {widest}, or mode 'free'"
            )
        return method

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("mode of fedavg", self.mode, MODES)

    @property
    def respects_budgets(self) -> bool:
        return self.mode == "strict"

    @property
    def layout(self) -> Layout:
        return Layout(1, self.width)

    @property
    def widths(self) -> tuple[Width, ...]:
        return (self.width,)

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """The whole net to every client that takes part; no parts to the others."""
        net = (Part(0, self.width),)
        return {p.client: net if self.mode == "free" or p.budget >= self.width else () for p in cohort}

    def compose(self, width: Width) -> tuple[Part, ...]:
        return leading(width, self.widths)


@dataclass(frozen=True)
class Nested(Method):
    """One net as wide as the widest of the widths that are `listed`; each of them is served by its leading window."""

    listed: tuple[Width, ...]

    @classmethod
    def for_setting(cls, setting: Setting) -> Self:
        """The budgets are the widths."""
        return cls(tuple(sorted(set(setting.budgets))))

    @property
    def layout(self) -> Layout:
        return Layout(1, self.widths[-1], nested=self.widths[:-1])

    @property
    def widths(self) -> tuple[Width, ...]:
        return tuple(sorted(set(self.listed)))

    def compose(self, width: Width) -> tuple[Part, ...]:
        return leading(width, self.widths)


@dataclass(frozen=True)
class HeteroFL(Nested):
    """One net as wide as the widest of `widths`, which are ascending; each is trained by the clients of that budget.

    Server: w[i] <- sum_k |D_k| w_k[i] / sum_k |D_k|, over the clients k whose slice holds entry i.
    """

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client the leading window of its budget."""
        return {profile.client: (Part(0, affordable(self.widths, profile)[-1]),) for profile in cohort}


@dataclass(frozen=True)
class SHeteroFL(Nested):
    """One net; a client sums the losses of all affordable widths among those `listed`, and is weighed once.

    `released_weighting` repeats what the authors' code does, to understand the printed numbers: a client counts as
    often as it trains widths (4:3:2:1 for the budgets 1 1/2 1/4 1/8), and a width that is listed twice trains twice.
    """

    released_weighting: bool = False

    @classmethod
    def for_setting(
        cls, setting: Setting, *, listed: Sequence[Any] | None = None, released_weighting: bool = False
    ) -> Self:
        """The budgets are the widths, unless others are listed, such as one for each group: 1/8 1 1 1."""
        given = listed.split() if isinstance(listed, str) else listed
        widths = setting.budgets if given is None else tuple(map(parse_width, given))
        return cls(tuple(sorted(widths)), released_weighting)

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client all the widths that fit its budget, nested in one download."""
        return all_affordable(self.listed if self.released_weighting else self.widths, cohort)

    def weigh(self, parts: tuple[Part, ...]) -> int:
        return len(parts) if self.released_weighting else 1


@dataclass(frozen=True)
class FedRolex(Nested):
    """One net as wide as the widest of `widths`, ascending; in round t a window begins at channel t of each layer."""

    @classmethod
    def for_setting(cls, setting: Setting, *, width: Any = None) -> Self:
        """The budgets are the widths; the server's net may be of a larger `width` than any client can train."""
        own = set() if width is None else {parse_width(width)}
        return cls(tuple(sorted({*setting.budgets, *own})))

    @property
    def layout(self) -> Layout:
        return replace(super().layout, moving=True)

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client the window of its budget that begins `round` channels on, wrapping around."""
        return {p.client: (Part(0, affordable(self.widths, p)[-1], shift=round),) for p in cohort}


@dataclass(frozen=True)
class FjORD(Nested):
    """One net as wide as the widest of `widths`, ascending; each batch trains one of the client's affordable widths.

    With `distill` the widest affordable one trains on every batch too and teaches the drawn one: `share` of the drawn
    one's loss is the divergence from the teacher's answers at a `temperature`.
    """

    distill: bool = False
    share: float = 0.5
    temperature: float = 1.0

    @classmethod
    def for_setting(
        cls, setting: Setting, *, distill: bool = False, share: float = 0.5, temperature: float = 1.0
    ) -> Self:
        """The budgets are the widths."""
        return replace(super().for_setting(setting), distill=distill, share=share, temperature=temperature)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UserError(f"share {self.share} of fjord's distillation is outside [0, 1]; try 0.5")
        if self.temperature <= 0:
            raise UserError(f"temperature {self.temperature} of fjord's distillation is not positive; try 1")

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client all the widths that fit its budget, nested in one download; its loss draws among them."""
        return all_affordable(self.widths, cohort)

    def objective(self, given: Objective) -> Objective:
        return DrawnWidth(given, self.distill, self.share, self.temperature)


def affordable(widths: Sequence[Width], profile: Profile) -> tuple[Width, ...]:
    """The widths that fit a client's budget, ascending.

    >>> affordable((Width(1, 4), Width(1, 2), Width(1)), Profile(client=7, budget=Width(3, 4), samples=10))
    (Fraction(1, 4), Fraction(1, 2))
    """
    fitting = tuple(width for width in widths if width <= profile.budget)
    if not fitting:
        raise UserError(
            f"client {profile.client} has budget {profile.budget}, below the narrowest width {widths[0]}; "
            "give it a larger budget or the method a narrower width"
        )
    return fitting


def all_affordable(widths: Sequence[Width], cohort: Sequence[Profile]) -> dict[int, tuple[Part, ...]]:
    """For each client the leading windows of all the widths that fit its budget."""
    return {p.client: tuple(Part(0, width) for width in affordable(widths, p)) for p in cohort}


def leading(width: Width, widths: Sequence[Width]) -> tuple[Part, ...]:
    """The leading window that serves a width."""
    if width not in widths:
        raise UserError(f"width {width} was never trained; choose one of {', '.join(map(str, widths))}")
    return (Part(0, width),)
