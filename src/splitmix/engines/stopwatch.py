"""Where the time of a run goes: the seconds of each step, over all processes."""

import multiprocessing
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from splitmix.core.batches import Clock
from splitmix.core.types import Job, Train

STEPS = {
    "data": "gathering and augmenting batches",
    "forward": "losses, with the attacks of adversarial training",
    "backward": "gradients",
    "optimizer": "steps of the optimizer",
    "other": "downloads, uploads, and what a job makes once",
    "scoring": "validating, calibrating and testing",
    "merge": "the server's checks and means, beside its clients",
    "waiting": "of workers without a job",
}


class Stopwatch(Clock):
    """Counts the seconds of each step in memory that forked workers share."""

    def __init__(self) -> None:
        self.shared = multiprocessing.get_context("fork").Array("d", len(STEPS))
        self.last = 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """What was counted until now."""
        return dict(zip(STEPS, self.shared[:], strict=True))

    def add(self, step: str, seconds: float) -> None:
        with self.shared.get_lock():
            self.shared[list(STEPS).index(step)] += seconds

    def start(self) -> None:
        """Forget what passed since the last lap."""
        self.last = perf_counter()

    def lap(self, step: str) -> None:
        now = perf_counter()
        self.add(step, now - self.last)
        self.last = now

    def watched(self, answers: Iterator[Any], jobs: Sequence[Job], workers: int) -> Iterator[Any]:
        """The answers to jobs; notes what their receiver takes for them, and how long workers had nothing to do."""
        began, busy, outside = perf_counter(), self._busy(), 0.0
        for answer in answers:
            given = perf_counter()
            yield answer
            outside += perf_counter() - given
        self.add("merge" if jobs and isinstance(jobs[0], Train) else "scoring", outside)
        passed = workers * (perf_counter() - began) if workers > 1 else perf_counter() - began - outside
        self.add("waiting", max(0.0, passed - (self._busy() - busy)))

    def shares(self) -> dict[str, float]:
        """The share of each step in all that was counted."""
        seconds = self.seconds
        return {step: taken / (sum(seconds.values()) or 1.0) for step, taken in seconds.items()}

    def _busy(self) -> float:
        """What clients have counted."""
        seconds = self.seconds
        return sum(seconds[step] for step in STEPS if step not in ("merge", "waiting"))
