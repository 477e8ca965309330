"""Whose turn it is: a few threads for all, a line for each address, so that nobody waits for the many of another."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from splitmix.serve.limits import ServerLimits

Item = TypeVar("Item")
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


@dataclass(eq=False)
class Job:
    """Something to do in a thread, and who waits for it."""

    work: Callable[[], Any]
    costly: bool
    done: asyncio.Future[Any]


class Crew:
    """Threads that do what is asked, in turn; costly jobs leave one of them to the others."""

    def __init__(self, limits: ServerLimits) -> None:
        # one thread for each prediction: small nets do not get faster by more, and answers repeat to the bit
        self._pool = ThreadPoolExecutor(limits.threads, "predict", initializer=torch.set_num_threads, initargs=(1,))
        self._limits, self._turns, self._running, self._costly = limits, Turns[Job](), 0, 0

    @property
    def under_way(self) -> int:
        """Jobs that run or wait."""
        return self._running + len(self._turns)

    async def run(self, work: Callable[[], Done], *, who: str = "", costly: bool = False) -> Done:
        """Do some work when it is its turn, or refuse it if too much is waiting."""
        limits, line = self._limits, (who, costly)
        if self._turns.behind(line) >= limits.of_one_address(limits.attacks if costly else limits.each):
            raise BusyError(429, "too much that came from your address is waiting; try again in a moment")
        if self.under_way >= limits.threads + limits.waiting:
            raise BusyError(503, "too many predictions are waiting; try again in a moment")
        job = Job(work, costly, asyncio.get_running_loop().create_future())
        self._turns.add(line, job)
        self._start()
        found: Done = await job.done
        return found

    def close(self) -> None:
        """Finish what runs, and drop what waits."""
        while job := self._turns.next():
            job.done.cancel()
        self._pool.shutdown()

    def _start(self) -> None:
        while self._running < self._limits.threads and (job := self._turns.next(self._may_start)):
            self._running += 1
            self._costly += job.costly
            future = asyncio.get_running_loop().run_in_executor(self._pool, job.work)
            future.add_done_callback(partial(self._finish, job))

    def _may_start(self, job: Job) -> bool:
        return not job.costly or self._costly < max(1, self._limits.threads - 1)

    def _finish(self, job: Job, found: asyncio.Future[Any]) -> None:
        self._running -= 1
        self._costly -= job.costly
        error = found.exception()
        if not job.done.done():  # whoever asked may have gone
            job.done.set_exception(error) if error else job.done.set_result(found.result())
        self._start()
