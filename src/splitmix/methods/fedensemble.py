"""Fed-ensemble: several nets, each client trains one of them in a round, all of them vote (Shi et al., 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from splitmix.core.types import Layout, Part, Profile, Setting, Width
from splitmix.methods.splitmix import check_atom, cycle, first_bases


@dataclass(frozen=True)
class FedEnsemble:
    """`count` bases of width `atom`; `order` names them from first to last to be mixed."""

    respects_budgets: ClassVar[bool] = False  # it never looks at them: strong clients train as little as weak ones

    atom: Width
    count: int
    seed: int = 0
    order: tuple[int, ...] = ()

    @classmethod
    def for_setting(cls, setting: Setting) -> "FedEnsemble":
        """As many bases as Split-Mix has."""
        check_atom(setting)
        return cls(setting.atom, int(max(setting.budgets) / setting.atom), setting.seed)

    @property
    def layout(self) -> Layout:
        return Layout(self.count, self.atom)

    @property
    def widths(self) -> tuple[Width, ...]:
        return tuple(self.atom * bases for bases in range(1, self.count + 1))

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client one base, so that all bases are trained equally often."""
        places = enumerate(cohort, start=round * len(cohort))
        return {p.client: (Part(cycle(self.seed, self.count, place), self.atom),) for place, p in places}

    def compose(self, width: Width) -> tuple[Part, ...]:
        return first_bases(width, self.atom, self.order or tuple(range(self.count)))
