"""Partitioners: each deals the rows of a data set to clients, and no row to two of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from splitmix.core.errors import UserError, by_name, make_named
from splitmix.core.inputs import OnDemand

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shares(OnDemand[Rows]):
    """The rows of all clients in one array, and where those of each begin."""

    rows: Rows
    starts: Rows  # where each client's begin; the end of the last is there too

    @classmethod
    def even(cls, rows: Rows, clients: int) -> "Shares":
        """Equal shares, the first ones with the odd rows."""
        each, odd = divmod(len(rows), clients)
        places = np.arange(clients + 1, dtype=np.int64)
        return cls(rows, places * each + np.minimum(places, odd))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def item(self, place: int) -> Rows:
        return self.rows[self.starts[place] : self.starts[place + 1]]


class Partitioner(Protocol):
    """Deals rows with these labels and domain numbers to clients: one array of row numbers per client.

    A partitioner with the class attribute `by_class = True` gives clients uneven classes; its clients are then tested
    on the classes they train on.
    """

    def __call__(self, labels: Rows, domain: Rows, clients: int, rng: Generator) -> Sequence[Rows]: ...


@dataclass(frozen=True)
class ByDomain:
    """Clients live in one domain each: they are divided evenly over the domains, in order, and share its rows evenly.

    Without `shuffle` a share is a run of consecutive rows, as in the paper; keep it on for rows sorted by class.

    >>> [rows.tolist() for rows in ByDomain(shuffle=False)(np.zeros(6), np.array([0, 0, 0, 0, 1, 1]), 3, None)]
    [[0, 1], [2, 3], [4, 5]]
    """

    shuffle: bool = True

    def __call__(self, labels: Rows, domain: Rows, clients: int, rng: Generator) -> list[Rows]:
        _check_clients(len(labels), clients)
        domains = int(domain.max()) + 1
        if clients < domains:
            raise UserError(
                f"{clients} clients cannot cover {domains} domains; ask for at least {domains} clients, "
                "or choose another partition, such as iid"
            )
        shares: list[Rows] = []
        for number, group in enumerate(np.array_split(np.arange(clients), domains)):
            shares += _even(np.flatnonzero(domain == number), len(group), rng if self.shuffle else None)
        return shares


@dataclass(frozen=True)
class Iid:
    """All clients draw from the same pot, whatever the domain; without `shuffle`, runs of consecutive rows."""

    shuffle: bool = True

    def __call__(self, labels: Rows, domain: Rows, clients: int, rng: Generator) -> Sequence[Rows]:
        return _even(np.arange(len(labels)), clients, rng if self.shuffle else None)


@dataclass(frozen=True)
class Classes:
    """Each client holds exactly `k` distinct classes; a class has as many holders as any other, give or take one.

    The rows of a class are split evenly over its holders. The domain plays no part.
    """

    k: int = 3
    by_class: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise UserError(f"k {self.k} is no number of classes per client; give 1, 2, 3, ...")

    def __call__(self, labels: Rows, domain: Rows, clients: int, rng: Generator) -> list[Rows]:
        _check_clients(len(labels), clients)
        classes = np.unique(labels)
        if self.k > len(classes):
            raise UserError(f"{self.k} classes per client, but there are only {len(classes)}; choose a smaller k")
        held = self._draw(len(classes), clients, rng)
        parts: list[list[Rows]] = [[] for _ in range(clients)]
        for label, holds in zip(classes, held.T, strict=True):
            holders = rng.permutation(np.flatnonzero(holds))  # shuffled: the first ones get the odd rows
            rows = np.flatnonzero(labels == label)
            if len(rows) < len(holders):
                raise UserError(
                    f"class {label} has {len(rows)} rows for the {len(holders)} clients that should hold it; "
                    "choose a smaller k or fewer clients"
                )
            for client, share in zip(holders, _even(rows, len(holders), rng) if len(holders) else [], strict=True):
                parts[client].append(share)
        return _gather(parts, rng)

    def _draw(self, classes: int, clients: int, rng: Generator) -> NDArray[np.bool_]:
        """Who holds what, (client, class): every client takes the k least used classes, ties broken by lot."""
        held = np.zeros((clients, classes), dtype=bool)
        for client in range(clients):
            order = np.lexsort((rng.random(classes), held.sum(axis=0)))
            held[client, order[: self.k]] = True
        return held


@dataclass(frozen=True)
class Dirichlet:
    """Each class is split over the clients in proportions drawn from Dirichlet(alpha): a small alpha is very uneven.

    A client left with fewer than `min_rows` rows is topped up from whoever has most at that moment.
    """

    alpha: float = 0.5
    min_rows: int = 10
    by_class: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1e-3 <= self.alpha <= 1e6:  # also refuses NaN; outside, the draws lose their precision
            raise UserError(f"alpha {self.alpha} is outside [0.001, 1000000]; 0.1 is very uneven, 100 nearly even")
        if self.min_rows < 1:
            raise UserError(f"min_rows {self.min_rows} would leave clients without data; give 1 or more")

    def __call__(self, labels: Rows, domain: Rows, clients: int, rng: Generator) -> list[Rows]:
        _check_clients(len(labels), clients)
        if len(labels) < clients * self.min_rows:
            raise UserError(
                f"{len(labels)} rows cannot give {clients} clients at least {self.min_rows} each; "
                "ask for fewer clients or a smaller min_rows"
            )
        parts: list[list[Rows]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            proportions = rng.dirichlet(np.full(clients, self.alpha))
            cuts = np.rint(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
            for part, share in zip(parts, np.split(rows, cuts), strict=True):
                part.append(share)
        return _topped_up(_gather(parts, rng), self.min_rows)


PARTITIONERS: dict[str, Callable[..., Partitioner]] = {
    "domain": ByDomain,
    "iid": Iid,
    "classes": Classes,
    "dirichlet": Dirichlet,
}


def parse_partition(value: str | Mapping[str, Any] | Partitioner) -> Partitioner:
    """Read a partitioner: a name, a name with its settings, or a partitioner as it is.

    >>> parse_partition("iid"), parse_partition({"name": "classes", "k": 2})
    (Iid(shuffle=True), Classes(k=2))
    """
    if not isinstance(value, str | Mapping):
        if not callable(value):
            raise UserError(f"{value!r} is not a partition; give one of {', '.join(PARTITIONERS)}")
        return value
    name, options = by_name("partition", value, PARTITIONERS)
    return make_named("partition", name, PARTITIONERS[name], options)


def deal_like(train_labels: Rows, shares: Sequence[Rows], labels: Rows, rng: Generator) -> list[Rows]:
    """Deal further rows so that each client gets a class in proportion to its share of that class in training.

    A class that nobody trains on is dealt to nobody. A client left with nothing gets one row of a class it knows.
    """
    classes = int(max(train_labels.max(), labels.max())) + 1
    held = np.array([np.bincount(train_labels[rows], minlength=classes) for rows in shares])  # (client, class)
    parts: list[list[Rows]] = [[] for _ in shares]
    for label in np.unique(labels):
        if held[:, label].any():
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(_apportion(len(rows), held[:, label], rng))[:-1]
            for part, share in zip(parts, np.split(rows, cuts), strict=True):
                part.append(share)
    return _fed(_gather(parts, rng), held > 0, labels)


def split_validation(rows: Rows, val_ratio: float) -> tuple[Rows, Rows]:
    """Hold out the last `val_ratio` of a client's rows, rounded down but at least one of two.

    >>> [part.tolist() for part in split_validation(np.arange(5), 0.5)]
    [[0, 1, 2], [3, 4]]
    """
    if not 0 <= val_ratio < 1:
        raise UserError(f"val_ratio {val_ratio} is outside [0, 1); 0.1 holds out a tenth, 0 nothing")
    wanted = int(len(rows) * val_ratio + 1e-9)  # 100 * 0.29 is 28.999...
    count = min(max(1, wanted), len(rows) - 1) if val_ratio > 0 and len(rows) else 0
    return rows[: len(rows) - count], rows[len(rows) - count :]


def hold_out(labels: Rows, ratio: float, rng: Generator) -> tuple[Rows, Rows]:
    """Split rows in two, (kept, held out), with nearly the same mix of classes in both; a class's only row is kept."""
    if not 0 < ratio < 1:
        raise UserError(f"test_ratio {ratio} is outside (0, 1); 0.2 holds out a fifth for testing")
    kept, out = [], []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = min(math.floor(len(rows) * ratio + 0.5), len(rows) - 1)
        out.append(rows[:count])
        kept.append(rows[count:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(out))


def _check_clients(rows: int, clients: int) -> None:
    if clients < 1:
        raise UserError(f"{clients} clients is too few; ask for 1 or more")
    if rows < clients:
        raise UserError(
            f"{rows} rows cannot be dealt to {clients} clients, as some would have no data; "
            "ask for fewer clients or give more rows"
        )


def _even(rows: Rows, clients: int, rng: Generator | None) -> Shares:
    """Equal shares, the first ones with the odd rows; shuffled beforehand if there is a generator."""
    _check_clients(len(rows), clients)
    return Shares.even(rows if rng is None else rng.permutation(rows), clients)


def _gather(parts: Sequence[Sequence[Rows]], rng: Generator) -> list[Rows]:
    """One array per client, shuffled, so that any stretch of it has all the client's classes."""
    return [rng.permutation(np.concatenate([np.empty(0, np.int64), *part])) for part in parts]


def _topped_up(shares: list[Rows], least: int) -> list[Rows]:
    for client, share in enumerate(shares):
        while len(share) < least:
            richest = max(range(len(shares)), key=lambda c: len(shares[c]))
            share = shares[client] = np.append(share, shares[richest][-1])
            shares[richest] = shares[richest][:-1]
    return shares


def _apportion(total: int, sizes: Rows, rng: Generator) -> Rows:
    """Whole numbers that add up to `total`, in proportion to `sizes`: largest remainders first, ties by lot."""
    counts, remainders = np.divmod(total * sizes, sizes.sum())
    order = np.lexsort((rng.random(len(sizes)), -remainders))
    counts[order[: total - counts.sum()]] += 1
    return counts


def _fed(shares: list[Rows], knows: NDArray[np.bool_], labels: Rows) -> list[Rows]:
    """Give each client without rows one row of a class it knows, from the fullest client that can spare one."""
    for client in [c for c, share in enumerate(shares) if not len(share)]:
        for donor in sorted(range(len(shares)), key=lambda c: -len(shares[c])):
            fit = np.flatnonzero(knows[client, labels[shares[donor]]])
            if len(fit) and len(shares[donor]) > 1:
                shares[client] = shares[donor][fit[:1]]
                shares[donor] = np.delete(shares[donor], fit[0])
                break
    return shares
