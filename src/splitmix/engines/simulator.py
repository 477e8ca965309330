"""All clients on one machine: a worker process per core, one thread each, or everything in this process."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from splitmix.core.batches import ClientData
from splitmix.core.client import Memory, execute, parts_of
from splitmix.core.net import Net
from splitmix.core.objective import Objective
from splitmix.core.parts import cut
from splitmix.core.reproducible import one_thread
from splitmix.core.types import Job, Layout, Profile, Update, Weights
from splitmix.engines.workers import Workers

Arrays = dict[str, NDArray[Any]]


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
    memories: dict[int, Memory] = field(default_factory=dict)  # what each client keeps to itself
    _pool: Workers | None = field(default=None, init=False, repr=False)

    def profiles(self, round: int) -> Sequence[Profile]:
        return self.clients.profiles(round)

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        if self.workers > 1 and self.device == "cpu" and Workers.possible():
            yield from self._pooled(weights, jobs)
            return
        for job in jobs:
            memory = self.memories.get(job.client, {})
            with one_thread():
                answer = self._work(weights, job, memory)
            self._keep(job.client, memory)
            yield answer

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> "Simulator":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self, weights: Weights, job: Job, memory: Memory) -> Any:
        """Download, work, upload: what happens for one job, in this process or in a worker."""
        download = moved(cut(self.net, self.layout, weights, parts_of(job)), self.device)
        answer = execute(job, self.net, download, self.clients.data(job.client), self.objective, memory)
        return replace(answer, weights=moved(answer.weights, "cpu")) if isinstance(answer, Update) else answer

    def _keep(self, client: int, memory: Memory) -> None:
        if memory:
            self.memories[client] = memory

    def _pooled(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        if self._pool is None:
            size = sum(value.numel() * value.element_size() for value in weights.values())
            self._pool = Workers(self._task, 2 * size + (1 << 20), self.workers)  # room for statistics and memories
        tasks = ((job, arrays(flat(self.memories.get(job.client, {})))) for job in jobs)
        for job, (answer, returned) in zip(jobs, self._pool.run(weights, tasks), strict=True):
            memory, upload = unflat(returned)
            self._keep(job.client, memory)
            yield replace(answer, weights=upload) if isinstance(answer, Update) else answer

    def _task(self, weights: Weights, task: tuple[Job, Arrays]) -> tuple[Any, Weights]:
        job, kept = task
        memory, _ = unflat(tensors(kept))
        answer = self._work(weights, job, memory)
        if isinstance(answer, Update):
            return replace(answer, weights={}), {**answer.weights, **flat(memory)}
        return answer, {}


def default_workers() -> int:
    """One worker per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def moved(weights: Weights, device: str) -> Weights:
    return {name: value.to(device) for name, value in weights.items()}


def arrays(weights: Weights) -> Arrays:
    """As arrays, which travel through a pipe by value; every tensor would hold a file open on both sides."""
    return {name: value.numpy() for name, value in weights.items()}


def tensors(kept: Arrays) -> Weights:
    return {name: torch.from_numpy(value) for name, value in kept.items()}


def flat(memory: Memory) -> Weights:
    """A client's memory as named tensors."""
    return {f"memory/{base}/{name}": value for base, norms in memory.items() for name, value in norms.items()}


def unflat(named: Weights) -> tuple[Memory, Weights]:
    """Split named tensors into a client's memory and the rest."""
    memory: Memory = {}
    rest: Weights = {}
    for key, value in named.items():
        if key.startswith("memory/"):
            _, base, name = key.split("/", 2)
            memory.setdefault(int(base), {})[name] = value
        else:
            rest[key] = value
    return memory, rest
