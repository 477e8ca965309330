"""Methods of several small nets: Split-Mix, and Fed-ensemble."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from splitmix.core.errors import UserError
from splitmix.core.reproducible import rng_for
from splitmix.core.types import Layout, Part, Profile, Setting
from splitmix.core.width import Width, check_multiple

EIGHTH = Width(1, 8)


@dataclass(frozen=True)
class Bases:
    """`count` bases of width `atom`; `order` names them from first to last to be mixed."""

    atom: Width = EIGHTH
    count: int = 8
    seed: int = 0
    order: tuple[int, ...] = ()

    @classmethod
    def for_setting(cls, setting: Setting) -> Self:
        """As many bases as the strongest client can train."""
        check_atom(setting)
        return cls(setting.atom, int(max(setting.budgets) / setting.atom), setting.seed)

    @property
    def layout(self) -> Layout:
        return Layout(self.count, self.atom)

    @property
    def widths(self) -> tuple[Width, ...]:
        return tuple(self.atom * bases for bases in range(1, self.count + 1))

    def compose(self, width: Width) -> tuple[Part, ...]:
        return first_bases(width, self.atom, self.order or tuple(range(self.count)))

    def in_turn(self, position: int) -> int:
        """The base at a position of an endless sequence in which every `count` consecutive ones are a fresh shuffle."""
        lap, place = divmod(position, self.count)
        return int(rng_for(self.seed, "cycle", lap).permutation(self.count)[place])


def first_bases(width: Width, atom: Width, order: Sequence[int]) -> tuple[Part, ...]:
    """The bases that make up a width, from the first of the order on."""
    check_multiple(width, atom)
    wanted = int(width / atom)
    if wanted > len(order):
        widest = atom * len(order)
        raise UserError(f"width {width} needs {wanted} bases but only {len(order)} were trained; widest: {widest}")
    return tuple(Part(base, atom) for base in order[:wanted])


def check_atom(setting: Setting) -> None:
    """Refuse an atom of which some budget holds no whole number: that client could not use all of its budget."""
    odd = [budget for budget in setting.budgets if budget % setting.atom != 0]
    if odd:
        fitting = Width(1, math.lcm(*(budget.denominator for budget in setting.budgets)))
        raise UserError(
            f"the atom {setting.atom} does not divide the budget {odd[0]}; "
            f"choose atom {fitting}, or budgets that are multiples of {setting.atom}"
        )


@dataclass(frozen=True)
class SplitMix(Bases):
    """A client trains as many bases as its budget allows."""

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client budget/atom bases, so that all bases are trained equally often (Algorithm 2)."""
        return {
            profile.client: self._parts(round, round * len(cohort) + place, profile)
            for place, profile in enumerate(cohort)
        }

    def _parts(self, round: int, position: int, profile: Profile) -> tuple[Part, ...]:
        if profile.budget < self.atom:
            raise UserError(
                f"client {profile.client} has budget {profile.budget}, below the atom {self.atom}; "
                f"choose a smaller atom or a larger budget"
            )
        first = self.in_turn(position)
        others = [base for base in range(self.count) if base != first]
        more = min(int(profile.budget / self.atom), self.count) - 1
        drawn = rng_for(self.seed, "bases", round, profile.client).choice(others, more, replace=False)
        return tuple(Part(base, self.atom) for base in sorted([first, *drawn.tolist()]))


@dataclass(frozen=True)
class FedEnsemble(Bases):
    """A client trains one base, whatever its budget."""

    respects_budgets: ClassVar[bool] = False  # it never looks at them: strong clients train as little as weak ones

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client one base, so that all bases are trained equally often."""
        places = enumerate(cohort, start=round * len(cohort))
        return {profile.client: (Part(self.in_turn(place), self.atom),) for place, profile in places}
