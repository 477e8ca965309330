"""A task: images of several domains, dealt out to clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.inputs import Inputs, Kind, Lazy, OnDemand, Scaling
from splitmix.core.reproducible import rng_for
from splitmix.data.domain import Domain, checked_domains, make_domain
from splitmix.data.partition import Partitioner, Rows, Shares, deal_like, parse_partition, split_validation


@dataclass(frozen=True)
class Samples:
    """Samples of all domains in one; `domain[i]` is the number of the domain that image i comes from."""

    images: Inputs
    labels: NDArray[np.int64]
    domain: NDArray[np.int64]


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
        (rows, starts), (test_rows, test_starts) = _end_to_end(shares), _end_to_end(tests)
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


@dataclass(frozen=True)
class Task:
    """A data set, dealt out to clients, and the net that learns it."""

    name: str
    domains: tuple[str, ...]
    train: Samples
    test: Samples
    shards: Sequence[Shard]  # one per client
    classes: int
    net: str  # a name in the table of nets
    augment: bool | str = False  # in training: random crop and flip, or "turn": flip and turn
    class_names: tuple[str, ...] = ()  # where they are known
    kind: Kind = "image"
    scaling: Scaling | None = None  # that features went through

    def __repr__(self) -> str:
        samples = f"{len(self.train.labels)} training and {len(self.test.labels)} test samples of shape {self.image}"
        return f"Task({self.name}: {len(self.shards)} clients, {samples}, {self.classes} classes)"

    @property
    def image(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(int(size) for size in self.train.images.shape[1:])


class TaskSettings(TypedDict, total=False):
    """The keyword arguments of `make_task`."""

    clients: int
    partition: str | Mapping[str, Any] | Partitioner
    val_ratio: float
    seed: int
    net: str
    augment: bool | str
    classes: int | None
    same_test_classes: bool


def make_task(
    name: str,
    domains: Sequence[Domain],
    *,
    clients: int,
    partition: str | Mapping[str, Any] | Partitioner = "domain",
    val_ratio: float = 0.1,
    seed: int = 0,
    net: str = "digit",
    augment: bool | str = False,
    classes: int | None = None,
    same_test_classes: bool = True,
) -> Task:
    """Pool the domains, check them, and deal their rows to clients; train, val and test of a client are disjoint.

    Training and test rows are dealt by the same partitioner. Where it gives clients uneven classes (`classes`,
    `dirichlet`), a client's test rows come from the classes it trains on, in the same proportions as nearly as
    possible; with `same_test_classes=False` they are redrawn independently, as in the paper's released code.
    Without `classes`, the labels are taken to be 0 up to the largest one found. Besides images, plain vectors
    (n, features) are allowed, with any finite values, for nets of one's own.
    """
    deal = parse_partition(partition)
    if seed < 0:
        raise UserError(f"seed {seed} is negative; give 0 or a positive whole number")
    domains = checked_domains(domains, augment)
    train = _pool([(d.x_train, d.y_train) for d in domains])
    test = _pool([(d.x_test, d.y_test) for d in domains])
    count = _class_count(domains, len(domains[0].class_names) or classes)
    shares = _deal(deal, train, clients, rng_for(seed, "training rows"), "training")
    rng = rng_for(seed, "test rows")
    if same_test_classes and getattr(deal, "by_class", False):
        tests: Sequence[Rows] = deal_like(train.labels, shares, test.labels, rng)
    else:
        tests = _deal(deal, test, clients, rng, "test")
    names = tuple(domain.name for domain in domains)
    held = []
    for client, (rows, test_rows) in enumerate(zip(shares, tests, strict=True)):
        kept, val = split_validation(rows, val_ratio)
        _check_client(client, kept, val, test_rows, val_ratio)
        held.append(len(val))
    shards = Shards.of(names, (train.domain, test.domain), shares, tests, held)
    first = domains[0]
    how = (first.class_names, first.kind or "image", first.scaling)
    return Task(name, names, train, test, shards, count, net, augment, *how)


def task_from_arrays(
    domains: Mapping[str, Sequence[Any]],
    *,
    name: str = "arrays",
    test_ratio: float = 0.2,
    kind: Kind | None = None,
    **settings: Unpack[TaskSettings],
) -> Task:
    """A task from arrays per domain: (x, y, x_test, y_test), or (x, y), of which `test_ratio` is kept for testing.

    The other settings are those of `make_task`; the test rows split off have nearly the mix of classes of the rest.
    `kind` says what arrays are that look like something else: "tokens" for whole numbers that a net embeds, "signal"
    for what has been standardised.

    >>> x, y = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 4
    >>> task = task_from_arrays({"left": (x, y), "right": (x, y)}, clients=4)
    >>> [(shard.domain, len(shard.train), len(shard.val), len(shard.test)) for shard in task.shards]
    [('left', 15, 1, 4), ('left', 15, 1, 4), ('right', 15, 1, 4), ('right', 15, 1, 4)]
    """
    if "clients" not in settings:
        raise UserError("the number of clients is missing; give clients=10, for example")
    seed = settings.get("seed", 0)
    made = [make_domain(key, arrays, test_ratio=test_ratio, seed=seed, kind=kind) for key, arrays in domains.items()]
    return make_task(name, made, **settings)


def domains_of(task: Task) -> tuple[Domain, ...]:
    """The domains that a task was made of."""

    def part(samples: Samples, number: int) -> tuple[Inputs, Rows]:
        mine = samples.domain == number
        return samples.images[mine], samples.labels[mine]

    whole = (Domain(name, *part(task.train, i), *part(task.test, i)) for i, name in enumerate(task.domains))
    return tuple(
        replace(domain, class_names=task.class_names, kind=task.kind, scaling=task.scaling) for domain in whole
    )


def describe_task(task: Task) -> list[dict[str, str | int]]:
    """Rows for a table, one per domain: its clients and what they hold; ranges are the least and most per client."""
    rows: list[dict[str, str | int]] = []
    for domain in (*task.domains, "mixed"):
        shards = [shard for shard in task.shards if shard.domain == domain]
        if not shards:
            continue
        held = [np.unique(task.train.labels[np.concatenate([s.train, s.val])]) for s in shards]
        rows.append(
            {
                "domain": domain,
                "clients": len(shards),
                "train": sum(len(s.train) for s in shards),
                "val": sum(len(s.val) for s in shards),
                "test": sum(len(s.test) for s in shards),
                "classes": len(np.unique(np.concatenate(held))),
                "train per client": _range([len(s.train) for s in shards]),
                "classes per client": _range([len(h) for h in held]),
            }
        )
    return rows


def _range(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}"


def _pool(parts: Sequence[tuple[Inputs, Rows]]) -> Samples:
    """All domains in one: bytes if all are bytes, else float32 with bytes divided by 255."""
    sizes = [len(y) for _, y in parts]
    domain = np.repeat(np.arange(len(parts), dtype=np.int64), sizes)
    return Samples(_joined([x for x, _ in parts]), np.concatenate([y for _, y in parts]), domain)


def _joined(inputs: Sequence[Inputs]) -> Inputs:
    lazy, images = [x for x in inputs if isinstance(x, Lazy)], [x for x in inputs if not isinstance(x, Lazy)]
    if lazy and images:
        raise UserError("some domains are arrays and others are pictures in files; give one or the other")
    if lazy:
        return lazy[0].joined(lazy[1:])
    if len({x.dtype for x in images}) > 1:
        images = [x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x for x in images]
    return np.concatenate(images)


def _end_to_end(shares: Sequence[Rows]) -> tuple[Rows, NDArray[np.int64]]:
    """All rows in one array, and where each client's begin; the end of the last is there too."""
    if isinstance(shares, Shares):
        return shares.rows, shares.starts
    ends = np.cumsum([len(share) for share in shares], dtype=np.int64)
    return np.concatenate(shares), np.concatenate([np.zeros(1, np.int64), ends])


