"""The protocols: a method says who trains what, an engine carries jobs to clients, a server steps by what came.

Where clients are to stay private, a privacy merges what came in place of the mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor

from splitmix.core.net import Net
from splitmix.core.objective import Objective
from splitmix.core.types import Job, Layout, Part, Profile, Train, Update, Weights
from splitmix.core.width import Width


@runtime_checkable
class Method(Protocol):
    """A federated algorithm: how the weights are laid out, who trains what, and which parts make up a width.

    The first four must be written; the rest is what most methods say, and comes by inheriting from this class.
    """

    @property
    def layout(self) -> Layout: ...

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths it can serve, ascending."""
        ...

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        """Parts for each client of the cohort, in its order; pure: the same arguments give the same parts."""
        ...

    def compose(self, width: Width) -> tuple[Part, ...]:
        """The parts whose mean logits serve a width."""
        ...

    @property
    def respects_budgets(self) -> bool:
        """Whether no client has to train more than its budget."""
        return True

    def ordered(self, order: tuple[int, ...]) -> Self:
        """The method, mixing its bases in this order from first to last; methods of one net have nothing to order."""
        return self

    def after(self, asked: int) -> Self:
        """The method, when so many clients were asked in the rounds before; most have no need to count."""
        return self

    def objective(self, given: Objective) -> Objective:
        """The loss that a client minimises under this method, where the config asks for `given`."""
        return given

    def settled(self, round: int, weights: Weights) -> Weights:
        """The weights, or what the server keeps beside them, as a round leaves them; pure, like `assign`."""
        return weights

    def weigh(self, parts: tuple[Part, ...]) -> int:
        """How often the samples of a client that trained these parts count in the mean."""
        return 1


class Engine(Protocol):
    """Carries jobs to clients and answers back: a simulator on one machine, or a network."""

    def profiles(self, round: int) -> Sequence[Profile]:
        """Every registered client as it is in this round."""
        ...

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterable[Any]:
        """One answer for each job, in their order, streamed; each client gets only the bases its job names.

        Whoever gives none within the engine's deadline is `Missing`. A second answer to a job is ignored.
        """
        ...


class Server(Protocol):
    """How the server steps by what a round changed; without one, the mean of what came is the next model."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of what it keeps of each parameter between rounds; zeros at first."""
        ...

    def step(self, change: Tensor, kept: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """By how much to move, and what to keep, entry by entry."""
        ...


class Privacy(Protocol):
    """How updates are merged so that the weights tell little of any one client; without one, by their mean."""

    @property
    def delta(self) -> float:
        """The chance at which they may tell more than `epsilon` says."""
        ...

    def merge(
        self, net: Net, layout: Layout, weights: Weights, jobs: Sequence[Train], updates: Iterable[Update], seed: int
    ) -> Weights:
        """The next weights, of the updates that came to these jobs."""
        ...

    def epsilon(self, times: int) -> float:
        """What the weights may tell of a client that took part so many times."""
        ...
