"""A task: images of several domains, dealt out to clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splitmix.core.errors import UserError
from splitmix.core.reproducible import rng_for
from splitmix.data.partition import Partitioner, Rows, deal_like, hold_out, parse_partition, split_validation


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
    augment: bool | str = False  # in training: random crop and flip, or "turn": flip and turn

    @property
    def image(self) -> tuple[int, ...]:
        """The shape of one image."""
        return tuple(int(size) for size in self.train.images.shape[1:])


LARGEST = float(np.finfo(np.float32).max)


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
    domains = _checked(domains, augment)
    train = _pool([(d.x_train, d.y_train) for d in domains])
    test = _pool([(d.x_test, d.y_test) for d in domains])
    count = _class_count(domains, classes)
    shares = _deal(deal, train, clients, rng_for(seed, "training rows"), "training")
    rng = rng_for(seed, "test rows")
    if same_test_classes and getattr(deal, "by_class", False):
        tests = deal_like(train.labels, shares, test.labels, rng)
    else:
        tests = _deal(deal, test, clients, rng, "test")
    names = tuple(domain.name for domain in domains)
    shards = []
    for client, (rows, test_rows) in enumerate(zip(shares, tests, strict=True)):
        kept, val = split_validation(rows, val_ratio)
        _check_client(client, kept, val, test_rows, val_ratio)
        found = np.union1d(train.domain[rows], test.domain[test_rows])
        shards.append(Shard(names[found[0]] if len(found) == 1 else "mixed", kept, val, test_rows))
    return Task(name, names, train, test, tuple(shards), count, net, augment)


def task_from_arrays(
    domains: Mapping[str, Sequence[ArrayLike]],
    *,
    name: str = "arrays",
    test_ratio: float = 0.2,
    **settings: Unpack[TaskSettings],
) -> Task:
    """A task from arrays per domain: (x, y, x_test, y_test), or (x, y), of which `test_ratio` is kept for testing.

    The other settings are those of `make_task`; the test rows split off have nearly the mix of classes of the rest.

    >>> x, y = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 4
    >>> task = task_from_arrays({"left": (x, y), "right": (x, y)}, clients=4)
    >>> [(shard.domain, len(shard.train), len(shard.val), len(shard.test)) for shard in task.shards]
    [('left', 15, 1, 4), ('left', 15, 1, 4), ('right', 15, 1, 4), ('right', 15, 1, 4)]
    """
    if "clients" not in settings:
        raise UserError("the number of clients is missing; give clients=10, for example")
    seed = settings.get("seed", 0)
    made = [make_domain(key, arrays, test_ratio=test_ratio, seed=seed) for key, arrays in domains.items()]
    return make_task(name, made, **settings)


def make_domain(name: str, arrays: Sequence[ArrayLike], *, test_ratio: float = 0.2, seed: int = 0) -> Domain:
    """A checked domain from (x, y, x_test, y_test), or from (x, y), of which a test part is split off."""
    if len(arrays) not in (2, 4):
        raise UserError(f"domain '{name}' has {len(arrays)} arrays; give (x, y) or (x, y, x_test, y_test)")
    x, y = _checked_part(name, "training", arrays[0], arrays[1])
    if len(arrays) == 4:
        return Domain(name, x, y, *_checked_part(name, "test", arrays[2], arrays[3]))
    kept, out = hold_out(y, test_ratio, rng_for(seed, "held-out test rows", name))
    if not len(out):
        raise UserError(f"domain '{name}' has too few rows ({len(y)}) to split off a test part; give x_test and y_test")
    return Domain(name, x[kept], y[kept], x[out], y[out])


def domains_of(task: Task) -> tuple[Domain, ...]:
    """The domains that a task was made of."""

    def part(samples: Samples, number: int) -> tuple[NDArray[np.generic], Rows]:
        mine = samples.domain == number
        return samples.images[mine], samples.labels[mine]

    return tuple(Domain(name, *part(task.train, i), *part(task.test, i)) for i, name in enumerate(task.domains))


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


def _checked(domains: Sequence[Domain], augment: bool | str) -> tuple[Domain, ...]:
    """The domains with plain pixels and labels; an error for the first thing that does not fit."""
    if not domains:
        raise UserError("there are no domains; give at least one")
    names = [domain.name for domain in domains]
    for name in names:
        if names.count(name) > 1 or name in ("", "mixed"):
            raise UserError(
                f"the domain name '{name}' is taken twice, empty or reserved; give each domain its own name"
            )
    whole = tuple(make_domain(d.name, (d.x_train, d.y_train, d.x_test, d.y_test)) for d in domains)
    shape = whole[0].x_train.shape[1:]
    for domain in whole:
        for part, x in (("training", domain.x_train), ("test", domain.x_test)):
            if x.shape[1:] != shape:
                raise UserError(
                    f"{part} images of domain '{domain.name}' have shape {x.shape[1:]}, those of '{names[0]}' {shape}; "
                    "all images must have the same height, width and channels"
                )
    if augment and len(shape) != 3:
        raise UserError(f"vectors of shape {shape} cannot be cropped and flipped or turned; set augment to false")
    return whole


def _checked_part(name: str, part: str, x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.generic], Rows]:
    where = f"{part} data of domain '{name}'"
    images, labels = np.asarray(x), np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{where}: labels are {labels.dtype} of shape {labels.shape}; give whole numbers of shape (n,)")
    if not len(labels):
        raise UserError(f"{where}: there are no rows; every domain needs training and test rows")
    if images.ndim not in (2, 4):
        hint = ", so write x[..., None] for grey images" if images.ndim == 3 else ""
        raise UserError(
            f"{where}: images have shape {images.shape}; give (n, height, width, channels) or (n, features){hint}"
        )
    if len(images) != len(labels):
        raise UserError(f"{where}: {len(images)} images but {len(labels)} labels; give one label per image")
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] > 4:
        raise UserError(
            f"{where}: images have shape {images.shape}; put the channels last, (n, height, width, channels)"
        )
    return _pixels(images, where), labels.astype(np.int64)


def _pixels(images: NDArray[Any], where: str) -> NDArray[np.generic]:
    """uint8 as it is, all else as float32, after a look at the values."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind not in "iuf" or images.size == 0:
        raise UserError(f"{where}: images are {images.dtype} of shape {images.shape}; give uint8, or float from 0 to 1")
    low, high = float(images.min()), float(images.max())
    if not -LARGEST <= low <= high <= LARGEST:  # NaN passes through min and max
        raise UserError(f"{where}: there are NaN or infinite pixels; remove or replace them")
    if images.ndim == 4 and images.dtype.kind == "f" and (low < 0 or high > 1):
        raise UserError(f"{where}: float pixels run from {low} to {high}; scale them to [0, 1] or give uint8")
    if images.ndim == 4 and images.dtype.kind in "iu":
        if low < 0 or high > 255:
            raise UserError(f"{where}: whole-number pixels run from {low} to {high}; give 0 to 255")
        return images.astype(np.uint8)
    return images.astype(np.float32)


def _pool(parts: Sequence[tuple[NDArray[np.generic], Rows]]) -> Samples:
    """All domains in one: bytes if all are bytes, else float32 with bytes divided by 255."""
    images = [x for x, _ in parts]
    if len({x.dtype for x in images}) > 1:
        images = [x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x for x in images]
    sizes = [len(y) for _, y in parts]
    domain = np.repeat(np.arange(len(parts), dtype=np.int64), sizes)
    return Samples(np.concatenate(images), np.concatenate([y for _, y in parts]), domain)


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


def _deal(deal: Partitioner, samples: Samples, clients: int, rng: np.random.Generator, part: str) -> list[Rows]:
    """Deal one part of the data, and check that no row is dealt twice, also by a partitioner of the user's own."""
    try:
        shares = [np.asarray(rows, np.int64) for rows in deal(samples.labels, samples.domain, clients, rng)]
    except UserError as error:
        raise UserError(f"{part} rows: {error}") from None
    dealt = np.concatenate(shares) if shares else np.empty(0, np.int64)
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
