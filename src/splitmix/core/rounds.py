"""The one round loop: draw a cohort, hand out jobs, merge what comes back."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from splitmix.core.admission import Admission, Attendance, plausible
from splitmix.core.errors import UserError
from splitmix.core.method import Engine, Method, Privacy, Server
from splitmix.core.net import Net
from splitmix.core.parts import AGGREGATES, covering, form, merge, merge_middle
from splitmix.core.reproducible import one_thread, rng_for
from splitmix.core.types import Part, Plan, Profile, Train, Update, Weights, nested_width

AVERAGE = "average/"  # under which the mean of late rounds is kept


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
    """How rounds are run: length, participation, schedule, local training, and what the server accepts."""

    rounds: int
    plan: Plan = field(default_factory=Plan)
    schedule: Schedule = field(default_factory=Cosine)
    cohort: int | None = None  # clients per round; None: all
    seed: int = 0
    local_norms: bool = False
    run: str = ""  # what answers must name
    clip: float = 0.0  # an update that moves a base so many times as far as usual counts little; 0: none is far
    min_share: float = 0.5  # of the clients with a job must answer, else the round is repeated
    repeats: int = 2  # at most, of one round
    min_updates: int = 1  # a base with fewer keeps its value
    max_samples: int | str | None = None  # who registers more is not asked; "10x": than ten times the median; None: any
    server: Server | None = None  # None: the mean of what came is the next model
    average: int = 0  # so many of the last rounds are averaged, for what is served
    aggregate: str = "mean"  # or "trimmed" or "median": of the updates of a base
    privacy: Privacy | None = None  # None: the weights may tell all of a client


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
    seen: Attendance
    repeated: tuple[Attendance, ...]  # earlier tries, to which too few answered
    bytes_down: int  # of all tries, as are those that came up
    bytes_up: int
    kept: Weights = field(default_factory=dict)  # by the server for the rounds to come


def federate(
    method: Method,
    engine: Engine,
    net: Net,
    weights: Weights,
    how: Federation,
    *,
    start: int = 0,
    asked: int | None = None,
    kept: Weights | None = None,
    on_round: Callable[[RoundReport], None] = lambda report: None,
) -> Weights:
    """Train round after round from `start` on (Algorithm 1); everything follows from the arguments.

    `kept` is what the report of the round before `start` said, and `asked` how many clients were asked until then;
    where that is not known, as many in each round as in the first one now. Gives the weights to be served.
    """
    kept = kept or {}
    for round in range(start, how.rounds):
        counted = method if asked is None and round else method.after(asked or 0)
        report = one_round(counted, engine, net, weights, how, round)
        with one_thread():
            report = stepped(report, method, net, weights, kept, how)
        weights, kept = report.weights, report.kept
        asked = (round * report.clients if asked is None else asked) + report.clients
        on_round(report)
    return served(weights, kept)


def stepped(report: RoundReport, method: Method, net: Net, old: Weights, kept: Weights, how: Federation) -> RoundReport:
    """The report, with the server's step in place of the mean of what came, and with what the server keeps."""
    weights, kept = dict(report.weights), dict(kept)
    if how.server is not None:
        for name in sorted(net.parameter_names(method.layout.width)):  # norm statistics are always the mean
            weights[name], held = moved(how.server, name, old[name], weights[name], kept)
            kept |= held
    weights, kept = (dict(method.settled(report.round, held)) for held in (weights, kept))
    late = report.round - (how.rounds - how.average)  # how many rounds are averaged already
    if late >= 0:
        mean = {AVERAGE + name: value for name, value in weights.items()}
        kept |= {name: torch.lerp(kept.get(name, value), value, 1 / (late + 1)) for name, value in mean.items()}
    return replace(report, weights=weights, kept=kept)


def moved(server: Server, name: str, old: Tensor, came: Tensor, kept: Weights) -> tuple[Tensor, Weights]:
    """A parameter after the server's step; entries that nobody moved stay, and so does what is kept of them."""
    change, slots = came - old, [f"{slot}/{name}" for slot in server.slots]
    held = [kept.get(slot, torch.zeros_like(old)) for slot in slots]
    move, holds = server.step(change, held)
    trained = change != 0
    now = {slot: torch.where(trained, new, was) for slot, new, was in zip(slots, holds, held, strict=True)}
    return torch.where(trained, old + move, old), now


def served(weights: Weights, kept: Weights) -> Weights:
    """The model that a round gives to those who use it: the mean of late rounds if there is one, else its weights."""
    mean = {name.removeprefix(AVERAGE): value for name, value in kept.items() if name.startswith(AVERAGE)}
    return mean or weights


