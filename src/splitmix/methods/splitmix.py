"""Split-Mix: many small bases, each trained by as many clients as can be; any width is a mix of the first ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitmix.core.errors import UserError
from splitmix.core.random import rng_for
from splitmix.core.types import Part, Profile
from splitmix.methods.bases import Bases


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
