"""How sure a mean over few values is: Student's t."""

import math
from collections.abc import Sequence
from itertools import pairwise

INTERVAL = "95 % confidence by Student's t, for other clients of the same domains"
# t of 97.5 % by degrees of freedom; between them it is read off the straight line over 1/degrees, which is cautious
_T = (
    *((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (8, 2.306), (10, 2.228), (15, 2.131)),
    *((20, 2.086), (30, 2.042), (60, 2.0), (math.inf, 1.96)),
)


def t_value(degrees: float) -> float:
    """Student's t that 2.5 % of draws exceed.

    >>> t_value(1), t_value(4), round(t_value(3.5), 2), t_value(1e9) < 1.97
    (12.706, 2.776, 2.95, True)
    """
    for (low, above), (high, below) in pairwise(_T):
        if degrees <= high:
            share = (1 / max(degrees, low) - 1 / high) / (1 / low - 1 / high)
            return below + share * (above - below)
    return _T[-1][1]


def interval(values: Sequence[float], groups: Sequence[object]) -> tuple[float, float]:
    """95 % confidence interval of a mean over clients: mean ± t s / sqrt(n), with s the spread within groups.

    Groups (domains) are as they are, clients within them are drawn. Without two clients in some group all are one
    group; a single client tells nothing.

    >>> low, high = interval([0.4, 0.6, 0.8, 1.0], ["a", "a", "b", "b"])
    >>> round(low, 3), high
    (0.396, 1.0)
    """
    members: dict[object, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        members.setdefault(group, []).append(value)
    degrees = len(values) - len(members)
    if degrees < 1:
        return interval(values, [None] * len(values)) if len(members) > 1 else (0.0, 1.0)
    squares = sum((value - sum(group) / len(group)) ** 2 for group in members.values() for value in group)
    half = t_value(degrees) * math.sqrt(squares / degrees / len(values))
    mean = sum(values) / len(values)
    return max(0.0, mean - half), min(1.0, mean + half)
