"""Claims of the paper, judged by code: on our numbers, and on the paper's own where it prints them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

Values = Mapping[str, Mapping[str, Sequence[float]]]  # series -> key (mostly a width) -> one number for each seed
Place = tuple[str, str]  # series and key
Gap = tuple[Place, Place, float]  # the first is above the second by so much

CLOSE = 0.5  # points: less than this is no difference
HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "too close to call", "not known"


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a claim, and the numbers."""

    word: str
    evidence: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, or the shape that one expects, and how it is judged."""

    text: str
    judge: Callable[[Values], Verdict]


def higher(text: str, *pairs: tuple[Place, Place], by: float = 0.0) -> Claim:
    """The first of each pair is above the second, by so many points or more."""

    def judge(values: Values) -> Verdict:
        gaps = _gaps(values, pairs)
        return Verdict(_word([gap - by for *_, gap in gaps]), _told(gaps)) if gaps else Verdict(UNKNOWN)

    return Claim(text, judge)


def near(text: str, *pairs: tuple[Place, Place], within: float) -> Claim:
    """The two of each pair differ by so many points at most."""

    def judge(values: Values) -> Verdict:
        gaps = _gaps(values, pairs)
        if not gaps:
            return Verdict(UNKNOWN)
        word = HOLDS if all(abs(gap) <= within for *_, gap in gaps) else FAILS
        return Verdict(word, _told([found for found in gaps if found[-1]]) or "no difference at all")

    return Claim(text, judge)


def grows(text: str, series: str, keys: Sequence[str]) -> Claim:
    """Each key is at least as good as the one before, and the last better than the first."""

    def judge(values: Values) -> Verdict:
        found = [_mean(values, (series, key)) for key in keys]
        known = [value for value in found if value is not None]
        if len(known) < len(keys):
            return Verdict(UNKNOWN)
        steps = [b - a for a, b in pairwise(known)]
        told = ", ".join(f"{value:.1f}" for value in known)
        rises = min(steps) > -CLOSE and known[-1] - known[0] > CLOSE
        return Verdict(HOLDS if rises else FAILS, f"{series} at {', '.join(keys)}: {told}")

    return Claim(text, judge)


def times(text: str, one: Place, other: Place, *, most: float | None = None, least: float | None = None) -> Claim:
    """The first is at most, or at least, so many times the second."""

    def judge(values: Values) -> Verdict:
        a, b = _mean(values, one), _mean(values, other)
        if a is None or b is None or b == 0:
            return Verdict(UNKNOWN)
        ratio = a / b
        right = (most is None or ratio <= most) and (least is None or ratio >= least)
        return Verdict(HOLDS if right else FAILS, f"{_named(one)} is {ratio:.3g} times {_named(other)}")

    return Claim(text, judge)


def judged(claims: Sequence[Claim], values: Values) -> Iterator[tuple[Claim, Verdict]]:
    for claim in claims:
        yield claim, claim.judge(values)


def _mean(values: Values, place: Place) -> float | None:
    series, key = place
    found = values.get(series, {}).get(key, ())
    return fmean(found) if found else None


def _gaps(values: Values, pairs: Sequence[tuple[Place, Place]]) -> list[Gap]:
    """By how much the first of each pair is above the second; nothing if any is not known."""
    means = [(one, other, _mean(values, one), _mean(values, other)) for one, other in pairs]
    found = [(one, other, a - b) for one, other, a, b in means if a is not None and b is not None]
    return found if len(found) == len(pairs) else []


def _word(gaps: Sequence[float]) -> str:
    if all(gap > CLOSE for gap in gaps):
        return HOLDS
    return FAILS if any(gap < -CLOSE for gap in gaps) else OPEN


def _told(gaps: Sequence[Gap]) -> str:
    """All differences; those of the same two series together."""
    together: dict[tuple[str, str], list[str]] = {}
    for one, other, gap in gaps:
        same = one[1] == other[1] and len(gaps) > 1
        pair = (one[0], other[0]) if same else (_named(one), _named(other))
        where = pair[0].partition(": ")[0]
        if pair[1].startswith(f"{where}: "):
            pair = (pair[0], pair[1].removeprefix(f"{where}: "))
        together.setdefault(pair, []).append(f"{gap:+.1f} at {one[1]}" if same else f"{gap:+.1f}")
    return "; ".join(f"{one} against {other}: {', '.join(texts)}" for (one, other), texts in together.items())


def _named(place: Place) -> str:
    series, key = place
    return series if series.endswith(f" {key}") else f"{series} {key}"
