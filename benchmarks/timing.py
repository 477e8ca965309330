"""Ratios that mean something on a busy machine: in turns, by the clock and by processor time, until they are sure."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

TICK = os.sysconf("SC_CLK_TCK")
SURE = 0.10  # of a ratio is how wide its interval may be
STEADY = 0.8  # of the best rate of a run: where matrix products were slower, others had the processors


class Spent(NamedTuple):
    """What a turn took: seconds by the clock, and of all processors together."""

    clock: float
    processor: float


class Interval(NamedTuple):
    """A median, and between which values it may well lie."""

    middle: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        return self.high - self.low <= SURE * self.middle


@dataclass
class Turns:
    """What several ways to do the same took, turn by turn, and how fast matrix products were around them."""

    spent: dict[str, list[Spent]]
    rates: list[float] = field(default_factory=list)

    def seconds(self, way: str, what: str) -> list[float]:
        return [getattr(spent, what) for spent in self.spent[way]]

    def ratio(self, way: str, to: str, what: str) -> Interval:
        """How many times as long one way took as another, by `clock` or `processor`, of the same turns."""
        return middle([a / b for a, b in zip(self.seconds(way, what), self.seconds(to, what), strict=True)])

    def sure(self, to: str) -> bool:
        return all(self.ratio(way, to, what).sure for way in self.spent if way != to for what in Spent._fields)

    def verdict(self, to: str) -> str:
        """Whether the ratios can be relied on."""
        slowest, fastest = min(self.rates) / 1e9, max(self.rates) / 1e9
        seen = f"matrix products ran at {slowest:.0f} to {fastest:.0f} GFLOP/s"
        if self.sure(to):
            return f"every ratio within {SURE:.0%}; {seen}"
        busy = "the machine was too busy" if slowest < STEADY * fastest else "the turns differ by themselves"
        return f"not every ratio within {SURE:.0%}: {busy}; {seen}"

    def row(self, way: str, to: str) -> dict[str, Any]:
        """What is kept of a way: medians, every turn, and how many times as long as the other it took."""
        found: dict[str, Any] = {"turns": len(self.spent[way]), "verdict": self.verdict(to)}
        for what in Spent._fields:
            taken = self.seconds(way, what)
            found[what] = {"seconds": median(taken), "each": taken, "ratio": self.ratio(way, to, what)._asdict()}
        return found


def in_turns(ways: Mapping[str, Callable[[], Spent]], to: str, *, least: int = 5, most: int = 12) -> Turns:
    """All ways in turns until every ratio is sure, or `most` times; they are warm already."""
    turns = Turns({name: [] for name in ways}, [matmul_rate()])
    while len(turns.spent[to]) < most and (len(turns.spent[to]) < least or not turns.sure(to)):
        for name, way in ways.items():
            turns.spent[name].append(way())
        turns.rates.append(matmul_rate())
    return turns


def middle(values: Sequence[float], *, level: float = 0.95, draws: int = 2000) -> Interval:
    """The median and its bootstrapped interval; the same values give the same interval.

    >>> middle([2.0, 2.0, 2.0])
    Interval(middle=2.0, low=2.0, high=2.0)
    """
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(np.asarray(values), (draws, len(values))), axis=1)
    low, high = np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2))
    return Interval(median(values), float(low), float(high))


def timed(call: Callable[[], object], pid: int | None = None) -> Spent:
    """What a call takes, of this process and those it started, or of another process and those that it did."""
    pid = pid or os.getpid()
    before, began = processor_seconds(pid), perf_counter()
    call()
    clock = perf_counter() - began
    return Spent(clock, processor_seconds(pid) - before)


def processor_seconds(pid: int) -> float:
    """Of a process, of all that it started and they did, and of those of them that have ended."""
    ticks = 0
    for process in tree(pid):
        with suppress(OSError):
            ticks += sum(map(int, _stat(process)[11:15]))
    return ticks / TICK


def memory_mb(pid: int) -> float:
    """Memory of a process and all below it now; what several of them share counts once."""
    total = 0
    for process in tree(pid):
        with suppress(OSError, IndexError):
            total += int(Path(f"/proc/{process}/smaps_rollup").read_text().split("\nPss:")[1].split()[0])
    return total / 1024


def forget_peak() -> None:
    """From now on `peak_mb` tells of what comes."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The most memory that this process had."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for process in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):
            below.setdefault(int(_stat(process)[1]), []).append(process)
    found = [pid]
    for process in found:
        found += below.get(process, [])
    return found


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def matmul_rate(size: int = 1024, times: int = 20) -> float:
    """Flops per second of a large matrix product on all threads: how much of the machine there is just now."""
    import torch

    a = torch.rand(size, size)
    return 2 * size**3 / min(_clock(lambda: a @ a) for _ in range(times))


def _clock(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def told(row: Mapping[str, Any]) -> str:
    """A row in one line, for who waits."""
    return json.dumps({key: value for key, value in row.items() if key != "machine"}, default=str)


def ratio_text(ratio: Mapping[str, float]) -> str:
    """A ratio with its interval.

    >>> ratio_text({"middle": 3.14159, "low": 3.0, "high": 3.3})
    '3.14 (3.00 to 3.30)'
    """
    return f"{ratio['middle']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
