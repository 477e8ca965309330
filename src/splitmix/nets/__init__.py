"""Nets at any width, by name."""

from collections.abc import Callable
from importlib import import_module

from torch import nn

from splitmix.core.errors import UserError, unknown
from splitmix.nets.alexnet import AlexNet
from splitmix.nets.digit import Digit
from splitmix.nets.plain import Perceptron, SignalCNN
from splitmix.nets.preresnet import PreResNet18

NETS: dict[str, Callable[..., nn.Module]] = {
    "digit": Digit,
    "preresnet18": PreResNet18,
    "alexnet": AlexNet,
}
PLAIN: dict[str, Callable[..., nn.Module]] = {"mlp": Perceptron, "cnn1d": SignalCNN}  # bundled as those of users are
USUAL = {("features", 1): "mlp", ("signal", 2): "cnn1d"}  # of samples of a kind and rank, where none is named


def find_net(name: str) -> Callable[..., nn.Module]:
    """The function that builds a net from its width: a name of ours, or `"my_module:build"` for one of your own.

    >>> find_net("digit").__name__
    'Digit'
    """
    if ":" in name:
        return _imported(name)
    if name not in named_nets():
        raise unknown("net", name, named_nets())
    return named_nets()[name]


def named_nets() -> dict[str, Callable[..., nn.Module]]:
    """All that have a name: for images, and for other samples."""
    return NETS | PLAIN


def _imported(name: str) -> Callable[..., nn.Module]:
    where, _, function = name.partition(":")
    try:
        module = import_module(where)
    except Exception as error:  # whatever the user's module raises while it is imported
        cause = str(error) or type(error).__name__
        raise UserError(f"cannot import net '{name}' ({cause}); give it as module:function") from error
    build: Callable[..., nn.Module] | None = getattr(module, function, None)
    if isinstance(build, nn.Module):
        raise UserError(
            f"'{name}' is a module of one width; write there build = splitmix.slim({function}), and name that"
        )
    if not callable(build):
        raise UserError(f"module '{where}' has no function '{function}'; give the net as module:function")
    return build
