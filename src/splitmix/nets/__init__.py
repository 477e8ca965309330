"""Nets at any width, by name."""

from collections.abc import Callable
from importlib import import_module

from torch import nn

from splitmix.core.errors import UserError, unknown
from splitmix.nets.alexnet import AlexNet
from splitmix.nets.digit import Digit
from splitmix.nets.preresnet import PreResNet18

NETS: dict[str, Callable[..., nn.Module]] = {
    "digit": Digit,
    "preresnet18": PreResNet18,
    "alexnet": AlexNet,
}


def find_net(name: str) -> Callable[..., nn.Module]:
    """The function that builds a net from its width: a name from `NETS`, or `"my_module:build"` for one of your own.

    >>> find_net("digit").__name__
    'Digit'
    """
    if ":" in name:
        return _imported(name)
    if name not in NETS:
        raise unknown("net", name, NETS)
    return NETS[name]


def _imported(name: str) -> Callable[..., nn.Module]:
    where, _, function = name.partition(":")
    try:
        module = import_module(where)
    except Exception as error:  # whatever the user's module raises while it is imported
        cause = str(error) or type(error).__name__
        raise UserError(f"cannot import net '{name}' ({cause}); give it as module:function") from error
    build: Callable[..., nn.Module] | None = getattr(module, function, None)
    if not callable(build):
        raise UserError(f"module '{where}' has no function '{function}'; give the net as module:function")
    return build
