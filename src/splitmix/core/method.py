"""The two protocols: a method says who trains what, an engine carries jobs to clients and answers back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from splitmix.core.types import Job, Layout, Part, Profile, Weights, Width


class Method(Protocol):
    """A federated algorithm: how the weights are laid out, who trains what, and which parts make up a width."""

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
        """The answers in the order of the jobs, streamed; each client gets only the bases its job names."""
        ...


def with_order(method: Method, order: tuple[int, ...]) -> Method:
    """The method, mixing its bases in this order; methods of one net have nothing to order."""
    if not hasattr(method, "order"):
        return method
    ordered: Method = replace(method, order=order)  # type: ignore[type-var]
    return ordered
