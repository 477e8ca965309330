"""`make fuzz`: ten thousand mutants over all readers, each in a process that is watched; exit code 1 if any breaks out.

A mutant must be read or refused: no traceback, no death, no hang, no memory beyond the bound, nothing imported or run.
The same numbers give the same mutants: `python -m fuzz --only npz --first 123 --mutants 1` repeats one.
"""

import argparse
import logging
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz.guard import guarded
from fuzz.readers import READERS, Reader

Makers = Mapping[str, Callable[[Path], Reader]]


@dataclass(frozen=True)
class Limits:
    """What a mutant may take."""

    seconds: float = 2.0  # of the processor: the machine may be busy with other things
    memory: int = 500 << 20  # bytes, beyond what the process had
    wall: float = 60.0  # seconds until a process is taken to hang


@dataclass
class Tally:
    """What came of the mutants so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")


class Worker:
    """A process that reads one mutant after the other, and is begun anew when it dies or hangs."""

    def __init__(self, makers: Makers, limits: Limits) -> None:
        self.makers, self.limits = makers, limits
        self.task: tuple[str, int] | None = None
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.line, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.makers, self.limits), daemon=True)
        self.process.start()
        other.close()

    def give(self, task: tuple[str, int]) -> None:
        self.task, self.since = task, time.monotonic()
        self.line.send(task)

    def overdue(self) -> bool:
        return self.task is not None and time.monotonic() - self.since > self.limits.wall

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.line.close()


def serve(line: Connection, makers: Makers, limits: Limits) -> None:
    """Read mutants as they are asked for, and tell what came of each: outcome, seconds, bytes."""
    made: dict[str, Reader] = {}
    with tempfile.TemporaryDirectory() as folder:
        while True:
            name, number = line.recv()
            if name not in made:
                made[name] = makers[name](fresh(Path(folder, name)))
            line.send(judged(made[name], number, limits))


def fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def judged(reader: Reader, number: int, limits: Limits) -> tuple[str, float, int]:
    """Read one mutant within limits."""
    mutant, before, began = reader.mutant(number), peak(reset=True), time.process_time()
    room = 4 * limits.memory + used("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with guarded() as done:
        try:
            outcome = "read" if reader.accepts(mutant) else "refused"
        except BaseException as error:  # that is what is looked for
            outcome = f"! {type(error).__name__}: {str(error)[:200]!r}"
    seconds, memory = time.process_time() - began, max(0, peak() - before)
    if done:
        outcome = f"! it did what it must not: {done[0]}"
    elif seconds > limits.seconds:
        outcome = f"! it hangs for {seconds:.1f} s"
    elif memory > limits.memory:
        outcome = f"! it takes {memory >> 20} MB"
    return outcome, seconds, memory


def used(what: str) -> int:
    """Bytes that this process uses or used, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


def peak(*, reset: bool = False) -> int:
    """The most memory so far, or since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return used("VmHWM")


def failures(
    makers: Makers, mutants: int, *, first: int = 0, limits: Limits | None = None, workers: int = 2
) -> list[str]:
    """Have all mutants read, tell how it goes, and list what broke out."""
    tasks = [(name, first + number) for number in range(-(-mutants // len(makers))) for name in makers][:mutants]
    waiting, tally, total = iter(tasks), Tally(), len(tasks)
    staff = [Worker(makers, limits or Limits()) for _ in range(min(workers, total))]
    for worker in staff:
        worker.give(next(waiting))
    while busy := [worker for worker in staff if worker.task]:
        ready = wait([worker.line for worker in busy], timeout=1)
        for worker in busy:
            if worker.line in ready or worker.overdue():
                settle(worker, tally, total)
                worker.task = None
                if (task := next(waiting, None)) is not None:
                    worker.give(task)
    for worker in staff:
        worker.end()
    (seconds, slow), (memory, large) = tally.slowest, tally.largest
    print(f"slowest {seconds:.2f} s ({slow}), largest {memory >> 20} MB ({large})")
    return tally.failures


def settle(worker: Worker, tally: Tally, total: int) -> None:
    """Take down what a worker found, or that it found nothing any more."""
    name, number = worker.task or ("", 0)
    where = f"{name} {number}"
    try:
        if worker.overdue():
            raise TimeoutError(f"! it hangs for more than {worker.limits.wall:g} s")
        outcome, seconds, memory = worker.line.recv()
    except (EOFError, ConnectionError, TimeoutError) as error:
        worker.end()
        outcome = str(error) if isinstance(error, TimeoutError) else f"! the process died ({worker.process.exitcode})"
        seconds, memory = 0.0, 0
        worker.start()
    tally.outcomes[outcome.partition(" ")[0]] += 1
    tally.slowest = max(tally.slowest, (seconds, where))
    tally.largest = max(tally.largest, (memory, where))
    if outcome.startswith("!"):
        tally.failures.append(f"{where}: {outcome[2:]}")
        print(tally.failures[-1], flush=True)
    if (done := tally.outcomes.total()) % max(1, total // 10) == 0:
        told = ", ".join(f"{count:,} {'broke out' if what == '!' else what}" for what, count in tally.outcomes.items())
        print(f"{done:,} of {total:,} mutants: {told}", flush=True)


def main(words: list[str] | None = None) -> Any:
    parse = argparse.ArgumentParser(prog="python -m fuzz", description="Mutants for every reader.")
    parse.add_argument("--mutants", type=int, default=10_000)
    parse.add_argument("--first", type=int, default=0, help="number of the first mutant of each reader")
    parse.add_argument("--only", choices=READERS, help="one reader")
    parse.add_argument("--workers", type=int, default=2)
    given = parse.parse_args(words)
    logging.disable()  # what parsers say of each mutant
    makers = {given.only: READERS[given.only]} if given.only else READERS
    found = failures(makers, given.mutants, first=given.first, workers=given.workers)
    print(f"{len(found)} of {given.mutants:,} mutants broke out")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
