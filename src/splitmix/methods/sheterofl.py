"""SHeteroFL: HeteroFL whose clients train all widths they can afford on every batch, as a slimmable net."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitmix.core.types import Layout, Part, Profile, Setting, Width, parse_width
from splitmix.methods.nested import affordable, leading, nested_layout


@dataclass(frozen=True)
class SHeteroFL:
    """One net; a client sums the losses of all affordable widths among those `listed`, and is weighed once.

    `released_weighting` repeats what the authors' code does, to understand the printed numbers: a client counts as
    often as it trains widths (4:3:2:1 for the budgets 1 1/2 1/4 1/8), and a width that is listed twice trains twice.
    """

    listed: tuple[Width, ...]
    released_weighting: bool = False

    @classmethod
    def for_setting(
        cls, setting: Setting, *, listed: Sequence[Any] | None = None, released_weighting: bool = False
    ) -> "SHeteroFL":
        """The budgets are the widths, unless others are listed, such as one for each group: 1/8 1 1 1."""
        given = listed.split() if isinstance(listed, str) else listed
        widths = setting.budgets if given is None else tuple(map(parse_width, given))
        return cls(tuple(sorted(widths)), released_weighting)

    @property
    def layout(self) -> Layout:
        return nested_layout(self.widths)

    @property
    def widths(self) -> tuple[Width, ...]:
        return tuple(sorted(set(self.listed)))

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client all the widths that fit its budget, nested in one download."""
        widths = self.listed if self.released_weighting else self.widths
        return {p.client: tuple(Part(0, width) for width in affordable(widths, p)) for p in cohort}

    def compose(self, width: Width) -> tuple[Part, ...]:
        return leading(width, self.widths)

    def weigh(self, parts: tuple[Part, ...]) -> int:
        return len(parts) if self.released_weighting else 1
