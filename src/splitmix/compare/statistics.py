"""What is said over seeds and clients: mean and spread, and whether a method is better by more than chance."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev, variance
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.report.tables import percent
from splitmix.runs.measure.intervals import t_value

LEVEL, DRAWS = 0.95, 10_000  # of a bootstrap
MeanAndSpread = tuple[float, float | None]  # of one value there is no spread
ClientValues = Mapping[int, Sequence[float | None]]  # of each seed the values of its clients; None: not measured


class PairedDifference(NamedTuple):
    """How much more one method has than another, and between which values it may well lie."""

    difference: float  # mean over seeds of the mean over clients
    low: float
    high: float


def paired_bootstrap(first: ClientValues, second: ClientValues) -> PairedDifference:
    """The difference of two methods that met the same clients with the same seeds, with a bootstrapped 95 % interval.

    Seeds are drawn, and of each its clients, always as pairs: what makes a client hard for both is no difference. One
    seed fewer is drawn than there are (Rao and Wu, JASA 1988), for with all of them a few seeds look closer to one
    another than they are. With one seed only clients are drawn, and nothing is said about other seeds. The same values
    give the same interval.

    >>> ours = {1: [0.80, 0.70, 0.90, 0.60], 2: [0.82, 0.69, 0.93, 0.64], 3: [0.79, 0.72, 0.91, 0.61]}
    >>> found = paired_bootstrap(ours, {seed: [value - 0.1 for value in values] for seed, values in ours.items()})
    >>> [round(value, 2) for value in found]
    [0.1, 0.1, 0.1]
    """
    gaps = [_gaps(seed, first[seed], second[seed]) for seed in _same_seeds(first, second)]
    difference = fmean(float(gap.mean()) for gap in gaps)
    if sum(map(len, gaps)) < 2:  # a single client tells nothing of chance
        return PairedDifference(difference, -math.inf, math.inf)
    rng = np.random.default_rng(0)
    picked = rng.integers(len(gaps), size=(DRAWS, max(1, len(gaps) - 1)))  # (draw, seed)
    means = np.empty(picked.shape)
    for place, gap in enumerate(gaps):
        here = picked == place
        means[here] = gap[rng.integers(len(gap), size=(int(here.sum()), len(gap)))].mean(axis=1)
    low, high = np.quantile(means.mean(axis=1), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return PairedDifference(difference, float(low), float(high))


def _same_seeds(first: ClientValues, second: ClientValues) -> list[int]:
    if not first or first.keys() != second.keys():
        told = " and ".join(", ".join(map(str, sorted(values))) or "none" for values in (first, second))
        raise UserError(f"only runs with the same seeds can be paired, but these have the seeds {told}")
    return sorted(first)


def _gaps(seed: int, first: Sequence[float | None], second: Sequence[float | None]) -> NDArray[np.float64]:
    """The difference at each client of a seed; clients that neither measured are left out."""
    if [value is None for value in first] != [value is None for value in second]:
        raise UserError(f"only runs of the same clients can be paired, but with seed {seed} these differ in them")
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        raise UserError(f"with seed {seed} no client was measured, so there is nothing to pair")
    return np.array([a - b for a, b in pairs])


def clear_lead(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether the first mean is higher by more than chance explains: Welch's t test, two-sided, 5 %.

    >>> clear_lead([0.9, 0.91, 0.92], [0.8, 0.81, 0.82]), clear_lead([0.9, 0.8], [0.8, 0.7]), clear_lead([0.9], [0.1])
    (True, False, False)
    """
    if min(len(first), len(second)) < 2:
        return False
    lead = fmean(first) - fmean(second)
    a, b = variance(first) / len(first), variance(second) / len(second)
    if a + b == 0 or lead <= 0:
        return lead > 0
    degrees = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    return lead > t_value(degrees) * math.sqrt(a + b)


def mean_and_spread(values: Sequence[float]) -> MeanAndSpread | None:
    """Mean and standard deviation over seeds; one seed has no spread, and none have no mean."""
    return (fmean(values), stdev(values) if len(values) > 1 else None) if values else None


def spread_text(value: MeanAndSpread | None, show: Callable[[float], str] = percent) -> str:
    """Mean and standard deviation, in per cent unless they are shown otherwise.

    >>> spread_text((0.8512, 0.004)), spread_text(None), spread_text((2, None), "{:.0f}".format)
    ('85.1 ± 0.4', '-', '2')
    """
    return "-" if value is None else " ± ".join(show(part) for part in value if part is not None)
