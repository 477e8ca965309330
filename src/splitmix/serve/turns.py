"""Whose turn it is: a few threads for all, a line for each address, so that nobody waits for the many of another."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from splitmix.serve.limits import ServerLimits

Item = TypeVar("Item")
Given = TypeVar("Given")
Done = TypeVar("Done")


class BusyError(Exception):
    """More waits already than can be done soon; `status` says whose fault it is."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Turns(Generic[Item]):
    """Lines of waiting items that take turns: the first of one line, then the first of the next.

    >>> turns = Turns[str]()
    >>> for who in "aaab":
    ...     turns.add(who, f"{who} {len(turns)}")
    >>> [turns.next() for _ in range(4)]
    ['a 0', 'b 3', 'a 1', 'a 2']
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def behind(self, line: Hashable) -> int:
        """How many wait in a line."""
        return len(self._lines.get(line, ()))

    def add(self, line: Hashable, item: Item) -> None:
        self._lines.setdefault(line, deque()).append(item)

    def next(self, may_start: Callable[[Item], bool] = lambda _: True) -> Item | None:
        """Whose turn it is, of those that may start now; its line waits for the others then."""
        for line, items in self._lines.items():
            if may_start(items[0]):
                item = items.popleft()
                self._lines.move_to_end(line)
                if not items:
                    del self._lines[line]
                return item
        return None

    def take(self, alike: Callable[[Item], bool], most: int) -> list[Item]:
        """Others that may go along out of turn, at most so many: the first of those that are alike, line by line."""
        taken: list[Item] = []
        for line, items in list(self._lines.items()):
            chosen = [item for item in items if alike(item)][: most - len(taken)]
            if chosen:
                taken += chosen
                self._lines[line] = deque(item for item in items if item not in chosen)
                if not self._lines[line]:
                    del self._lines[line]
        return taken


@dataclass(eq=False)
class Job:
    """Something to do in a thread, and who waits for it; what has the same key can be done in one go."""

    work: Callable[[Sequence[Any]], Sequence[Any]]
    given: Any
    key: Hashable
    costly: bool
    done: asyncio.Future[Any]

    def goes_with(self, other: "Job") -> bool:
        return self.key is not None and self.key == other.key


class Crew:
    """Threads that do what is asked, in turn; costly jobs leave one of them to the others."""

    def __init__(self, limits: ServerLimits) -> None:
        self._pool = ThreadPoolExecutor(limits.threads, "predict", initializer=one_thread)
        self._limits, self._turns, self._running, self._costly, self._called = limits, Turns[Job](), 0, 0, False

    @property
    def under_way(self) -> int:
        """Jobs that run or wait."""
        return self._running + len(self._turns)

    async def run(
        self, work: Callable[[], Done], *, who: str = "", costly: bool = False, most: int | None = None
    ) -> Done:
        """Do some work when it is its turn, or refuse it if too much, or `most` of the same address, is waiting."""
        return await self._queue(Job(lambda _: [work()], None, None, costly, _future()), who, most)

    async def run_together(
        self, work: Callable[[Sequence[Given]], Sequence[Done]], given: Given, *, key: Hashable, who: str = ""
    ) -> Done:
        """The same for work on many things at once: whatever waits with this key is done in one go."""
        return await self._queue(Job(work, given, key, False, _future()), who)

    async def _queue(self, job: Job, who: str, most: int | None = None) -> Any:
        limits, line = self._limits, (who, job.costly)
        bound = limits.of_one_address(limits.each if most is None else most)
        if self._turns.behind(line) >= bound:
            self._start()  # what came at the same moment does not wait where a thread is free
        if self._turns.behind(line) >= bound:
            raise BusyError(429, "too much that came from your address is waiting; try again in a moment")
        if self.under_way >= limits.threads + limits.waiting:
            raise BusyError(503, "too many predictions are waiting; try again in a moment")
        self._turns.add(line, job)
        if not self._called:  # in a moment: what has arrived with it goes along
            self._called = True
            asyncio.get_running_loop().call_soon(self._start)
        return await job.done

    def close(self) -> None:
        """Finish what runs, and drop what waits."""
        while job := self._turns.next():
            job.done.cancel()
        self._pool.shutdown()

    def _start(self) -> None:
        self._called = False
        while self._running < self._limits.threads and (job := self._turns.next(self._may_start)):
            jobs = [job, *self._turns.take(job.goes_with, self._limits.batch - 1)]
            self._running += 1
            self._costly += job.costly
            future = asyncio.get_running_loop().run_in_executor(self._pool, outcomes, jobs)
            future.add_done_callback(partial(self._finish, jobs))

    def _may_start(self, job: Job) -> bool:
        return not job.costly or self._costly < max(1, self._limits.threads - 1)

    def _finish(self, jobs: Sequence[Job], found: asyncio.Future[list[Any]]) -> None:
        self._running -= 1
        self._costly -= jobs[0].costly
        for job, outcome in zip(jobs, found.result(), strict=True):
            if job.done.done():  # whoever asked has gone
                continue
            if isinstance(outcome, Exception):
                job.done.set_exception(outcome)
            else:
                job.done.set_result(outcome)
        self._start()


def one_thread() -> None:
    """One thread for each prediction: small nets do not get faster by more, and answers repeat to the bit."""
    with suppress(ImportError):  # ONNX Runtime has one anyway
        import torch

        torch.set_num_threads(1)


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def outcomes(jobs: Sequence[Job]) -> list[Any]:
    """What came of each job, or its error; if they fail together, each is tried alone: none spoils the others."""
    try:
        return list(jobs[0].work([job.given for job in jobs]))
    except Exception as error:
        return [error] if len(jobs) == 1 else [outcome for job in jobs for outcome in outcomes([job])]
