"""The table of tasks: a name, what the data is, and how it is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from splitmix.core.errors import UserError, unknown
from splitmix.data.benchmarks import SETS, SIZES, PackedSet, cifar_domain, digits_domains, packed_domains
from splitmix.data.domain import Domain
from splitmix.data.doors import read
from splitmix.data.folder import data_root
from splitmix.data.mini import mini_domains
from splitmix.data.partition import ByDomain
from splitmix.data.task import Task, TaskSettings, make_task

SMALLEST_ALEXNET = 63  # pixels of a side
GivenSettings = Mapping[str, Any]  # clients, partition, val_ratio: only those that the user set


@dataclass(frozen=True)
class TaskEntry:
    """A task that can be asked for by name."""

    about: str
    make: Callable[[Path | None, int, GivenSettings], Task]


def find_task(
    source: Any,
    *,
    root: Path | None = None,
    seed: int = 0,
    settings: GivenSettings | None = None,
    data: Mapping[str, Any] | None = None,
) -> Task:
    """Make a task by its name, or of data of one's own, which is read as `data` says."""
    chosen = {key: value for key, value in (settings or {}).items() if value is not None}
    if isinstance(source, str | Path):
        check_task(str(source))
    if isinstance(source, str) and source in TASKS:
        if data is not None:
            raise UserError(f"the task '{source}' is not read by data={dict(data)}; leave that out")
        return TASKS[source].make(root, seed, chosen)
    domains, name = read(source, data or {}), own_name(source)
    usual = {"clients": 8, "val_ratio": 0.2, "net": net_for(domains[0])}
    task = make_task(name, domains, seed=seed, **{**usual, **chosen})
    if task.classes > len(task.train.labels):
        raise UserError(
            f"labels in '{name}' run up to {task.classes - 1}, out of range for {len(task.train.labels)} training "
            "images; number the classes 0, 1, 2, ..."
        )
    return task


def own_name(source: Any) -> str:
    """The name of a task of one's own: that of its file or folder, if it is one."""
    if not isinstance(source, str | Path):
        return "data"
    place = Path(source).absolute()
    return place.stem if place.is_file() else place.name


def net_for(domain: Domain) -> str:
    """The net for data of one's own where none is named."""
    if domain.kind in ("features", "signal", "tokens"):
        return ""  # there is none in the table: it must be named
    height, width, *_ = image = domain.x_train.shape[1:]
    if min(height, width) >= SMALLEST_ALEXNET:
        return "alexnet"
    return "preresnet18" if image == (32, 32, 3) else "digit"


def check_task(name: str) -> None:
    """Refuse what is neither a task's name nor a file or folder."""
    if name not in TASKS and not Path(name).exists():
        if "/" in name or Path(name).suffix:
            raise UserError(f"there is no file or folder '{name}' to read a task from")
        raise UserError(f"{unknown('task', name, TASKS)}; nor is there a file or folder of that name here")


def task_about(name: str) -> str:
    """One sentence on what the data is."""
    if name in TASKS:
        return TASKS[name].about
    if Path(name).exists():
        return f"your own data from '{Path(name).absolute().name}'"
    return "your own arrays"


def _benchmark(
    name: str,
    about: str,
    domains: Callable[[Path | None], Sequence[Domain]],
    check: Callable[[GivenSettings], None] = lambda settings: None,
    **defaults: Unpack[TaskSettings],
) -> dict[str, TaskEntry]:
    """A line of the table: the domains, and how they are dealt unless the user says otherwise."""

    def make(root: Path | None, seed: int, settings: GivenSettings) -> Task:
        check(settings)
        return make_task(name, domains(root), seed=seed, **{**defaults, **settings})

    return {name: TaskEntry(about, make)}


def _check_digits(settings: GivenSettings) -> None:
    for key in settings:
        if key not in ("clients", "val_ratio"):
            raise UserError(f"the task 'digits' has its own {key}; it can be given only clients, val_ratio")
    if settings.get("clients", 0) % 5:
        raise UserError(f"{settings['clients']} clients cannot be spread evenly over 5 domains; give a multiple of 5")


def _cifar(name: str, about: str, **chosen: Any) -> dict[str, TaskEntry]:
    """The paper's CIFAR-10 task: 100 clients with three classes each; `partition="iid"` for its even split."""
    settings = TaskSettings(
        clients=100, partition="classes", val_ratio=0.1, net="preresnet18", augment=True, classes=10
    )
    return _benchmark(name, about, lambda root: [cifar_domain(data_root(root), **chosen)], **settings)


def _packed(known: PackedSet, size: int) -> dict[str, TaskEntry]:
    """The paper's DomainNet setting, also for other sets: five clients per domain, three tenths for validation.

    Training pictures are flipped and turned at random.
    """
    classes, domains = len(known.class_names), len(known.domains)
    about = f"{known.title}, {classes} classes in {domains} domains, {size}x{size} pixels; needs a data root"
    settings = TaskSettings(clients=5 * domains, val_ratio=0.3, net="alexnet", augment="turn", classes=classes)
    return _benchmark(known.task(size), about, lambda root: packed_domains(known, data_root(root), size), **settings)


def _nodes(root: Path | None, seed: int, settings: GivenSettings) -> Task:
    raise UserError(
        "the images of the task 'nodes' are on the nodes of a federation and cannot be had here; "
        "train on them with --engine flower"
    )


TASKS: dict[str, TaskEntry] = {
    **_benchmark(
        "mini",
        "handwritten and printed digits in four domains, made here from scikit-learn's UCI digits",
        lambda root: mini_domains(),
        clients=20,
        val_ratio=0.25,
    ),
    **_benchmark(  # the paper's: shares are runs of consecutive rows, as the files are shuffled already
        "digits",
        "MNIST, SVHN, USPS, SynthDigits (or a substitute, named so), and MNIST-M; needs a data root",
        lambda root: digits_domains(data_root(root)),
        _check_digits,
        clients=50,
        partition=ByDomain(shuffle=False),
        val_ratio=0.5,
        classes=10,
    ),
    **_cifar("cifar10", "CIFAR-10, or a class-balanced subset where only that is there; needs a data root"),
    **_cifar("cifar10-half", "the same with the first half of the training images", percent=0.5),
    **_cifar("cifar10-small", "the class-balanced subset: 10,000 images to train on, 2,000 to test on", small=True),
    **{name: entry for known in SETS.values() for size in SIZES for name, entry in _packed(known, size).items()},
    "nodes": TaskEntry("whatever images the nodes of a federation hold; only with --engine flower", _nodes),
}
