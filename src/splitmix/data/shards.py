"""Who holds which rows: the shards of all clients in a few arrays, so that a million of them take little memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitmix.core.inputs import OnDemand
from splitmix.data.partition import Rows, Shares


@dataclass(frozen=True)
class Shard:
    """One client's share of the data, as row numbers: train and val into the task's `train`, test into its `test`."""

    domain: str  # the domain's name, or "mixed"
    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shards(OnDemand[Shard]):
    """The shard of every client; client i has the rows from `starts[i]` on."""

    names: tuple[str, ...]  # of the domains, and "mixed" at the end
    domain: NDArray[np.int64]  # of each client, as a place among the names
    rows: Rows  # of each client those to train on, then those to validate on
    starts: NDArray[np.int64]
    held: NDArray[np.int64]  # how many of each client's rows are for validation
    test_rows: Rows
    test_starts: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        domains: tuple[Rows, Rows],
        shares: Sequence[Rows],
        tests: Sequence[Rows],
        held: Sequence[int],
    ) -> "Shards":
        """From the rows of each client, none of them empty; `domains` has that of each row to train and to test on."""
        (rows, starts), (test_rows, test_starts) = _joined(shares), _joined(tests)
        own = [(domains[0][rows], starts[:-1]), (domains[1][test_rows], test_starts[:-1])]
        least = np.minimum(*(np.minimum.reduceat(which, begin) for which, begin in own))
        most = np.maximum(*(np.maximum.reduceat(which, begin) for which, begin in own))
        domain = np.where(least == most, least, len(names))
        return cls((*names, "mixed"), domain, rows, starts, np.asarray(held, np.int64), test_rows, test_starts)

    def __len__(self) -> int:
        return len(self.held)

    def item(self, place: int) -> Shard:
        start, end = self.starts[place : place + 2]
        middle = end - self.held[place]
        test = self.test_rows[slice(*self.test_starts[place : place + 2])]
        return Shard(self.names[self.domain[place]], self.rows[start:middle], self.rows[middle:end], test)


def _joined(shares: Sequence[Rows]) -> tuple[Rows, NDArray[np.int64]]:
    """All rows in one array, and where each client's begin; the end of the last is there too."""
    if isinstance(shares, Shares):
        return shares.rows, shares.starts
    ends = np.cumsum([len(share) for share in shares], dtype=np.int64)
    return np.concatenate(shares), np.concatenate([np.zeros(1, np.int64), ends])
