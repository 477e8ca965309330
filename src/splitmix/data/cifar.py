"""The CIFAR-10 benchmark: photographs of ten kinds of things, by default with three kinds per client."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitmix.core.errors import UserError
from splitmix.data.folder import read_split, require_files
from splitmix.data.partition import Partitioner
from splitmix.data.task import Domain, Task, make_task

WHOLE = "cifar10.npz"
SMALL = "cifar10_small.npz"  # a balanced part: the first 1000 training and 200 test images of each class


def cifar_domain(root: Path, *, small: bool = False, percent: float = 1.0) -> Domain:
    """CIFAR-10 as one domain, with the first part of its training images; its name tells the whole from the subset.

    Where the whole is not at hand, the subset stands in for it.
    """
    if not 0 < percent <= 1:
        raise UserError(f"percent {percent} is outside (0, 1]; 0.5 takes the first half of the training images")
    file = SMALL if small or ((root / SMALL).is_file() and not (root / WHOLE).is_file()) else WHOLE
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
