"""The table of tasks: a name, what the data is, and how it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitmix.core.errors import UserError, unknown
from splitmix.data.benchmarks import SETS, SIZES, PackedSet, cifar_task, digits_task, packed_task
from splitmix.data.folder import data_root, read_folder
from splitmix.data.mini import mini_domains
from splitmix.data.task import Task, make_task

GivenSettings = Mapping[str, Any]  # clients, partition, val_ratio: only those that the user set


@dataclass(frozen=True)
class TaskEntry:
    """A task that can be asked for by name."""

    about: str
    make: Callable[[Path | None, int, GivenSettings], Task]


def find_task(name: str, *, root: Path | None = None, seed: int = 0, settings: GivenSettings | None = None) -> Task:
    """Make a task by its name, or from a folder of .npz files, one domain each."""
    chosen = {key: value for key, value in (settings or {}).items() if value is not None}
    check_task(name)
    if name in TASKS:
        return TASKS[name].make(root, seed, chosen)
    defaults = {"clients": 8, "val_ratio": 0.2}
    task = make_task(Path(name).absolute().name, read_folder(name), seed=seed, **{**defaults, **chosen})
    if task.classes > len(task.train.labels):
        raise UserError(
            f"labels in '{name}' run up to {task.classes - 1}, out of range for {len(task.train.labels)} training "
            "images; number the classes 0, 1, 2, ..."
        )
    return task


def check_task(name: str) -> None:
    """Refuse what is neither a task's name nor a folder."""
    if name not in TASKS and not Path(name).is_dir():
        raise (
            unknown("task", name, TASKS)
            if "/" not in name
            else UserError(f"there is no folder '{name}' to read a task from")
        )


def task_about(name: str) -> str:
    """One sentence on what the data is."""
    if name in TASKS:
        return TASKS[name].about
    return (
        f"your own images from the folder '{Path(name).absolute().name}'" if Path(name).is_dir() else "your own arrays"
    )


def _mini(root: Path | None, seed: int, settings: GivenSettings) -> Task:
    defaults = {"clients": 20, "val_ratio": 0.25}
    return make_task("mini", mini_domains(), seed=seed, **{**defaults, **settings})


def _digits(root: Path | None, seed: int, settings: GivenSettings) -> Task:
    _only(settings, "digits", ("clients", "val_ratio"))
    own = {key: value for key, value in settings.items() if key != "clients"}
    if "clients" in settings:
        own["clients_per_domain"], odd = divmod(settings["clients"], 5)
        if odd:
            raise UserError(
                f"{settings['clients']} clients cannot be spread evenly over 5 domains; give a multiple of 5"
            )
    return digits_task(data_root(root), seed, **own)


def _cifar(about: str, **fixed: Any) -> TaskEntry:
    def make(root: Path | None, seed: int, settings: GivenSettings) -> Task:
        return cifar_task(data_root(root), seed, **fixed, **settings)

    return TaskEntry(about, make)


def _packed(known: PackedSet, size: int) -> TaskEntry:
    def make(root: Path | None, seed: int, settings: GivenSettings) -> Task:
        return packed_task(known, data_root(root), seed, size=size, **settings)

    what = f"{len(known.class_names)} classes in {len(known.domains)} domains"
    return TaskEntry(f"{known.title}, {what}, {size}x{size} pixels; needs a data root", make)


def _nodes(root: Path | None, seed: int, settings: GivenSettings) -> Task:
    raise UserError(
        "the images of the task 'nodes' are on the nodes of a federation and cannot be had here; "
        "train on them with --engine flower"
    )


def _only(settings: GivenSettings, task: str, allowed: tuple[str, ...]) -> None:
    for key in settings:
        if key not in allowed:
            raise UserError(f"the task '{task}' has its own {key}; it can be given only {', '.join(allowed)}")


TASKS: dict[str, TaskEntry] = {
    "mini": TaskEntry(
        "handwritten and printed digits in four domains, made here from scikit-learn's UCI digits", _mini
    ),
    "digits": TaskEntry(
        "MNIST, SVHN, USPS, SynthDigits (or a substitute, named so), and MNIST-M; needs a data root", _digits
    ),
    "cifar10": _cifar("CIFAR-10, or a class-balanced subset where only that is there; needs a data root"),
    "cifar10-half": _cifar("the same with the first half of the training images", name="cifar10-half", percent=0.5),
    "cifar10-small": _cifar(
        "the class-balanced subset: 10,000 images to train on, 2,000 to test on", name="cifar10-small", small=True
    ),
    **{known.task(size): _packed(known, size) for known in SETS.values() for size in SIZES},
    "nodes": TaskEntry("whatever images the nodes of a federation hold; only with --engine flower", _nodes),
}
