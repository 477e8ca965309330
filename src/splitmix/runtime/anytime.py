"""Bases in order, as many as are needed: until the time is up, or until an image's answer is settled."""

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.width import is_number

Array = NDArray[Any]
Mean = Callable[[Array], Array]  # logits of the first bases (base, n, class) -> (n, class)
Votes = Callable[[int, int, Array], Array]  # first base, last base, images -> logits (base, n, class)


class Pace:
    """How long steps have taken here: by the number of bases, for about as many images; what is recent counts most.

    >>> pace = Pace()
    >>> pace.learn(2, images=1, seconds=0.004)
    >>> pace.seconds(1, images=1), pace.seconds(4, images=1), pace.seconds(1, images=100)
    (0.004, 0.008, inf)
    """

    def __init__(self) -> None:
        self._per_image: dict[tuple[int, int], float] = {}  # by bases, and the length of the number of images

    def learn(self, bases: int, images: int, seconds: float) -> None:
        key, new = (bases, images.bit_length()), seconds / images
        old = self._per_image.get(key, new)
        self._per_image[key] = old + 0.3 * (new - old)

    def seconds(self, bases: int, images: int) -> float:
        """No less than a step may take: never more than in proportion to a smaller one, or as much as a larger one."""
        size = images.bit_length()
        known = [(of, spent) for (of, about), spent in list(self._per_image.items()) if about == size]
        return images * min((spent * max(1.0, bases / of) for of, spent in known), default=math.inf)

    def bases_within(self, seconds: float, images: int, most: int) -> int:
        """How many bases end in time, with a fifth to spare; none, if nothing is known."""
        fitting = (bases for bases in range(most, 0, -1) if 1.2 * self.seconds(bases, images) <= seconds)
        return next(fitting, 0)


def gather(
    votes: Votes,
    count: int,
    images: Array,
    *,
    pace: Pace,
    mean: Mean = lambda logits: logits.mean(0),
    deadline: float = math.inf,
    confidence: float = math.inf,
) -> tuple[Array, NDArray[np.int64]]:
    """Mean logits (n, class), and how many bases each image was given (n,): at least one, at most `count`.

    `deadline` is a moment of `perf_counter`: a step is begun only if, by the pace so far, it ends before. `confidence`
    is a margin: an image is settled once its best class leads the second by as much, in the mean's probabilities.
    """
    seen, used = np.zeros((count, len(images), 1), np.float32), np.zeros(len(images), np.int64)
    rows, done = np.arange(len(images)), 0  # the images that are not settled, and the bases that they have had
    while len(rows) and done < count:
        began = perf_counter()
        most = count - done if confidence == math.inf else min(max(1, done), count - done)  # to settle, doubled
        more = most if deadline == math.inf else pace.bases_within(deadline - began, len(rows), most)
        if done and not more:
            break
        more = max(1, more)
        found = votes(done, done + more, images[rows])
        seen = seen if done else np.zeros((count, len(images), found.shape[-1]), found.dtype)
        seen[done : done + more, rows] = found
        pace.learn(more, len(rows), perf_counter() - began)
        done += more
        used[rows] = done
        rows = rows[margins(mean(seen[:done, rows])) < confidence]
    logits = np.zeros_like(seen[0])
    for bases in np.unique(used).tolist():
        logits[used == bases] = mean(seen[:bases, used == bases])
    return logits, used


def margins(logits: Array) -> Array:
    """The lead of the best class over the second, in probabilities, (n,)."""
    if logits.shape[-1] < 2:
        return np.ones(len(logits))
    best = np.sort(probabilities(logits), -1)
    lead: Array = best[:, -1] - best[:, -2]
    return lead


def probabilities(logits: Array) -> Array:
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares


def checked_deadline(value: Any) -> float:
    """Milliseconds from now on."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"deadline_ms {value!r} is no time; give milliseconds above 0")
    return float(value)


def checked_confidence(value: Any) -> float:
    """A margin between two probabilities."""
    if not is_number(value) or not 0 <= value <= 1:
        raise UserError(f"confidence {value!r} is no margin; give a number from 0 (one base) to 1 (nearly all)")
    return float(value)
