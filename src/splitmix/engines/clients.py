"""Simulated clients: a shard of a task and a budget each; and those of an earlier run again, as its record says."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from splitmix.core.admission import Rejected
from splitmix.core.batches import ClientData, Split
from splitmix.core.inputs import Lazy, OnDemand
from splitmix.core.method import Engine
from splitmix.core.types import Job, Missing, Profile, Train, Weights
from splitmix.core.width import Width
from splitmix.data.budgets import RoundBudgets
from splitmix.data.task import Samples, Shard, Task


@dataclass(frozen=True, eq=False)
class TaskClients:
    """Every client holds its shard as row numbers; the images exist once."""

    task: Task
    budgets: RoundBudgets
    device: str = "cpu"

    def profiles(self, round: int) -> Sequence[Profile]:
        return Registered(self.budgets.at(round), self.task.shards)

    def data(self, client: int) -> ClientData:
        shard = self.task.shards[client]
        train, test = self._tensors
        return ClientData(
            Split(*train, torch.from_numpy(shard.train)),
            Split(*train, torch.from_numpy(shard.val)),
            Split(*test, torch.from_numpy(shard.test)),
            augment=self.task.augment,
        )

    @cached_property
    def _tensors(self) -> tuple[tuple[Tensor | Lazy, Tensor], tuple[Tensor | Lazy, Tensor]]:
        return self._moved(self.task.train), self._moved(self.task.test)

    def _moved(self, samples: Samples) -> tuple[Tensor | Lazy, Tensor]:
        images, labels = samples.images, torch.from_numpy(samples.labels).to(self.device)
        return images if isinstance(images, Lazy) else torch.from_numpy(images).to(self.device), labels


@dataclass(frozen=True)
class Registered(OnDemand[Profile]):
    """The profiles of all clients: a round looks at those of its cohort alone."""

    budgets: Sequence[Width]
    shards: Sequence[Shard]

    def __len__(self) -> int:
        return len(self.shards)

    def item(self, place: int) -> Profile:
        return Profile(place, self.budgets[place], len(self.shards[place].train))


@dataclass(frozen=True)
class Replay:
    """An engine whose clients are asked, and fail to come, just as the record of a run says."""

    engine: Engine
    rounds: Mapping[int, Mapping[str, Any]]

    @classmethod
    def of(cls, engine: Engine, rows: Iterable[Mapping[str, Any]]) -> "Replay":
        """From the rows of a run's `metrics.jsonl`; of those of one round the last counts."""
        return cls(engine, {row["round"]: row for row in rows if row["kind"] == "round"})

    def profiles(self, round: int) -> Sequence[Profile]:
        known = {profile.client: profile for profile in self.engine.profiles(round)}
        return [known[client] for client in self.rounds[round]["cohort"]]

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        failed = [self._failed(job) for job in jobs]
        answers = iter(self.engine.run(weights, [job for job, gone in zip(jobs, failed, strict=True) if not gone]))
        for gone in failed:
            yield gone or next(answers)

    def _failed(self, job: Job) -> Missing | Rejected | None:
        if not isinstance(job, Train):
            return None
        row = self.rounds[job.round]
        failed: list[Missing | Rejected] = [Missing(**one) for one in row["missing"]]
        failed += [Rejected(**one) for one in row["rejected"]]
        return next((one for one in failed if one.client == job.client), None)
