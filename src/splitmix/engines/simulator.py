"""All clients on one machine: a worker process per core, one thread each, or everything in this process."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from splitmix.core.batches import UNTIMED, ClientData, Clock
from splitmix.core.client import MeasuredNorms, OwnNorms, all_parts, execute
from splitmix.core.net import Net
from splitmix.core.objective import Objective
from splitmix.core.parts import cut
from splitmix.core.reproducible import one_thread
from splitmix.core.types import Job, Layout, Profile, Train, Update, Weights
from splitmix.engines.known import Arrays, KnownStatistics, Sent, arrays, tensors
from splitmix.engines.packs import MOST, ApartError, packs, train_side_by_side
from splitmix.engines.stopwatch import Stopwatch
from splitmix.engines.workers import Workers


class Clients(Protocol):
    """The registered clients: who they are in a round, and what data each holds."""

    def profiles(self, round: int) -> Sequence[Profile]: ...

    def data(self, client: int) -> ClientData: ...


@dataclass
class Simulator:
    """Carries jobs to simulated clients; the same jobs give the same answers whatever the number of workers."""

    net: Net
    layout: Layout
    clients: Clients
    objective: Objective
    workers: int = 1
    device: str = "cpu"  # anything else is used from this one process
    own_norms: dict[int, OwnNorms] = field(default_factory=dict)  # what each client keeps to itself
    stopwatch: Stopwatch | None = None  # counts where time goes
    pack: int | None = None  # so many bases of several clients side by side; None: some, where that pays off
    _pool: Workers | None = field(default=None, init=False, repr=False)
    _known: KnownStatistics = field(default_factory=KnownStatistics, init=False, repr=False)

    def profiles(self, round: int) -> Sequence[Profile]:
        return self.clients.profiles(round)

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        self._known.meet(weights, jobs)
        pooled = self.workers > 1 and self.device == "cpu" and Workers.possible()
        answers = (self._pooled if pooled else self._alone)(weights, jobs)
        return self.stopwatch.watched(answers, jobs, self.workers if pooled else 1) if self.stopwatch else answers

    def _alone(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        most = (1 if self.device == "cpu" else MOST) if self.pack is None else self.pack
        for pack in packs(jobs, most, lambda client: len(self.clients.data(client).train)):
            own = [self.own_norms.get(job.client, {}) for job in pack]
            with one_thread():
                answers = self._packed(weights, pack, own)
            for job, kept, answer in zip(pack, own, answers, strict=True):
                self._keep(job.client, kept)
                yield answer

    def _packed(self, weights: Weights, jobs: Sequence[Job], own: Sequence[OwnNorms]) -> list[Any]:
        """The answers to jobs that may be done at once; if they cannot be, none is tried again."""
        trainings = [job for job in jobs if isinstance(job, Train)]
        if len(trainings) > 1:
            try:
                return self._together(weights, trainings, own)
            except ApartError:
                self.pack = 1
        return [self._work(weights, job, kept, self._known.of(job)) for job, kept in zip(jobs, own, strict=True)]

    def _together(self, weights: Weights, jobs: Sequence[Train], own: Sequence[OwnNorms]) -> list[Update]:
        clock: Clock = UNTIMED
        if self.stopwatch is not None:
            self.stopwatch.start()
            clock = self.stopwatch
        downloads = [on_device(cut(self.net, self.layout, weights, job.parts), self.device) for job in jobs]
        data = [self.clients.data(job.client) for job in jobs]
        updates = train_side_by_side(jobs, self.net, downloads, data, self.objective, own, clock)
        updates = [replace(update, weights=on_device(update.weights, "cpu")) for update in updates]
        clock.lap("other")
        return updates

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> "Simulator":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self, weights: Weights, job: Job, own: OwnNorms, measured: MeasuredNorms) -> Any:
        """Download, work, upload: what happens for one job, in this process or in a worker."""
        if self.stopwatch is None:
            return self._done(weights, job, own, UNTIMED, measured)
        self.stopwatch.start()
        answer = self._done(weights, job, own, self.stopwatch, measured)
        self.stopwatch.lap("other" if isinstance(job, Train) else "scoring")
        return answer

    def _done(self, weights: Weights, job: Job, own: OwnNorms, clock: Clock, measured: MeasuredNorms) -> Any:
        download = on_device(cut(self.net, self.layout, weights, all_parts(job)), self.device)
        answer = execute(job, self.net, download, self.clients.data(job.client), self.objective, own, clock, measured)
        return replace(answer, weights=on_device(answer.weights, "cpu")) if isinstance(answer, Update) else answer

    def _keep(self, client: int, own: OwnNorms) -> None:
        if own:
            self.own_norms[client] = own

    def _pooled(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        if self._pool is None:
            size = sum(value.numel() * value.element_size() for value in weights.values())
            self._pool = Workers(self._task, 2 * size + (1 << 20), self.workers)  # room for statistics and own_norms
        tasks = ((job, arrays(named_norms(self.own_norms.get(job.client, {}))), self._known.sent(job)) for job in jobs)
        small = sum(isinstance(job, Train) and not job.local_norms for job in jobs)  # all of them, or none
        for job, ((answer, measured), returned) in zip(jobs, self._pool.run(weights, tasks, small), strict=True):
            own, upload = split_norms(returned)
            self._keep(job.client, own)
            self._known.learn(job, measured)
            yield replace(answer, weights=upload) if isinstance(answer, Update) else answer

    def _task(self, weights: Weights, task: tuple[Job, Arrays, Sent]) -> tuple[Any, Weights]:
        job, kept, sent = task
        own, _ = split_norms(tensors(kept))
        measured = {asked: tensors(found) for asked, found in sent.items()}
        answer = self._work(weights, job, own, measured)
        learned = {asked: arrays(found) for asked, found in measured.items() if asked not in sent}
        if isinstance(answer, Update):
            return (replace(answer, weights={}), learned), {**answer.weights, **named_norms(own)}
        return (answer, learned), {}


def default_workers() -> int:
    """One worker per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_device(weights: Weights, device: str) -> Weights:
    return {name: value.to(device) for name, value in weights.items()}


def named_norms(own: OwnNorms) -> Weights:
    """A client's own norms as named tensors."""
    return {f"memory/{base}/{name}": value for base, norms in own.items() for name, value in norms.items()}


def split_norms(named: Weights) -> tuple[OwnNorms, Weights]:
    """Split named tensors into a client's own norms and the rest."""
    own: OwnNorms = {}
    rest: Weights = {}
    for key, value in named.items():
        if key.startswith("memory/"):
            _, base, name = key.split("/", 2)
            own.setdefault(int(base), {})[name] = value
        else:
            rest[key] = value
    return own, rest
