"""FedAvg: one net of one width for all clients (McMahan et al., AISTATS 2017)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitmix.core.errors import UserError, unknown
from splitmix.core.types import Layout, Part, Profile, Setting, Width, parse_width
from splitmix.methods.nested import leading

MODES = ("free", "strict")


@dataclass(frozen=True)
class FedAvg:
    """One net; `free`: every client trains it, an upper bound that asks too much of the weak ones.

    `strict`: only clients that can afford it train it, so the data of the others is lost.
    """

    width: Width
    mode: str = "free"

    @classmethod
    def for_setting(cls, setting: Setting, *, width: Any = None, mode: str = "free") -> "FedAvg":
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
