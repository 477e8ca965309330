"""The table of methods: a name, and how the method is made for a setting."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from splitmix.core.errors import UserError, by_name, make_named
from splitmix.core.method import Method
from splitmix.core.types import Setting
from splitmix.methods.bases import FedEnsemble, SplitMix
from splitmix.methods.nested import FedAvg, FedRolex, FjORD, HeteroFL, SHeteroFL


def find_method(value: str | Mapping[str, Any], setting: Setting) -> Method:
    """A method by its name, or by {name=..., its own settings}."""
    name, options = by_name("method", value, METHODS)
    method = make_named("method", name, partial(METHODS[name], setting), options)
    if not isinstance(method, Method):
        raise UserError(f"method {name} lacks what a round asks of it; let its class inherit from {__name__}.Method")
    return method


METHODS: dict[str, Callable[..., Method]] = {
    "splitmix": SplitMix.for_setting,
    "fedavg": FedAvg.for_setting,
    "heterofl": HeteroFL.for_setting,
    "sheterofl": SHeteroFL.for_setting,
    "fedrolex": FedRolex.for_setting,
    "fedensemble": FedEnsemble.for_setting,
    "fjord": FjORD.for_setting,
}
