"""HeteroFL: narrow nets are slices of one wide net; a client trains the widest it can (Diao et al., ICLR 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitmix.core.types import Layout, Part, Profile, Setting, Width
from splitmix.methods.nested import affordable, leading, nested_layout


@dataclass(frozen=True)
class HeteroFL:
    """One net as wide as the widest of `widths`, which are ascending; each is trained by the clients of that budget.

    Server: w[i] <- sum_k |D_k| w_k[i] / sum_k |D_k|, over the clients k whose slice holds entry i.
    """

    widths: tuple[Width, ...]

    @classmethod
    def for_setting(cls, setting: Setting) -> "HeteroFL":
        """The budgets are the widths."""
        return cls(tuple(sorted(set(setting.budgets))))

    @property
    def layout(self) -> Layout:
        return nested_layout(self.widths)

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client the leading window of its budget."""
        return {profile.client: (Part(0, affordable(self.widths, profile)[-1]),) for profile in cohort}

    def compose(self, width: Width) -> tuple[Part, ...]:
        return leading(width, self.widths)
