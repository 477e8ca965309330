"""Narrow convolutions before a pool of 2x2, made four times as wide: the same answers in two thirds of the time.

A processor computes up to sixteen channels at once; where a convolution has fewer, the rest is for nothing. So the four
places of each window of the pool become channels of their own: weights with one more row and column, moved by nothing,
a column, a row and both, look at every second place. The pool then takes the largest of four.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.runtime.graph.record import Graph, StepRecord

Arrays = Mapping[str, NDArray[Any]]
PLACES = [(row, column) for row in (0, 1) for column in (0, 1)]  # of a window of the pool
MOST_CHANNELS = 12
LEAST_SIDE = 5  # of a kernel: those of smaller ones would grow too much by a row and a column
MOST_NUMBERS = 1 << 14  # of wide weights
ONE_BY_ONE = {"strides": [1, 1], "dilations": [1, 1]}
HALVES = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "dilations": [1, 1]}


def widened(graph: Graph, weights: Arrays) -> tuple[Graph, Arrays]:
    """The same net and its weights with other steps; entries that these take instead have names of their own."""
    pairs = _pairs(graph.steps, [step for step in graph.steps if _is_narrow(graph, step)])
    convs, pools = {id(conv) for conv, _ in pairs}, {id(pool) for _, pool in pairs}
    steps: list[StepRecord] = []
    for step in graph.steps:
        if id(step) in convs:
            steps += _wide_conv(graph, step)
        elif id(step) in pools:
            steps += _largest_of_four(graph, step)
        else:
            steps.append(step)
    made = {_wide(name): _widened(weights[name]) for conv, _ in pairs for name in conv.takes[1:]}
    entries = graph.entries | {name: list(value.shape) for name, value in made.items()}
    return graph.model_copy(update={"steps": steps, "entries": entries}), {**weights, **made}


def _pairs(steps: Sequence[StepRecord], narrow: Sequence[StepRecord]) -> list[tuple[StepRecord, StepRecord]]:
    """Narrow convolutions, each with the pool behind it; those that have none are left out."""
    takers: dict[str, list[StepRecord]] = defaultdict(list)
    for step in steps:
        for name in step.takes:
            takers[name].append(step)
    return [(step, pool) for step in narrow if (pool := _pool_behind(step, takers)) is not None]


def _pool_behind(step: StepRecord, takers: Mapping[str, Sequence[StepRecord]]) -> StepRecord | None:
    """The pool that takes what a convolution gives, if only norms and ReLUs are between them."""
    while len(next_ones := takers.get(step.gives[0], ())) == 1:
        (step,) = next_ones
        if step.op == "MaxPool" and step.settings == HALVES:
            return step
        if step.op not in ("Norm", "Relu"):
            break
    return None


def _is_narrow(graph: Graph, step: StepRecord) -> bool:
    if step.op != "Conv" or not graph.entries.keys() >= {*step.takes[1:]} or step.settings["group"] != 1:
        return False
    shape, sides = graph.entries[step.takes[1]], graph.outline.shapes[step.gives[0]][2:]
    return (
        len(sides) == 2
        and not any(side % 2 for side in sides)
        and ONE_BY_ONE.items() <= step.settings.items()
        and shape[0] <= MOST_CHANNELS
        and min(shape[2:]) >= LEAST_SIDE
        and prod(_wide_shape(shape)) <= MOST_NUMBERS
    )


def _wide_conv(graph: Graph, step: StepRecord) -> Iterator[StepRecord]:
    """Channels come in fours; norms that follow find each of them as one channel again."""
    _, channels, height, width = graph.outline.shapes[step.gives[0]]
    kernel = [side + 1 for side in step.settings["kernel_shape"]]  # type: ignore[union-attr]
    settings = step.settings | {"kernel_shape": kernel, "strides": [2, 2]}
    takes, gives = [step.takes[0], *map(_wide, step.takes[1:])], [_wide(step.gives[0])]
    yield step.model_copy(update={"takes": takes, "gives": gives, "settings": settings})
    yield _reshaped(step, [-1, channels, 4, height * width // 4])


def _largest_of_four(graph: Graph, step: StepRecord) -> Iterator[StepRecord]:
    settings = HALVES | {"kernel_shape": [4, 1], "strides": [4, 1]}
    yield step.model_copy(update={"gives": [_wide(step.gives[0])], "settings": settings})
    yield _reshaped(step, [-1, *graph.outline.shapes[step.gives[0]][1:]])


def _reshaped(step: StepRecord, shape: list[int]) -> StepRecord:
    return StepRecord.model_construct(
        op="Reshape", takes=[_wide(step.gives[0])], gives=step.gives, settings={"shape": shape}
    )


def _wide(name: str) -> str:
    """A name for what takes the place of another; neither an entry nor a value is called so."""
    return f"%wide {name}"


def _wide_shape(shape: list[int]) -> list[int]:
    return [4 * shape[0], shape[1], shape[2] + 1, shape[3] + 1]


def _widened(value: NDArray[Any]) -> NDArray[Any]:
    """The weights of a convolution, or its bias, for four places."""
    if value.ndim == 1:
        return np.repeat(value, len(PLACES))
    channels, inputs, height, width = value.shape
    wide = np.zeros((channels, len(PLACES), inputs, height + 1, width + 1), value.dtype)
    for place, (row, column) in enumerate(PLACES):
        wide[:, place, :, row : row + height, column : column + width] = value
    return wide.reshape(_wide_shape([*value.shape]))
