"""A task: images of several domains, dealt out to clients."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Domain:
    """Labelled images of one origin, (n, height, width, channels) as uint8 or float in [0, 1], and labels (n,)."""

    name: str
    x_train: NDArray[np.generic]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.generic]
    y_test: NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Images of all domains in one array; `domain[i]` is the number of the domain that image i comes from."""

    images: NDArray[np.generic]
    labels: NDArray[np.int64]
    domain: NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """One client's share of the data, as row numbers: train and val into the task's `train`, test into its `test`."""

    domain: str  # the domain's name, or "mixed"
    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """A data set, dealt out to clients, and the net that learns it."""

    name: str
    domains: tuple[str, ...]
    train: Samples
    test: Samples
    shards: tuple[Shard, ...]  # one per client
    classes: int
    net: str  # a name in the table of nets
    augment: bool = False  # random crop and flip in training
