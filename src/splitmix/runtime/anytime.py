"""Bases in order, as many as are needed: until the time is up, or until an image's answer is settled."""

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from splitmix.core.errors import UserError

Votes = Callable[[int, int, Tensor], Tensor]  # first base, last base, images -> logits (base, n, class)


def gather(
    votes: Votes, count: int, images: Tensor, *, deadline: float = math.inf, confidence: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Mean logits (n, class), and how many bases each image was given (n,): at least one, at most `count`.

    `deadline` is a moment of `perf_counter`: a step is begun only if, by the pace so far, it ends before. `confidence`
    is a margin: an image is settled once its best class leads the second by as much, in the mean's probabilities.
    """
    began = perf_counter()
    total = votes(0, 1, images).sum(0)
    used = torch.ones(len(images), dtype=torch.int64)
    rows = torch.arange(len(images))  # the images that are not settled
    done = 1
    while done < count:
        rows = rows[margins(total[rows] / done) < confidence]
        now = perf_counter()
        pace = (now - began) / done  # the first base takes longest: never too optimistic
        in_time = int(min((deadline - now) / pace, count))
        more = min(in_time, count - done, done if confidence < math.inf else count)  # to settle, double at each step
        if not len(rows) or more < 1:
            break
        total[rows] += votes(done, done + more, images[rows]).sum(0)
        done += more
        used[rows] = done
    return total / used[:, None], used


def margins(logits: Tensor) -> Tensor:
    """The lead of the best class over the second, in probabilities, (n,)."""
    if logits.shape[-1] < 2:
        return torch.ones(len(logits))
    best = logits.softmax(-1).topk(2).values
    return best[:, 0] - best[:, 1]


def checked_deadline(value: Any) -> float:
    """Milliseconds from now on."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"deadline_ms {value!r} is no time; give milliseconds above 0")
    return float(value)


def checked_confidence(value: Any) -> float:
    """A margin between two probabilities."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"confidence {value!r} is no margin; give a number from 0 (one base) to 1 (nearly all)")
    return float(value)
