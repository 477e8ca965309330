"""Federated learning for devices of uneven strength: train small base nets together, serve any width."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "Task", "UserError", "__version__", "load", "read_folder", "slim", "task_from_arrays", "train"]

if TYPE_CHECKING:
    from splitmix.api.train import load, train
    from splitmix.core.errors import UserError
    from splitmix.data.folder import read_folder
    from splitmix.data.task import Task, task_from_arrays
    from splitmix.nets.slim import slim
    from splitmix.runtime.model import Model

_HOMES = {
    "Model": "splitmix.runtime.model",
    "Task": "splitmix.data.task",
    "UserError": "splitmix.core.errors",
    "load": "splitmix.api.train",
    "read_folder": "splitmix.data.folder",
    "slim": "splitmix.nets.slim",
    "task_from_arrays": "splitmix.data.task",
    "train": "splitmix.api.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `splitmix --help` need not wait for PyTorch."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'splitmix' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
