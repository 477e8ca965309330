"""Trust: every answer is checked before it counts, whatever engine carried it.

An update that is not what its job asked for is dropped, alone, with a reason. One that goes much further than those of
other clients counts little.
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
from splitmix.core.parts import covering, cut, form, like, middle, returned
from splitmix.core.types import Calibrate, Layout, Missing, Profile, Score, Tally, Train, Update, Weights, plain_name
from splitmix.core.width import Width

Fault = tuple[str, str]  # a kind, in a word, and a sentence
VOTES = 3  # the least number of clients whose median says what is usual
HIGHEST = 1e9  # loss that counts: sums of such are finite
LITTLE = 1e-4  # of its size an entry may always move: what norms make of a bias before them is noise
ALONE = 0.5  # of its size a base may move where nothing is usual: nobody can wipe it out
QUIETEST = 1e-6  # of a vote: sums of such are no zeros


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


@dataclass(frozen=True)
class Moved:
    """An update, in how many steps it was made, and how far it moved a number of each entry in each base."""

    update: Update
    steps: int
    far: Weights  # root mean squares, a number for each base; where nobody asks, none, as below
    sizes: Weights  # the same of what the entries were before


@dataclass
class Admission:
    """Checks the answers of one round, and notes who came.

    With `clip`, updates of the round are compared. What is usual for an entry is the median, over the clients, of how
    far they moved a number of it. Who moves a base more than `clip` times as far as usual (root mean square, over its
    entries, of how many times as far) is brought back to what is usual, and nearer the further it went; and its
    samples count less, by the square of that.
    """

    net: Net
    layout: Layout
    weights: Weights
    cohort: Sequence[Profile]
    clip: float = 0.0  # 0: any distance is fine
    seen: Attendance = field(init=False)
    _looks: dict[Any, Weights] = field(default_factory=dict, init=False)  # of what clients are to give back, by form

    def __post_init__(self) -> None:
        self.seen = Attendance(tuple(profile.client for profile in self.cohort))

    def admitted(self, jobs: Sequence[Train], answers: Iterable[Any]) -> Iterator[Update]:
        """The updates that count, in the order of the jobs: one in memory at a time, or all, to be compared."""
        sound = self._sound(jobs, answers)
        if not self.clip:
            yield from (moved.update for moved in sound)
            return
        held = list(sound)
        usual = usual_moves(held)
        steps = median_low(moved.steps for moved in held) if held else 1
        for moved in held:
            times = times_as_far(moved, usual, steps, self.clip)
            yield moved.update if times <= self.clip else self._brought_back(moved, times)

    def _sound(self, jobs: Sequence[Train], answers: Iterable[Any]) -> Iterator[Moved]:
        """The updates that are what their jobs asked for, in this order, with one vote each."""
        samples = {profile.client: profile.samples for profile in self.cohort}
        for job, answer in zip_longest(jobs, answers):
            if job is None or answer is None:
                raise RuntimeError(f"an engine gives one answer for each job, but not so to {len(jobs)} jobs")
            if isinstance(answer, Missing):
                self.seen.missing.append(Missing(job.client, answer.reason))
                continue
            self.seen.bytes_up += size_of(getattr(answer, "weights", {}))
            fault = mismatch(job, answer, samples[job.client])
            moved = fault or self._measured(job, replace(answer, weight=1))
            if not isinstance(moved, Moved):
                self.seen.rejected.append(Rejected(job.client, *moved))
                continue
            self.seen.accepted.append(job.client)
            self.seen.updates.update(part.base for part in covering(job.parts))
            self.seen.losses.append(moved.update.metrics["loss"])
            yield moved

    def _measured(self, job: Train, update: Update) -> Moved | Fault:
        """How far an update went, if its tensors are what the job asked for; where all is near enough, only that."""
        old = self._sent(job)
        fault = malformed(update.weights, old)
        if fault:
            return fault
        if self.clip:
            far = {name: root_mean_square(update.weights[name] - was) for name, was in old.items()}
            found = list(far.values())
        else:  # one look at each number tells whether all are finite
            far, found = {}, list(torch._foreach_norm(list(update.weights.values())))
        if not torch.stack(found).isfinite().all():
            return not_finite(update.weights) or ("size", "its numbers are too large to be measured")
        sizes = self._sizes(covering(job.parts)[0].width, old) if self.clip else {}
        return Moved(update, step_count(update.samples, job.plan.batch, job.plan.epochs), far, sizes)

    def _sent(self, job: Train) -> Weights:
        """What a client is to give back, as it was; where updates are not compared, only what it looks like."""
        look = () if self.clip else (*form(job.parts), job.local_norms)
        if look in self._looks:
            return self._looks[look]
        sent = returned(self.net, self.layout, self.weights, job, cut if self.clip else like)
        if look:
            self._looks[look] = sent
        return sent

    def _brought_back(self, moved: Moved, times: float) -> Update:
        """An update that went so many times as far as usual, with a smaller change and a smaller vote."""
        self.seen.clipped.append(moved.update.client)
        share = self.clip / times
        sent = cut(self.net, self.layout, self.weights, moved.update.parts)
        weights = {name: _shrunk(value, sent[name], share / times) for name, value in moved.update.weights.items()}
        return replace(moved.update, weights=weights, weight=max(QUIETEST, share**2))

    def _sizes(self, width: Width, entries: Weights) -> Weights:
        """The size of a number of each entry, in each base; of one that is all zeros, that of all of its kind."""
        statistics = self.net.statistic_names(width)
        sizes = {name: root_mean_square(value) for name, value in entries.items()}
        for kind in (True, False):
            alike = [name for name in entries if (plain_name(name) in statistics) is kind]
            if alike:
                usual = torch.stack([sizes[name].square() for name in alike]).mean(0).sqrt()
                sizes |= {name: torch.where(sizes[name] > 0, sizes[name], usual) for name in alike}
        return sizes


def usual_moves(held: Sequence[Moved]) -> dict[str, float]:
    """How far a number of each entry usually moves: the median of the clients, where enough of them moved it."""
    votes: dict[str, list[float]] = {}
    for moved in held:
        for name, far in moved.far.items():
            votes.setdefault(name, []).append(float(far.square().mean().sqrt()))
    usual = {name: median_low(vote) for name, vote in votes.items() if len(vote) >= VOTES}
    return {name: far for name, far in usual.items() if far > 0}


def times_as_far(moved: Moved, usual: Mapping[str, float], steps: int, clip: float) -> float:
    """How many times as far as usual an update moved a base, of its bases the one that it moved furthest.

    Up to `clip` times more steps than usual may go further in proportion: the client itself says how many it took.
    """
    more = min(max(1.0, moved.steps / steps), max(1.0, clip))
    times = []
    for name, far in moved.far.items():
        size = moved.sizes[name]
        known = (LITTLE * size).clamp(min=usual[name] * more) if name in usual else ALONE * size / clip
        times.append(far / torch.where(known > 0, known, math.inf))  # of a base that is all zeros, nothing is known
    return float(torch.stack(times).square().mean(0).sqrt().max())


def plausible(profiles: Sequence[Profile], limit: int | str | None) -> tuple[Sequence[Profile], list[Missing]]:
    """The clients that may be asked, and those that registered too many samples to be believed."""
    if limit is None or not profiles:
        return profiles, []
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
            bounded[i][name] = _shrunk(value, centre, share)
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


def _shrunk(value: Tensor, old: Tensor, keep: Tensor | float) -> Tensor:
    """The value, with the change of those bases made smaller of which less than all may be kept."""
    share = torch.as_tensor(keep, dtype=value.dtype).view(-1, *[1] * (value.dim() - 1))
    return torch.where(share < 1, old + (value - old) * share, value)


def _short(value: Any) -> str:
    """What a stranger sent, in few characters."""
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
