"""Norms with fixed statistics, folded: a*x + b for each channel, and how a and b rise on the way to the noisy norm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.runtime.graph.record import Graph

Array = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]  # name -> (base, ...), as weights are stacked


@dataclass(frozen=True)
class Folded:
    """The scales of all norms and then their shifts, (base, number), and by how much each rises from clean to noisy."""

    start: Array
    rise: Array | None
    _last: list[tuple[float, Array]] = field(default_factory=list, init=False)  # the dial of the last call

    def at(self, robust: float) -> Array:
        """Those of all bases at a dial."""
        if self.rise is None or robust == 0:
            return self.start
        for dial, numbers in self._last:
            if dial == robust:
                return numbers
        moved: Array = self.start + np.float32(robust) * self.rise
        self._last[:] = [(robust, moved)]
        return moved


def fold(graph: Graph, entries: Mapping[str, NDArray[Any]], bases: int) -> Folded:
    """The norms of all bases, in the order of the graph."""
    clean = _lined([affine(entries, norm.clean, norm.eps) for norm in graph.norms], bases)
    if not graph.dual:
        return Folded(clean.astype(np.float32), None)
    noisy = _lined([affine(entries, norm.noisy or norm.clean, norm.eps) for norm in graph.norms], bases)
    return Folded(clean.astype(np.float32), (noisy - clean).astype(np.float32))


def affine(entries: Mapping[str, NDArray[Any]], prefix: str, eps: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """The map a*x + b that a norm is with its own statistics, in double precision."""
    names = ("weight", "bias", "running_mean", "running_var")
    weight, bias, mean, var = (entries[f"{prefix}.{name}"].astype(np.float64) for name in names)
    a = weight / np.sqrt(var + eps)
    return a, bias - a * mean


def _lined(maps: list[tuple[NDArray[Any], NDArray[Any]]], bases: int) -> NDArray[Any]:
    if not maps:
        return np.zeros((bases, 0))
    return np.concatenate([*(a for a, _ in maps), *(b for _, b in maps)], 1)
