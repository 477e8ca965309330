"""FjORD: ordered dropout, a nested width drawn anew for every batch (Horvath et al., NeurIPS 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitmix.core.errors import UserError
from splitmix.core.objective import DrawnWidth, Objective
from splitmix.core.types import Layout, Part, Profile, Setting, Width
from splitmix.methods.nested import affordable, leading, nested_layout


@dataclass(frozen=True)
class FjORD:
    """One net as wide as the widest of `widths`, ascending; each batch trains one of the client's affordable widths.

    With `distill` the widest affordable one trains on every batch too and teaches the drawn one: `share` of the drawn
    one's loss is the divergence from the teacher's answers at a `temperature`.
    """

    widths: tuple[Width, ...]
    distill: bool = False
    share: float = 0.5
    temperature: float = 1.0

    @classmethod
    def for_setting(
        cls, setting: Setting, *, distill: bool = False, share: float = 0.5, temperature: float = 1.0
    ) -> "FjORD":
        """The budgets are the widths."""
        return cls(tuple(sorted(set(setting.budgets))), distill, share, temperature)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UserError(f"share {self.share} of fjord's distillation is outside [0, 1]; try 0.5")
        if self.temperature <= 0:
            raise UserError(f"temperature {self.temperature} of fjord's distillation is not positive; try 1")

    @property
    def layout(self) -> Layout:
        return nested_layout(self.widths)

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client all the widths that fit its budget, nested in one download; its loss draws among them."""
        return {p.client: tuple(Part(0, width) for width in affordable(self.widths, p)) for p in cohort}

    def compose(self, width: Width) -> tuple[Part, ...]:
        return leading(width, self.widths)

    def objective(self, given: Objective) -> Objective:
        return DrawnWidth(given, self.distill, self.share, self.temperature)