def _class_count(domains: Sequence[Domain], classes: int | None) -> int:
    if classes is not None and classes < 1:
        raise UserError(f"{classes} classes is too few; give the number of classes, or leave it out")
    count = classes or 1 + max(int(max(d.y_train.max(), d.y_test.max())) for d in domains)
    for domain in domains:
        for part, labels in (("training", domain.y_train), ("test", domain.y_test)):
            if labels.min() < 0 or labels.max() >= count:
                raise UserError(
                    f"{part} labels of domain '{domain.name}' run from {labels.min()} to {labels.max()}, out of range "
                    f"for {count} classes; number the classes 0 to {count - 1}"
                )
    return count


def _deal(deal: Partitioner, samples: Samples, clients: int, rng: np.random.Generator, part: str) -> Sequence[Rows]:
    """Deal one part of the data, and check that no row is dealt twice, also by a partitioner of the user's own."""
    try:
        shares = deal(samples.labels, samples.domain, clients, rng)
        if not isinstance(shares, Shares):
            shares = [np.asarray(rows, np.int64) for rows in shares]
    except UserError as error:
        raise UserError(f"{part} rows: {error}") from None
    dealt = shares.rows if isinstance(shares, Shares) else np.concatenate([np.empty(0, np.int64), *shares])
    outside = bool(((dealt < 0) | (dealt >= len(samples.labels))).any())
    if len(shares) != clients or outside or len(np.unique(dealt)) < len(dealt):
        raise UserError(
            f"{part} rows: the partition {deal!r} must give {clients} clients "
            f"rows from 0 to {len(samples.labels) - 1}, none of them twice"
        )
    return shares


def _check_client(client: int, train: Rows, val: Rows, test: Rows, val_ratio: float) -> None:
    parts = {"training": len(train), "validation": len(val) if val_ratio else 1, "test": len(test)}
    empty = [part for part, size in parts.items() if not size]
    if empty:
        raise UserError(
            f"client {client} would have no {' and no '.join(empty)} rows; ask for fewer clients or give more rows"
        )
    if len(train) < 2:
        raise UserError(
            f"client {client} would have a single training row, but batch norms need two or more; "
            "ask for fewer clients or give more rows"
        )
