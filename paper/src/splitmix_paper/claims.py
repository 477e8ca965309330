"""Claims of the paper, judged by code: on our numbers with their noise, and on the paper's own where it prints them.

A difference counts if a paired bootstrap over clients and seeds (95 %) leaves out zero. Where the values of single
clients are not known, seeds alone must tell, three at least; else a claim is not testable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from splitmix.compare.statistics import paired_bootstrap

HOLDS, FAILS, NOISE = "holds", "does not hold", "within noise"
UNTESTABLE, UNKNOWN = "not testable", "not known"
WORDS = (HOLDS, FAILS, NOISE, UNTESTABLE)  # of claims whose runs are there
SEEDS = 3  # at least, where the values of clients are not known


class Place(NamedTuple):
    """Where a number stands: in which series, at which key (mostly a width), of which group and dials, if any."""

    series: str
    key: str
    group: str = ""
    width: str = ""
    dial: str = ""

    @property
    def heading(self) -> str:
        """The series in words, as it stands in a table.

        >>> Place("FedAvg", "1/8", group="2 clients").heading, Place("FedAvg", "clean", width="1", dial="0.2").heading
        ('2 clients: FedAvg', 'FedAvg, width 1, dial 0.2')
        """
        dials = "".join(f", {name} {value}" for name, value in (("width", self.width), ("dial", self.dial)) if value)
        return f"{self.group}: {self.series}{dials}" if self.group else f"{self.series}{dials}"

    @property
    def name(self) -> str:
        return self.heading if self.heading.endswith(f" {self.key}") else f"{self.heading} {self.key}"


@dataclass(frozen=True)
class Cell:
    """A number of a table for each seed, and what it is for each client; what is counted or printed has no noise."""

    place: Place
    values: Mapping[int, float]
    clients: Mapping[int, Sequence[float | None]] = field(default_factory=dict)
    kind: Literal["measured", "counted", "printed"] = "measured"

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        return stdev(self.values.values()) if len(self.values) > 1 else None


Cells = Mapping[Place, Cell]
Pair = tuple[Place, Place]


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a claim, the numbers, and why they say no more."""

    word: str
    evidence: str = ""
    why: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or the shape that one expects, and how it is judged."""

    text: str
    judge: Callable[[Cells], Verdict]
    too_short: str = ""  # why the runs at the scale cpu cannot tell, whatever they show

    def verdict(self, cells: Cells, scale: str) -> Verdict:
        found = self.judge(cells)
        if self.too_short and scale == "cpu" and found.word != UNKNOWN:
            return replace(found, word=UNTESTABLE, why=f"at this scale: {self.too_short}")
        return found


def all_too_short(why: str, *claims: Claim) -> list[Claim]:
    """Claims on runs that at the scale cpu cannot tell, if there is a reason why."""
    return [replace(claim, too_short=why) for claim in claims]


@dataclass(frozen=True)
class Gap:
    """By how much one number is above another, and between which values that may well lie."""

    one: Place
    other: Place
    value: float
    low: float = 0.0
    high: float = 0.0
    why: str = ""  # nothing can be said of the noise

    @property
    def word(self) -> str:
        """What it says of the claim that the first is above the second."""
        if self.why:
            return UNTESTABLE
        return HOLDS if self.low > 0 else FAILS if self.high < 0 else NOISE

    @property
    def text(self) -> str:
        sure = self.why or self.low == self.high
        return f"{self.value:+.1f}" if sure else f"{self.value:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def higher(text: str, *pairs: Pair, too_short: str = "") -> Claim:
    """The first of each pair is above the second."""

    def judge(cells: Cells) -> Verdict:
        gaps = _gaps(cells, pairs)
        return Verdict(_together([gap.word for gap in gaps]), _told(gaps), _why(gaps)) if gaps else Verdict(UNKNOWN)

    return Claim(text, judge, too_short)


def alike(text: str, *pairs: Pair) -> Claim:
    """The two of each pair differ by no more than their noise; printed numbers have none that we know of."""

    def judge(cells: Cells) -> Verdict:
        gaps = _gaps(cells, pairs)
        if not gaps or any(gap.value and cells[gap.one].kind == "printed" for gap in gaps):
            return Verdict(UNKNOWN)
        turned = {NOISE: HOLDS, HOLDS: FAILS, FAILS: FAILS, UNTESTABLE: UNTESTABLE}
        told = _told([gap for gap in gaps if gap.value]) or "no difference at all"
        return Verdict(_together([turned[gap.word] for gap in gaps]), told, _why(gaps))

    return Claim(text, judge)


def grows(text: str, places: Sequence[Place]) -> Claim:
    """No step falls clearly, and the last is clearly above the first."""

    def judge(cells: Cells) -> Verdict:
        steps = _gaps(cells, [(above, below) for below, above in pairwise(places)])
        if not steps:
            return Verdict(UNKNOWN)
        (whole,) = _gaps(cells, [(places[-1], places[0])])
        falls = any(step.word == FAILS for step in steps)
        told = ", ".join(f"{cells[place].mean:.1f}" for place in places)
        keys = ", ".join(place.key for place in places)
        evidence = f"{places[0].heading} at {keys}: {told}; from first to last {whole.text}"
        return Verdict(FAILS if falls else whole.word, evidence, _why([whole]))

    return Claim(text, judge)


def less(text: str, one: Place, other: Place) -> Claim:
    """The first is below the second, told as a ratio."""

    def judge(cells: Cells) -> Verdict:
        gaps = _gaps(cells, [(other, one)])
        if not gaps or cells[other].mean == 0:
            return Verdict(UNKNOWN)
        ratio = cells[one].mean / cells[other].mean
        return Verdict(gaps[0].word, f"{one.name} is {ratio:.3g} times {other.name}", _why(gaps))

    return Claim(text, judge)


def gap_between(one: Cell, other: Cell) -> Gap:
    """The difference of two numbers and its interval, by whatever tells of the noise."""
    plain = Gap(one.place, other.place, one.mean - other.mean)
    if "measured" not in (one.kind, other.kind):
        return replace(plain, low=plain.value, high=plain.value)
    first, second = one.clients, other.clients
    if other.kind == "printed":
        second = {seed: [None if value is None else other.mean for value in first[seed]] for seed in first}
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        seeds = sorted(one.values.keys() & other.values.keys()) if other.kind != "printed" else sorted(one.values)
        if len(seeds) < SEEDS:
            return replace(plain, why=f"no values of single clients, and fewer than {SEEDS} seeds")
        first = {seed: [one.values[seed]] for seed in seeds}
        second = {seed: [other.values.get(seed, other.mean)] for seed in seeds}
    found = paired_bootstrap({seed: first[seed] for seed in seeds}, {seed: second[seed] for seed in seeds})
    return Gap(one.place, other.place, found.difference, found.low, found.high)


def _gaps(cells: Cells, pairs: Sequence[Pair]) -> list[Gap]:
    """By how much the first of each pair is above the second; nothing if any is not known."""
    if not all(place in cells for pair in pairs for place in pair):
        return []
    return [gap_between(cells[one], cells[other]) for one, other in pairs]


def _together(words: Sequence[str]) -> str:
    """What pairs say as one claim: all must hold, and one that fails is enough to fail it."""
    return next((word for word in (FAILS, UNTESTABLE, NOISE) if word in words), HOLDS)


def _why(gaps: Sequence[Gap]) -> str:
    return "; ".join(dict.fromkeys(gap.why for gap in gaps if gap.why))


def _told(gaps: Sequence[Gap]) -> str:
    """All differences; those of the same two series together."""
    together: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        one, other = gap.one, gap.other
        same = one.key == other.key and len(gaps) > 1
        rival = other._replace(group="") if one.group == other.group else other
        pair = (one.heading, rival.heading) if same else (one.name, rival.name)
        together.setdefault(pair, []).append(f"{gap.text} at {one.key}" if same else gap.text)
    return "; ".join(f"{one} against {other}: {', '.join(texts)}" for (one, other), texts in together.items())
