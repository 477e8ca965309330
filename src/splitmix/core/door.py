"""Trust at the door: every answer is checked before it counts, whatever engine carried it.

An update that is not what its job asked for is dropped, alone, with a reason. A change that is too large is clipped.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from splitmix.core.net import Net
from splitmix.core.parts import covering, cut
from splitmix.core.types import (
    Calibrate,
    Layout,
    Missing,
    Profile,
    Score,
    Tally,
    Train,
    Update,
    Weights,
    nested_width,
)

Usual = Mapping[str, float]  # how far a number usually moves in a round, by kind: parameters, statistics
Fault = tuple[str, str]  # a kind, in a word, and a sentence
VOTES = 3  # the least number of clients whose median says what is usual


@dataclass(frozen=True)
class Rejected:
    """An update that did not count: whose it was, what kind of fault it had, and the same in words."""

    client: int
    kind: str
    reason: str


@dataclass
class Attendance:
    """Who was asked in a round, who came, and what became of it."""

    cohort: tuple[int, ...]
    accepted: list[int] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)  # accepted, with a smaller change than they sent
    rejected: list[Rejected] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    updates: Counter[int] = field(default_factory=Counter)  # for each base
    losses: list[float] = field(default_factory=list)
    bytes_up: int = 0

    @property
    def came(self) -> int:
        """Answers, whatever they were worth."""
        return len(self.accepted) + len(self.rejected)

    def absences(self) -> str:
        """Why clients were missing, such as `2 late, 1 died`."""
        return ", ".join(f"{n} {reason}" for reason, n in Counter(gone.reason for gone in self.missing).most_common())

    def row(self) -> dict[str, Any]:
        """Who came, as it is stored."""
        return {
            "cohort": list(self.cohort),
            "clipped": self.clipped,
            "rejected": [vars(one) for one in self.rejected],
            "missing": [vars(one) for one in self.missing],
        }


@dataclass
class Door:
    """Checks the answers of one round, one at a time, and notes who came.

    A base may change by `clip` times what was usual in the round before: the median over its clients of how far a
    number moved (root mean square), parameters and norm statistics apart. While nothing is usual yet, by `clip` times
    the size of the base itself.
    """

    net: Net
    layout: Layout
    weights: Weights
    cohort: Sequence[Profile]
    clip: float | None = None
    usual: Usual = field(default_factory=dict)
    seen: Attendance = field(init=False)
    votes: dict[str, list[float]] = field(default_factory=dict, init=False)  # how far each client moved a number

    def __post_init__(self) -> None:
        self.seen = Attendance(tuple(profile.client for profile in self.cohort))

    def admitted(self, jobs: Sequence[Train], answers: Iterable[Any]) -> Iterator[Update]:
        """The updates that count, in the order of the jobs; one is in memory at a time."""
        samples = {profile.client: profile.samples for profile in self.cohort}
        for job, answer in zip_longest(jobs, answers):
            if job is None or answer is None:
                raise RuntimeError(f"an engine gives one answer for each job, but not so to {len(jobs)} jobs")
            if isinstance(answer, Missing):
                self.seen.missing.append(Missing(job.client, answer.reason))
                continue
            self.seen.bytes_up += size_of(getattr(answer, "weights", {}))
            update = self._checked(job, answer, samples[job.client])
            if isinstance(update, Update):
                self.seen.accepted.append(job.client)
                self.seen.updates.update(part.base for part in covering(job.parts))
                self.seen.losses.append(update.metrics["loss"])
                yield update
            else:
                self.seen.rejected.append(Rejected(job.client, *update))

    def usual_next(self) -> Usual:
        """What is usual after this round; a round of too few clients changes nothing."""
        medians = {kind: sorted(votes)[(len(votes) - 1) // 2] for kind, votes in self.votes.items()}
        return {**self.usual, **{kind: far for kind, far in medians.items() if len(self.votes[kind]) >= VOTES}}

    def _checked(self, job: Train, answer: Any, samples: int) -> Update | Fault:
        parts = covering(job.parts)
        private = self.net.norm_names(parts[0].width) if job.local_norms else set()
        sent = cut(self.net, self.layout, self.weights, parts)
        like = {name: value for name, value in sent.items() if nested_width(name) is None and name not in private}
        fault = misfit(job, answer, samples) or malformed(answer.weights, like)
        if fault:
            return fault
        statistics = self.net.statistic_names(parts[0].width)
        kinds = {
            "parameters": [name for name in like if name not in statistics],
            "statistics": [name for name in like if name in statistics],
        }
        return self._bounded(answer, like, {kind: names for kind, names in kinds.items() if names})

    def _bounded(self, update: Update, old: Weights, kinds: Mapping[str, list[str]]) -> Update | Fault:
        """The update, with no base further from the old one than it may be."""
        weights, votes = dict(update.weights), {}
        for kind, names in kinds.items():
            change = {name: weights[name] - old[name] for name in names}
            far = root_mean_square(change)
            if not far.isfinite().all():
                return "size", "its change is too large to be measured"
            bound = self._bound(kind, {name: old[name] for name in names})
            votes[kind] = float(torch.minimum(far, bound).square().mean().sqrt())
            if (far > bound).any():
                keep = (bound / far).clamp(max=1).float()
                weights |= {name: _shrunk(weights[name], old[name], change[name], keep) for name in names}
        for kind, vote in votes.items():
            self.votes.setdefault(kind, []).append(vote)
        if any(weights[name] is not update.weights[name] for name in weights):
            self.seen.clipped.append(update.client)
        return replace(update, weights=weights)

    def _bound(self, kind: str, old: Weights) -> Tensor:
        """How far a number of each base may move."""
        size = root_mean_square(old)
        usual = self.usual.get(kind, 0.0)
        bound = (torch.full_like(size, usual) if usual > 0 else size) * (self.clip or math.inf)
        return torch.where(bound > 0, bound, math.inf)  # of a base that is all zeros, nothing is known


def misfit(job: Train | Calibrate, answer: Any, samples: int) -> Fault | None:
    """What is wrong with an answer as a whole: it must be to this job, and speak of no more samples than are known."""
    if not isinstance(answer, Update):
        return "kind", "it is no update"
    if isinstance(job, Train) and answer.run != job.run:
        return "run", "it is of another run"
    if isinstance(job, Train) and answer.round != job.round:
        return "round", f"it is of round {_short(answer.round)}, not {job.round}"
    if answer.client != job.client:
        return "client", f"it is of client {_short(answer.client)}, but {job.client} was asked"
    if answer.parts != job.parts:
        return "parts", "it does not hold the parts that were to be trained"
    if type(answer.samples) is not int or not 0 < answer.samples <= samples:
        return "samples", f"it claims {_short(answer.samples)} samples, but {samples} are registered"
    loss = answer.metrics.get("loss") if isinstance(job, Train) else 0.0
    if not isinstance(loss, float | int) or not math.isfinite(loss):
        return "loss", f"its loss is {_short(loss)}, which is no number"
    return None


def malformed(weights: Weights, like: Weights) -> Fault | None:
    """What is wrong with the tensors of an update; they must be like these: names, shapes and types, all finite."""
    missing, more = like.keys() - weights.keys(), weights.keys() - like.keys()
    if missing or more:
        return "keys", f"{len(missing)} of its {len(like)} entries are missing, and {len(more)} are too many"
    for name, wanted in like.items():
        value: Any = weights[name]
        if not isinstance(value, Tensor) or value.dtype != wanted.dtype or value.device != wanted.device:
            return "dtype", f"{name} is {_short(getattr(value, 'dtype', type(value).__name__))}, not {wanted.dtype}"
        if value.shape != wanted.shape or value.layout != wanted.layout:
            return "shape", f"{name} has the shape {_short(tuple(value.shape))}, not {tuple(wanted.shape)}"
        if not value.isfinite().all():
            return "finite", f"{name} has values that are not finite"
        if name.endswith("running_var") and (value < 0).any():
            return "variance", f"{name} has a variance below zero"
    return None


def fair(job: Score, answer: Any) -> bool:
    """Whether an answer is a tally of what was asked, with no more right answers than images."""
    return (
        isinstance(answer, Tally)
        and answer.client == job.client
        and len(answer.correct) == len(job.mixes)
        and all(type(count) is int for count in (*answer.correct, answer.samples))
        and all(0 <= count <= answer.samples for count in answer.correct)
    )


def root_mean_square(entries: Weights) -> Tensor:
    """Of all numbers of each base."""
    rows = [value.reshape(len(value), -1) for value in entries.values()]  # in one order, however they lie in memory
    squares = torch.stack([torch.linalg.vector_norm(row, dim=1).double().square() for row in rows]).sum(0)
    return (squares / sum(row.shape[1] for row in rows)).sqrt()


def size_of(weights: Any) -> int:
    """Bytes of all tensors."""
    values = weights.values() if isinstance(weights, Mapping) else ()
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _shrunk(value: Tensor, old: Tensor, change: Tensor, keep: Tensor) -> Tensor:
    """The value, where `keep` is less than one nearer to the old one."""
    share = keep.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
    return torch.where(share < 1, old + change * share, value)


def _short(value: Any) -> str:
    """What a stranger sent, in few characters."""
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