def one_round(method: Method, engine: Engine, net: Net, weights: Weights, how: Federation, round: int) -> RoundReport:
    """Ask a cohort until enough of it answers, and merge what came."""
    began, sent, failed = perf_counter(), 0, list[Attendance]()
    plan = replace(how.plan, lr=how.plan.lr * how.schedule(round, how.rounds))
    while True:
        profiles, boasting = plausible(engine.profiles(round), how.max_samples)
        cohort = draw_cohort(profiles, how.cohort, how.seed, round, len(failed))
        jobs = make_jobs(method.assign(round, cohort), cohort, round, plan, how)
        admission = Admission(net, method.layout, weights, cohort, how.clip)
        admission.seen.missing.extend(boasting)
        updates = admission.admitted(jobs, engine.run(weights, jobs))
        with one_thread():
            merged = aggregated(method, net, weights, jobs, updates, how)
        seen, downloads = admission.seen, download_sizes(net, weights, jobs)
        sent += sum(size for _, size in downloads)
        if cohort and seen.came >= how.min_share * len(jobs):
            break
        failed.append(seen)
        if len(failed) > how.repeats:
            raise too_few(round, failed, how)
    return RoundReport(
        round,
        keep_scarce(weights, merged, seen.updates, how.min_updates),
        plan.lr,
        len(cohort),
        sum(seen.losses) / len(seen.losses) if seen.losses else 0.0 if not jobs else math.nan,
        sum(numbers for numbers, _ in downloads),
        perf_counter() - began,
        seen,
        tuple(failed),
        sent,
        sum(tried.bytes_up for tried in (*failed, seen)),
    )


def aggregated(
    method: Method, net: Net, weights: Weights, jobs: Sequence[Train], updates: Iterable[Update], how: Federation
) -> Weights:
    """The weights that come of a round's updates: their mean, the middle of them, or what keeps clients private."""
    if how.privacy is not None:
        return how.privacy.merge(net, method.layout, weights, jobs, updates, how.seed)
    if AGGREGATES[how.aggregate]:
        return merge_middle(net, method.layout, weights, updates, AGGREGATES[how.aggregate])
    return merge(net, method.layout, weights, (replace(u, weight=u.weight * method.weigh(u.parts)) for u in updates))


def draw_cohort(
    profiles: Sequence[Profile], size: int | None, seed: int, round: int, repeat: int = 0
) -> tuple[Profile, ...]:
    """All clients in order, or `size` of them drawn without replacement; others when a round is repeated."""
    if size is None or size >= len(profiles):
        return tuple(profiles)
    again = (repeat,) if repeat else ()
    return tuple(profiles[i] for i in rng_for(seed, "cohort", round, *again).choice(len(profiles), size, replace=False))


def make_jobs(
    assigned: Mapping[int, tuple[Part, ...]], cohort: Iterable[Profile], round: int, plan: Plan, how: Federation
) -> list[Train]:
    """A job per client that got parts, the longest first: workers then finish at about the same time."""
    samples = {profile.client: profile.samples for profile in cohort}
    jobs = [
        Train(round, client, parts, plan, how.seed, how.local_norms, how.run)
        for client, parts in assigned.items()
        if parts
    ]
    return sorted(jobs, key=lambda job: (-samples[job.client] * sum(part.width for part in job.parts), job.client))


def keep_scarce(old: Weights, merged: Weights, updates: Mapping[int, int], least: int) -> Weights:
    """The merged weights, where bases that got fewer updates than `least` are as they were."""
    scarce = [base for base, count in updates.items() if count < least]
    if not scarce:
        return merged
    rows = torch.tensor(scarce)
    return {name: value.index_copy(0, rows, old[name][scarce]) for name, value in merged.items()}


def too_few(round: int, tries: Sequence[Attendance], how: Federation) -> UserError:
    """Why a round was given up."""
    last = tries[-1]
    return UserError(
        f"round {round + 1} was tried {len(tries)} times, but of {len(last.cohort)} clients only {last.came} answered "
        f"in the last, and min_share {how.min_share:g} asks for more ({last.absences() or 'nobody is registered'}); "
        "see to the clients, then go on with --resume"
    )


def download_sizes(net: Net, weights: Weights, jobs: Iterable[Train]) -> list[tuple[int, int]]:
    """Numbers in the download of each job, and their bytes; counted once for jobs that look alike."""
    known: dict[Any, tuple[int, int]] = {}
    forms = [(form(job.parts), job.parts) for job in jobs]
    for shape, parts in forms:
        if shape not in known:
            known[shape] = download_size(net, weights, parts)
    return [known[shape] for shape, _ in forms]


def download_size(net: Net, weights: Weights, parts: Sequence[Part]) -> tuple[int, int]:
    """Numbers in the download of a job's parts, and their bytes."""
    whole = covering(parts)
    shapes, inner = net.shapes(whole[0].width), {part.width for part in parts} - {whole[0].width}
    sizes = [(shapes[name].numel(), weights[name].itemsize) for name in shapes.keys() & weights.keys()]
    sizes += [(value[0].numel(), value.itemsize) for name, value in weights.items() if nested_width(name) in inner]
    return len(whole) * sum(count for count, _ in sizes), len(whole) * sum(count * each for count, each in sizes)
