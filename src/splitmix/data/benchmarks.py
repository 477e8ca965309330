"""Benchmarks kept as `.npz` files: five-domain digits, and CIFAR-10."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.data.folder import read_split, require_files
from splitmix.data.partition import ByDomain, Partitioner
from splitmix.data.task import Domain, Task, make_task

DIGITS_FILES = {  # in FedBN's order
    "mnist": "digits/mnist.npz",
    "svhn": "digits/svhn.npz",
    "usps": "digits/usps.npz",
    "synthdigits": "digits/synthdigits.npz",
    "mnist_m": "digits/mnist_m.npz",
}
SYNTH_SUBSTITUTE = "digits/synthdigits_substitute.npz"  # rendered anew after its description
CIFAR10 = "cifar10.npz"
CIFAR10_SMALL = "cifar10_small.npz"  # a balanced part: the first 1000 training and 200 test images of each class


def digits_domains(root: Path, percent: float = 0.3) -> tuple[Domain, ...]:
    """The five domains in FedBN's order, in colour, with the first tenths of the training rows and all test rows.

    FedBN cuts the training rows of every domain into ten partitions of the same size, a tenth of the smallest domain
    (743 rows); `percent=0.3` takes the first three (2229 rows). Where SynthDigits is not at hand, a domain named
    `synth_substitute` stands in for it.
    """
    tenths = round(percent * 10)
    if not 1 <= tenths <= 10 or abs(tenths - percent * 10) > 1e-9:
        raise UserError(f"percent {percent} is not a whole number of tenths; choose one of 0.1, 0.2, ... 1.0")
    files = _files(root)
    parts = [read_split(file) for file in require_files(root, list(files.values()), "digits")]
    rows = tenths * (min(len(y_train) for _, y_train, _, _ in parts) // 10)
    return tuple(
        Domain(name, _colour(x_train[:rows]), y_train[:rows], _colour(x_test), y_test)
        for name, (x_train, y_train, x_test, y_test) in zip(files, parts, strict=True)
    )


def digits_task(
    root: Path, seed: int = 0, *, percent: float = 0.3, clients_per_domain: int = 10, val_ratio: float = 0.5
) -> Task:
    """The paper's digits task: 50 clients with 111 or 112 training rows each, and as many for validation.

    Shares are runs of consecutive rows (the files are shuffled already), so the seed changes nothing in the data.
    """
    domains = digits_domains(root, percent)
    return make_task(
        "digits",
        domains,
        clients=clients_per_domain * len(domains),
        partition=ByDomain(shuffle=False),
        val_ratio=val_ratio,
        seed=seed,
        net="digit",
        classes=10,
    )


def cifar_domain(root: Path, *, small: bool = False, percent: float = 1.0) -> Domain:
    """CIFAR-10 as one domain, with the first part of its training images; its name tells the whole from the subset.

    Where the whole is not at hand, the subset stands in for it.
    """
    if not 0 < percent <= 1:
        raise UserError(f"percent {percent} is outside (0, 1]; 0.5 takes the first half of the training images")
    file = CIFAR10_SMALL if small or ((root / CIFAR10_SMALL).is_file() and not (root / CIFAR10).is_file()) else CIFAR10
    x_train, y_train, x_test, y_test = read_split(require_files(root, [file], "CIFAR-10")[0])
    rows = max(1, int(len(y_train) * percent))
    return Domain(file.removesuffix(".npz"), x_train[:rows], y_train[:rows], x_test, y_test)


def cifar_task(
    root: Path,
    seed: int = 0,
    *,
    name: str = "cifar10",
    small: bool = False,
    percent: float = 1.0,
    partition: str | Mapping[str, Any] | Partitioner = "classes",
    clients: int = 100,
    val_ratio: float = 0.1,
    same_test_classes: bool = True,
) -> Task:
    """The paper's CIFAR-10 task: 100 clients with three classes each; `partition="iid"` for its even split."""
    return make_task(
        name,
        [cifar_domain(root, small=small, percent=percent)],
        clients=clients,
        partition=partition,
        val_ratio=val_ratio,
        seed=seed,
        net="preresnet18",
        augment=True,
        classes=10,
        same_test_classes=same_test_classes,
    )


def _files(root: Path) -> dict[str, str]:
    """The file of each domain; the substitute where only that is there."""
    if (root / DIGITS_FILES["synthdigits"]).is_file() or not (root / SYNTH_SUBSTITUTE).is_file():
        return DIGITS_FILES
    stand_in = {"synthdigits": ("synth_substitute", SYNTH_SUBSTITUTE)}
    return dict(stand_in.get(name, (name, file)) for name, file in DIGITS_FILES.items())


def _colour(images: NDArray[Any]) -> NDArray[Any]:
    """(n, h, w, 3): grey images have three equal channels."""
    images = images[..., None] if images.ndim == 3 else images
    return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images
