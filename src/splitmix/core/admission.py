"""Trust: every answer is checked before it counts, whatever engine carried it.

An update that is not what its job asked for is dropped, alone, with a reason. A change that is too large is clipped.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from splitmix.core.batches import step_count
from splitmix.core.net import Net
from splitmix.core.parts import covering, cut, middle
from splitmix.core.types import Calibrate, Layout, Missing, Profile, Score, Tally, Train, Update, Weights, plain_name
from splitmix.core.width import Width

Usual = Mapping[str, float]  # how far clients usually move a number in a round, by entry, and in how many steps
Fault = tuple[str, str]  # a kind, in a word, and a sentence
VOTES = 3  # the least number of clients whose median says what is usual
HIGHEST = 1e9  # loss that counts: sums of such are finite
LITTLE = 1e-4  # of its size an entry may always move: what norms make of a bias before them is noise
FIRST = 0.5  # of its size an entry may move while nothing is usual: nobody can wipe it out


@dataclass(frozen=True)
class Rejected:
    """An update that did not count: whose it was, what kind of fault it had, and the same in words.

    An engine gives it in place of an answer that it cannot even read.
    """

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


@dataclass
class Admission:
    """Checks the answers of one round, one at a time, and notes who came.

    Who moves an entry of a base more than `clip` times as far as usual is brought back to what is usual, and nearer the
    further it went. What is usual is the median, over the clients of the round before, of how far a number of the entry
    moved (root mean square); up to `clip` times more for a client that takes more steps. While nothing is usual yet, an
    entry may move by half of its size.
    """

    net: Net
    layout: Layout
    weights: Weights
    cohort: Sequence[Profile]
    clip: float = 0.0  # 0: any distance is fine
    usual: Usual = field(default_factory=dict)
    seen: Attendance = field(init=False)
    votes: dict[str, list[float]] = field(default_factory=dict, init=False)  # of each client, for what is usual

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
            fault = mismatch(job, answer, samples[job.client])
            update = fault or self._checked(job, answer)
            if not isinstance(update, Update):
                self.seen.rejected.append(Rejected(job.client, *update))
                continue
            self.seen.accepted.append(job.client)
            self.seen.updates.update(part.base for part in covering(job.parts))
            self.seen.losses.append(update.metrics["loss"])
            yield update

    def usual_next(self) -> Usual:
        """What is usual after this round; a round of too few clients changes nothing."""
        heard = {name: median_low(votes) for name, votes in self.votes.items() if len(votes) >= VOTES}
        return {**self.usual, **heard}

    def _checked(self, job: Train, update: Update) -> Update | Fault:
        """The update, if its tensors are what the job asked for, with no base further from the old than it may be."""
        parts, steps = covering(job.parts), step_count(update.samples, job.plan.batch, job.plan.epochs)
        private = self.net.norm_names(parts[0].width) if job.local_norms else set()
        sent = cut(self.net, self.layout, self.weights, job.parts)
        old = {name: value for name, value in sent.items() if name not in private}
        fault = malformed(update.weights, old)
        if fault:
            return fault
        weights, votes = dict(update.weights), {"steps": float(steps)}
        sizes = self._sizes(parts[0].width, old) if self.clip else {}
        for name, was in old.items():
            change = weights[name] - was
            far = root_mean_square(change)
            if not far.isfinite().all():
                return not_finite(update.weights) or ("size", "its change is too large to be measured")
            if self.clip:
                usual, bound = self._bound(name, sizes[name], steps)
                keep = torch.where(far > bound, usual * bound / far.square(), 1.0)
                if (keep < 1).any():
                    weights[name] = _shrunk(weights[name], was, change, keep)
                far = torch.minimum(far, bound)
            votes[name] = float(far.square().mean().sqrt())
        for name, vote in votes.items():
            self.votes.setdefault(name, []).append(vote)
        if any(weights[name] is not value for name, value in update.weights.items()):
            self.seen.clipped.append(job.client)
        return replace(update, weights=weights)

    def _bound(self, name: str, size: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """How far a number of an entry usually moves in so many steps, and how far it may move."""
        usual = self.usual.get(name, 0.0)
        if usual <= 0:
            far = torch.where(size > 0, FIRST * size, math.inf)  # of a base that is all zeros, nothing is known
            return far, far
        more = min(max(1.0, steps / self.usual["steps"]), max(1.0, self.clip))  # the client itself says how many
        allowed = (LITTLE * size).clamp(min=usual * more)
        return allowed, allowed * self.clip

    def _sizes(self, width: Width, entries: Weights) -> dict[str, Tensor]:
        """The size of a number of each entry, in each base; of one that is all zeros, that of all of its kind."""
        statistics = self.net.statistic_names(width)
        sizes = {name: root_mean_square(value) for name, value in entries.items()}
        for kind in (True, False):
            alike = [name for name in entries if (plain_name(name) in statistics) is kind]
            if alike:
                usual = torch.stack([sizes[name].square() for name in alike]).mean(0).sqrt()
                sizes |= {name: torch.where(sizes[name] > 0, sizes[name], usual) for name in alike}
        return sizes


def plausible(profiles: Sequence[Profile], limit: int | str | None) -> tuple[list[Profile], list[Missing]]:
    """The clients that may be asked, and those that registered too many samples to be believed."""
    if limit is None or not profiles:
        return list(profiles), []
    usual = median_low(profile.samples for profile in profiles)
    most = limit if isinstance(limit, int) else int(limit.removesuffix("x")) * usual
    return (
        [profile for profile in profiles if profile.samples <= most],
        [Missing(profile.client, "not asked: too many samples") for profile in profiles if profile.samples > most],
    )


def mismatch(job: Train | Calibrate, answer: Any, samples: int) -> Fault | None:
    """What is wrong with an answer as a whole: it must be to this job, and speak of no more samples than are known."""
    if isinstance(answer, Rejected):
        return answer.kind, answer.reason
    if not isinstance(answer, Update):
        return "kind", str(getattr(answer, "reason", "it is no update"))
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
    if not isinstance(loss, float | int) or not abs(loss) < HIGHEST:
        return "loss", f"its loss is {_short(loss)}, which is no number below {HIGHEST:g}"
    return None


def malformed(weights: Weights, like: Weights) -> Fault | None:
    """What is wrong with the tensors of an update; they must be like these in names, types and shapes."""
    missing, more = like.keys() - weights.keys(), weights.keys() - like.keys()
    if missing or more:
        return "keys", f"{len(missing)} of its {len(like)} entries are missing, and {len(more)} are too many"
    for name, wanted in like.items():
        value: Any = weights[name]
        if not isinstance(value, Tensor) or value.dtype != wanted.dtype or value.device != wanted.device:
            return "dtype", f"{name} is {_short(getattr(value, 'dtype', type(value).__name__))}, not {wanted.dtype}"
        if value.shape != wanted.shape or value.layout != wanted.layout:
            return "shape", f"{name} has the shape {_short(tuple(value.shape))}, not {tuple(wanted.shape)}"
        if name.endswith("running_var") and (value < 0).any():
            return "variance", f"{name} has a variance below zero"
    return None


def not_finite(weights: Weights) -> Fault | None:
    """Which entry is not finite."""
    for name, value in weights.items():
        if not value.isfinite().all():
            return "finite", f"{name} has values that are not finite"
    return None


def valid_moments(job: Calibrate, answer: Any, like: Weights, samples: int) -> bool:
    """Whether an answer holds moments of norms that there are; those that the net does not use may be left out."""
    if mismatch(job, answer, samples) or not isinstance(answer.weights, dict):
        return False
    known = {name: value for name, value in like.items() if name in answer.weights}
    if malformed(answer.weights, known) or not_finite(answer.weights):
        return False
    return all(name.replace("running_var", "running_mean") in known for name in known)


def bounded_statistics(found: Sequence[Weights], clip: float) -> list[Weights]:
    """Norm statistics of several clients, none of which is far off for an entry of a base.

    Who is more than `clip` times as far from the median of all as is usual is brought back to what is usual, or nearer.
    """
    bounded: list[Weights] = [{} for _ in found]
    for name in {name: None for one in found for name in one}:
        told = [i for i, one in enumerate(found) if name in one]
        values = torch.stack([found[i][name] for i in told])
        centre = middle(values, 0.5)
        far = torch.stack([root_mean_square(value - centre) for value in values])
        usual = middle(far, 0.5)
        keep = torch.where(far > clip * usual, clip * (usual / far).square(), 1.0)
        for i, value, share in zip(told, values, keep, strict=True):
            bounded[i][name] = _shrunk(value, centre, value - centre, share)
    return bounded


def valid_tally(job: Score, answer: Any) -> bool:
    """Whether an answer is a tally of what was asked, with no more right answers than images."""
    return (
        isinstance(answer, Tally)
        and answer.client == job.client
        and len(answer.correct) == len(job.mixes)
        and all(type(count) is int for count in (*answer.correct, answer.samples))
        and all(0 <= count <= answer.samples for count in answer.correct)
    )


def root_mean_square(entry: Tensor) -> Tensor:
    """Of all numbers of each base."""
    rows = entry.reshape(len(entry), -1)  # in one order, however they lie in memory
    squares: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square()
    return (squares / rows.shape[1]).sqrt()


def size_of(weights: Any) -> int:
    """Bytes of all tensors."""
    values = weights.values() if isinstance(weights, Mapping) else ()
    return sum(value.numel() * value.itemsize for value in values if isinstance(value, Tensor))


def _shrunk(value: Tensor, old: Tensor, change: Tensor, keep: Tensor) -> Tensor:
    """The value, with the change of those bases made smaller of which less than all may be kept."""
    share = keep.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
    return torch.where(share < 1, old + change * share, value)


def _short(value: Any) -> str:
    """What a stranger sent, in few characters."""
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
