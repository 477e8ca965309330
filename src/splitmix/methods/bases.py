"""Methods of several small nets, the bases: Split-Mix, and Fed-ensemble."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from splitmix.core.errors import UserError, unknown
from splitmix.core.method import Method
from splitmix.core.objective import Objective
from splitmix.core.reproducible import rng_for
from splitmix.core.types import Layout, Part, Profile, Setting, Weights
from splitmix.core.width import Width, check_multiple, is_number
from splitmix.objectives.losses import Mutual

EIGHTH = Width(1, 8)
DRAWS = ("cycle", "anchored")
TAUGHT = {"all": None, "first": 1}  # how many of a client's bases learn from their mean


@dataclass(frozen=True)
class Bases(Method):
    """`count` bases of width `atom`; `order` names them from first to last to be mixed.

    Whoever takes part is dealt a base in turn. How many were `asked` in the rounds before is the place in the cycle;
    None stands for as many in each of them as in this one. In the first rounds, until they are `forked`, all bases are
    one: every client trains base 0, and the others are copies of it.
    """

    atom: Width = EIGHTH
    count: int = 8
    seed: int = 0
    order: tuple[int, ...] = ()
    asked: int | None = None
    forked: int = 0

    @classmethod
    def for_setting(cls, setting: Setting, *, fork: float = 0.0) -> Self:
        """As many bases as the strongest client can train; `fork` is the share of the rounds before they part."""
        check_atom(setting)
        if not is_number(fork) or not 0 <= fork < 1:
            raise UserError(f"fork {fork!r} is no share of the rounds in [0, 1); give 0 for none, or try 0.2")
        count = int(max(setting.budgets) / setting.atom)
        return cls(setting.atom, count, setting.seed, forked=round(fork * setting.rounds))

    @property
    def layout(self) -> Layout:
        return Layout(self.count, self.atom)

    @property
    def widths(self) -> tuple[Width, ...]:
        return tuple(self.atom * bases for bases in range(1, self.count + 1))

    def compose(self, width: Width) -> tuple[Part, ...]:
        check_multiple(width, self.atom)
        wanted = int(width / self.atom)
        if wanted > self.count:
            widest = self.atom * self.count
            raise UserError(f"width {width} needs {wanted} bases but only {self.count} were trained; widest: {widest}")
        return tuple(Part(base, self.atom) for base in (self.order or range(self.count))[:wanted])

    def ordered(self, order: tuple[int, ...]) -> Self:
        return replace(self, order=order)

    def after(self, asked: int) -> Self:
        return replace(self, asked=asked)

    def settled(self, round: int, weights: Weights) -> Weights:
        """Until the fork, with every base a copy of base 0."""
        if round >= self.forked:
            return weights
        return {name: value[:1].expand_as(value).clone() for name, value in weights.items()}

    def dealt(self, round: int, cohort: Sequence[Profile]) -> list[tuple[Profile, int]]:
        """Each client and its base, from an endless cycle in which every `count` in a row are a fresh shuffle."""
        if round < self.forked:
            return [(profile, 0) for profile in cohort]
        start = round * len(cohort) if self.asked is None else self.asked
        first, ahead = divmod(start, self.count)
        laps = range(first, first + -(-(ahead + len(cohort)) // self.count))
        cycle = [base for number in laps for base in self.lap(number)]
        return list(zip(cohort, cycle[ahead : ahead + len(cohort)], strict=True))

    def lap(self, number: int) -> list[int]:
        """All bases, in the order of one lap of the cycle."""
        return list(map(int, rng_for(self.seed, "cycle", number).permutation(self.count)))


@dataclass(frozen=True)
class SplitMix(Bases):
    """A client trains as many bases as its budget allows.

    `draws` says which. `cycle`: its turn of the cycle, and others at random, so that all bases are trained equally
    often. `anchored`: base 0 is always among two or more, and in place of a single one half of the time; so the first
    base, which is the narrowest width, learns from nearly everybody. `mutual` is the weight by which the bases of a
    client learn from their mean; 0: not at all. `taught` is who does: `all` of them, or only the `first`, which with
    anchored draws is base 0; the others then stay as different as they were, which wide mixes live on.
    """

    draws: str = "cycle"
    mutual: float = 0.0
    taught: str = "all"

    @classmethod
    def for_setting(
        cls, setting: Setting, *, fork: float = 0.0, draws: str = "cycle", mutual: float = 0.0, taught: str = "all"
    ) -> Self:
        """As many bases as the strongest client can train."""
        return replace(super().for_setting(setting, fork=fork), draws=draws, mutual=mutual, taught=taught)

    def __post_init__(self) -> None:
        if self.draws not in DRAWS:
            raise unknown("draws of splitmix", str(self.draws), DRAWS)
        if self.taught not in TAUGHT:
            raise unknown("taught bases of splitmix", str(self.taught), TAUGHT)
        if not is_number(self.mutual) or not 0 <= self.mutual < math.inf:
            raise UserError(f"mutual {self.mutual!r} is no weight of distillation; give 0 for none, or try 0.2")

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client budget/atom bases (Algorithm 2)."""
        return {profile.client: self._with_others(round, turn, profile) for profile, turn in self.dealt(round, cohort)}

    def objective(self, given: Objective) -> Objective:
        return Mutual(given, self.mutual, taught=TAUGHT[self.taught]) if self.mutual else given

    def _with_others(self, round: int, turn: int, profile: Profile) -> tuple[Part, ...]:
        """So many bases as the budget holds: the client's turn of the cycle, perhaps the anchor, the rest at random."""
        if profile.budget < self.atom:
            raise UserError(
                f"client {profile.client} has budget {profile.budget}, below the atom {self.atom}; "
                f"choose a smaller atom or a larger budget"
            )
        count = min(int(profile.budget / self.atom), self.count if round >= self.forked else 1)
        sure = [turn] if self.draws == "cycle" else self._anchored(round, turn, profile.client, count)
        others = [base for base in range(self.count) if base not in sure]
        drawn = rng_for(self.seed, "bases", round, profile.client).choice(others, count - len(sure), replace=False)
        return tuple(Part(base, self.atom) for base in sorted([*sure, *drawn.tolist()]))

    def _anchored(self, round: int, turn: int, client: int, count: int) -> list[int]:
        """Base 0 and the client's turn; where there is room for one, either by the toss of a coin."""
        if count > 1:
            return [0] if turn == 0 else [0, turn]
        return [0] if rng_for(self.seed, "anchor", round, client).random() < 0.5 else [turn]


@dataclass(frozen=True)
class FedEnsemble(Bases):
    """A client trains one base, whatever its budget."""

    @property
    def respects_budgets(self) -> bool:
        return False  # it never looks at them: strong clients train as little as weak ones

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client one base, so that all bases are trained equally often."""
        return {profile.client: (Part(base, self.atom),) for profile, base in self.dealt(round, cohort)}


def check_atom(setting: Setting) -> None:
    """Refuse an atom of which some budget holds no whole number: that client could not use all of its budget."""
    odd = [budget for budget in setting.budgets if budget % setting.atom != 0]
    if odd:
        fitting = Width(1, math.lcm(*(budget.denominator for budget in setting.budgets)))
        raise UserError(
            f"the atom {setting.atom} does not divide the budget {odd[0]}; "
            f"choose atom {fitting}, or budgets that are multiples of {setting.atom}"
        )
