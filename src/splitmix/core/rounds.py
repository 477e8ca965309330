"""The one round loop: draw a cohort, hand out jobs, merge what comes back."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from splitmix.core.method import Engine, Method
from splitmix.core.net import Net
from splitmix.core.parts import covering, merge
from splitmix.core.random import rng_for
from splitmix.core.threads import one_thread
from splitmix.core.types import Part, Plan, Profile, Train, Update, Weights


class Schedule(Protocol):
    """Learning rate of a round as a factor of the first."""

    def __call__(self, round: int, rounds: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same rate in every round."""

    def __call__(self, round: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """Half a cosine wave from 1 to `floor`.

    >>> [round(Cosine()(t, 4), 3) for t in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    floor: float = 0.0

    def __call__(self, round: int, rounds: int) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * round / rounds)) / 2


@dataclass(frozen=True)
class Steps:
    """A factor `gamma` at each milestone, from that round on."""

    milestones: tuple[int, ...] = (150, 250)
    gamma: float = 0.1

    def __call__(self, round: int, rounds: int) -> float:
        return self.gamma ** sum(round >= milestone for milestone in self.milestones)


SCHEDULES: Mapping[str, type[Constant] | type[Cosine] | type[Steps]] = {
    "constant": Constant,
    "cosine": Cosine,
    "steps": Steps,
}


@dataclass(frozen=True)
class Federation:
    """How rounds are run: length, participation, schedule and local training."""

    rounds: int
    plan: Plan = field(default_factory=Plan)
    schedule: Schedule = field(default_factory=Cosine)
    cohort: int | None = None  # clients per round; None: all
    seed: int = 0
    local_norms: bool = False


@dataclass(frozen=True)
class RoundReport:
    """What a finished round was."""

    round: int
    weights: Weights
    lr: float
    clients: int
    loss: float  # mean over clients, of a single part
    parameters: int  # downloaded by all clients of the round together
    seconds: float


def federate(
    method: Method,
    engine: Engine,
    net: Net,
    weights: Weights,
    how: Federation,
    *,
    start: int = 0,
    on_round: Callable[[RoundReport], None] = lambda report: None,
) -> Weights:
    """Train round after round from `start` on (Algorithm 1); everything follows from the arguments."""
    for round in range(start, how.rounds):
        began = perf_counter()
        cohort = draw_cohort(engine.profiles(round), how.cohort, how.seed, round)
        plan = replace(how.plan, lr=how.plan.lr * how.schedule(round, how.rounds))
        jobs = make_jobs(method.assign(round, cohort), cohort, round, plan, how)
        losses: list[float] = []
        updates = observed(engine.run(weights, jobs), losses, getattr(method, "weigh", weigh_once))
        with one_thread():
            weights = merge(net, method.layout, weights, updates)
        moved = sum(parameters_of(net, weights, covering(job.parts)) for job in jobs)
        loss = sum(losses) / max(1, len(losses))
        on_round(RoundReport(round, weights, plan.lr, len(cohort), loss, moved, perf_counter() - began))
    return weights


def draw_cohort(profiles: Sequence[Profile], size: int | None, seed: int, round: int) -> tuple[Profile, ...]:
    """All clients in order, or `size` of them drawn without replacement."""
    if size is None or size >= len(profiles):
        return tuple(profiles)
    return tuple(profiles[i] for i in rng_for(seed, "cohort", round).choice(len(profiles), size, replace=False))


def make_jobs(
    assigned: Mapping[int, tuple[Part, ...]], cohort: Iterable[Profile], round: int, plan: Plan, how: Federation
) -> list[Train]:
    """A job per client that got parts, the longest first: workers then finish at about the same time."""
    samples = {profile.client: profile.samples for profile in cohort}
    jobs = [Train(round, client, parts, plan, how.seed, how.local_norms) for client, parts in assigned.items() if parts]
    return sorted(jobs, key=lambda job: (-samples[job.client] * sum(part.width for part in job.parts), job.client))


def observed(updates: Iterable[Any], losses: list[float], weigh: Callable[[tuple[Part, ...]], int]) -> Iterator[Update]:
    """Pass updates on, weighed by the server, noting their losses."""
    for update in updates:
        losses.append(update.metrics["loss"])
        yield replace(update, weight=weigh(update.parts))


def weigh_once(parts: tuple[Part, ...]) -> int:
    """Every client counts once for each of its samples, whatever it trained."""
    return 1


def parameters_of(net: Net, weights: Weights, parts: Sequence[Part]) -> int:
    """Numbers in a download of parts of one width."""
    return len(parts) * sum(shape.numel() for name, shape in net.shapes(parts[0].width).items() if name in weights)
