"""Fed-ensemble: several nets, each client trains one of them in a round, all of them vote (Shi et al., 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from splitmix.core.types import Part, Profile
from splitmix.methods.bases import Bases


@dataclass(frozen=True)
class FedEnsemble(Bases):
    """A client trains one base, whatever its budget."""

    respects_budgets: ClassVar[bool] = False  # it never looks at them: strong clients train as little as weak ones

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Give each client one base, so that all bases are trained equally often."""
        places = enumerate(cohort, start=round * len(cohort))
        return {profile.client: (Part(self.in_turn(place), self.atom),) for place, profile in places}
