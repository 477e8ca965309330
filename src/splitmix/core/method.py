"""The two protocols: a method says who trains what, an engine carries jobs to clients and answers back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from splitmix.core.objective import Objective
from splitmix.core.types import Job, Layout, Part, Profile, Weights
from splitmix.core.width import Width


class Method(Protocol):
    """A federated algorithm: how the weights are laid out, who trains what, and which parts make up a width.

    A method may have more to say, by what it has besides:
    `order`, the bases from first to last to be mixed (see `with_order`);
    `objective(given)`, the local loss in place of the one that was given (see `local_objective`);
    `weigh(parts)`, how often the samples of a client that trained these parts count in the mean;
    `respects_budgets = False`, if it hands out more than a client's budget (see `respects_budgets`).
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


def with_order(method: Method, order: tuple[int, ...]) -> Method:
    """The method, mixing its bases in this order; methods of one net have nothing to order."""
    if not hasattr(method, "order"):
        return method
    ordered: Method = replace(method, order=order)  # type: ignore[type-var]
    return ordered


def local_objective(method: Method, given: Objective) -> Objective:
    """The loss that a client minimises under this method, where the config asks for `given`."""
    own: Callable[[Objective], Objective] | None = getattr(method, "objective", None)
    return given if own is None else own(given)


def respects_budgets(method: Method) -> bool:
    """Whether no client has to train more than its budget."""
    return bool(getattr(method, "respects_budgets", True))
