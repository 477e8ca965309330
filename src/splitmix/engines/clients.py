"""Simulated clients: the shards of a task and a budget for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from splitmix.core.batches import ClientData, Split
from splitmix.core.types import Profile
from splitmix.data.budgets import RoundBudgets
from splitmix.data.task import Samples, Task


@dataclass(frozen=True, eq=False)
class TaskClients:
    """Every client holds its shard as row numbers; the images exist once."""

    task: Task
    budgets: RoundBudgets
    device: str = "cpu"

    def profiles(self, round: int) -> Sequence[Profile]:
        sizes = (len(shard.train) for shard in self.task.shards)
        return [Profile(i, *pair) for i, pair in enumerate(zip(self.budgets.at(round), sizes, strict=True))]

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
    def _tensors(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return self._moved(self.task.train), self._moved(self.task.test)

    def _moved(self, samples: Samples) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(samples.images).to(self.device), torch.from_numpy(samples.labels).to(self.device)
