"""What a net is given: images, features, signals or tokens; what is made only when it is asked for, such as samples."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, overload, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

# image: (height, width, channels) in [0, 1]; features: a row of numbers; tokens: whole numbers, never scaled;
# signal: all else, such as (channels, length), or images that were standardised
Kind = Literal["image", "features", "signal", "tokens"]


@runtime_checkable
class Lazy(Protocol):
    """Samples that are made when they are asked for, such as pictures in files; used where an array could be."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        """Some of them, still not made."""

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Make some of them: the same numbers whoever asks, and whenever."""

    def joined(self, others: "list[Lazy]") -> "Lazy":
        """With others of the same kind behind them."""


T = TypeVar("T", covariant=True)


class OnDemand(Sequence[T]):
    """Items each of which is made when it is looked at: a million of them take little memory."""

    @abstractmethod
    def item(self, place: int) -> T:
        """Make one."""

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        places = range(len(self))[place]
        return self.item(places) if isinstance(places, int) else [self.item(one) for one in places]


Inputs = NDArray[np.generic] | Lazy


def made(x: Inputs, rows: ArrayLike) -> NDArray[Any]:
    """Samples of these rows as an array, wherever they are."""
    picked = np.asarray(rows, np.int64)
    return x.take(picked) if isinstance(x, Lazy) else x[picked]


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Some items from all over a list, at most so many."""
    return [items[i] for i in np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)]


@dataclass(frozen=True)
class Scaling:
    """What was done to features before training: mean and deviation of each, over the training rows."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    columns: tuple[str, ...] = ()  # the names of the features, where they have any

    def __call__(self, x: ArrayLike) -> NDArray[np.float32]:
        """Features as a net takes them.

        >>> Scaling((1.0, 10.0), (2.0, 5.0))([[3, 10]]).tolist()
        [[1.0, 0.0]]
        """
        scaled: NDArray[Any] = (np.asarray(x, np.float64) - np.array(self.mean)) / np.array(self.deviation)
        return scaled.astype(np.float32)
