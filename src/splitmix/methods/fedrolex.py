"""FedRolex: windows roll over the wide net, so that weak clients train all of it (Alam et al., NeurIPS 2022)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitmix.core.types import Layout, Part, Profile, Setting, Width, parse_width
from splitmix.methods.nested import affordable, leading, nested_layout


@dataclass(frozen=True)
class FedRolex:
    """One net as wide as the widest of `widths`, ascending; in round t a window begins at channel t of each layer."""

    widths: tuple[Width, ...]

    @classmethod
    def for_setting(cls, setting: Setting, *, width: Any = None) -> "FedRolex":
        """The budgets are the widths; the server's net may be of a larger `width` than any client can train."""
        own = set() if width is None else {parse_width(width)}
        return cls(tuple(sorted({*setting.budgets, *own})))

    @property
    def layout(self) -> Layout:
        return nested_layout(self.widths)

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client the window of its budget that begins `round` channels on, wrapping around."""
        return {p.client: (Part(0, affordable(self.widths, p)[-1], shift=round),) for p in cohort}

    def compose(self, width: Width) -> tuple[Part, ...]:
        return leading(width, self.widths)
