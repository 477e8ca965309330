"""The CIFAR-10 benchmark: photographs of ten kinds of things, by default with three kinds per client."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitmix.data.folder import read_split, require_files
from splitmix.data.partition import Partitioner
from splitmix.data.task import Domain, Task, make_task

FILE = "cifar10_small.npz"  # a balanced part of CIFAR-10: 1000 training and 200 test images per class


def cifar_domain(root: Path) -> Domain:
    """CIFAR-10 (a fifth of it) as one domain."""
    (file,) = require_files(root, [FILE], "CIFAR-10")
    return Domain("cifar10", *read_split(file))


def cifar_task(
    root: Path,
    seed: int = 0,
    *,
    partition: str | Mapping[str, Any] | Partitioner = "classes",
    clients: int = 100,
    val_ratio: float = 0.1,
    same_test_classes: bool = True,
) -> Task:
    """The paper's CIFAR-10 task: 100 clients with three classes each; `partition="iid"` for its even split."""
    return make_task(
        "cifar10",
        [cifar_domain(root)],
        clients=clients,
        partition=partition,
        val_ratio=val_ratio,
        seed=seed,
        net="preresnet18",
        augment=True,
        classes=10,
        same_test_classes=same_test_classes,
    )
