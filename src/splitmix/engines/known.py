"""What clients measured under a model, which several questions are about: it is measured once."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray

from splitmix.core.client import MeasuredNorms
from splitmix.core.types import Calibrate, Job, Score, Weights

Arrays = dict[str, NDArray[Any]]
Sent = dict[str, Arrays]  # norm statistics on their way through a pipe
MOST = 2000  # clients whose statistics are kept


@dataclass
class KnownStatistics:
    """The norm statistics of clients under the last model that they were asked about."""

    model: bytes = b""
    found: dict[int, MeasuredNorms] = field(default_factory=dict)

    def meet(self, weights: Weights, jobs: Sequence[Job]) -> None:
        """Forget what was measured under another model, if jobs ask for statistics of this one."""
        if not any(map(measures, jobs)):
            return
        model = hashlib.blake2b()
        for name in sorted(weights):
            model.update(name.encode())
            model.update(weights[name].detach().cpu().numpy().tobytes())
        if model.digest() != self.model:
            self.model, self.found = model.digest(), {}

    def of(self, job: Job) -> MeasuredNorms:
        """What the job's client measured, and is to add to."""
        if not measures(job) or (job.client not in self.found and len(self.found) >= MOST):
            return {}
        return self.found.setdefault(job.client, {})

    def sent(self, job: Job) -> Sent:
        """The same for a worker."""
        return {asked: arrays(found) for asked, found in self.of(job).items()}

    def learn(self, job: Job, measured: Sent) -> None:
        """Keep what a worker found."""
        self.of(job).update({asked: tensors(found) for asked, found in measured.items()})


def measures(job: Job) -> bool:
    """Whether a job is about norm statistics of the client's own training images."""
    return isinstance(job, Calibrate) or (isinstance(job, Score) and job.question.norm == "client")


def arrays(weights: Weights) -> Arrays:
    """As arrays, which travel through a pipe by value; every tensor would hold a file open on both sides."""
    return {name: value.numpy() for name, value in weights.items()}


def tensors(kept: Arrays) -> Weights:
    return {name: torch.from_numpy(value) for name, value in kept.items()}
