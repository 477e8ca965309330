"""What a net costs: parameters, multiplications, activations and bytes, counted on one image.

One convention for every table: MACs are the multiplications of convolutions and linears, an addition goes with each.
Norms, biases, pooling and ReLUs are left out; counters that include norms and biases find 0.2 to 3 % more here.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from splitmix.core.net import Build
from splitmix.core.width import check_multiple

Image = tuple[int, ...]  # (height, width, channel), or (feature,)
FLOAT = 4  # bytes of a number, in memory and on the way

NORMS = {
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._native_batch_norm_legit,
    torch.ops.aten._native_batch_norm_legit_no_training,
    torch.ops.aten.native_group_norm,
    torch.ops.aten.native_layer_norm,
}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Cost:
    """Cost of a net, or of a mix of nets, for one image."""

    parameters: int  # norms included, their statistics not
    macs: int  # multiplications of convolutions and linears; an addition goes with each
    activations: int  # numbers that convolutions, linears and norms put out

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.parameters + other.parameters, self.macs + other.macs, self.activations + other.activations)

    def __mul__(self, bases: int) -> "Cost":
        return Cost(self.parameters * bases, self.macs * bases, self.activations * bases)


def cost(build: Build, width: Fraction, image: Image, *, tokens: bool = False) -> Cost:
    """Cost of the net that `build` makes at a width.

    >>> from splitmix.nets import find_net
    >>> cost(find_net("digit"), Fraction(1, 8), (28, 28, 3))
    Cost(parameters=224194, macs=1158528, activations=17898)
    """
    try:
        return _cost_of(_zeroed(build, width), image, tokens)
    except (RuntimeError, TypeError):  # some modules of users look at their numbers
        return _cost_of(build(width), image, tokens)


def training_macs(forward: int, images: int) -> int:
    """MACs of training on images: the forward pass, and twice as much for the gradients of inputs and weights."""
    return 3 * forward * images


def training_bytes(parameters: int, activations: int, batch: int) -> int:
    """Memory of a training step: parameters, their gradients and momenta, and the activations kept for a batch.

    An estimate from below: it leaves out the images, what ReLUs and pooling keep, gradients of activations on their
    way back, the scratch space of convolutions, and the program itself.
    """
    return FLOAT * (3 * parameters + batch * activations)


def weightless(build: Build) -> Build:
    """The same nets without numbers in them, where they can be built so: to count is to look at shapes."""

    def built(width: Fraction) -> nn.Module:
        try:
            with torch.device("meta"):
                return build(width)
        except (RuntimeError, TypeError):  # some modules of users look at the values
            return build(width)

    return built


def cost_rows(build: Build, image: Image, atom: Fraction, widths: Iterable[Fraction]) -> list[dict[str, str | int]]:
    """One row for each width: the mix of bases of width `atom`, and the single net of the same width beside it."""
    rows: list[dict[str, str | int]] = []
    base = cost(build, atom, image)
    for width in widths:
        check_multiple(width, atom)
        bases = int(width / atom)
        mix, single = base * bases, cost(build, width, image)
        row = {"bases": bases, "parameters": mix.parameters, "macs": mix.macs, "activations": mix.activations}
        rows.append({"width": str(width), **row, "single_parameters": single.parameters, "single_macs": single.macs})
    return rows


def count(call: Callable[[], object]) -> tuple[int, int]:
    """Multiplications and activations of whatever `call` computes."""
    with torch.no_grad(), plainly(), _Counter() as counter:
        call()
    return counter.macs, counter.activations


@contextmanager
def plainly() -> Iterator[None]:
    """Without the operators of oneDNN that stand for many, such as a whole LSTM, and say nothing of their work."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


class OperatorWatcher(TorchDispatchMode):
    """Sees every operator that runs, without the seconds that PyTorch takes to load its compiler for nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Counter(OperatorWatcher):
    """Counts as PyTorch's own `FlopCounterMode` does, by its formulas."""

    macs = activations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind, settings = func._overloadpacket, kwargs or {}
        out = func(*args, **settings)
        if kind in flop_registry:
            self.macs += flop_registry[kind](*args, **settings, out_val=out) // 2
        if kind in flop_registry or kind in NORMS:
            self.activations += (out if isinstance(out, Tensor) else out[0]).numel()  # norms put out statistics too
        return out


def _cost_of(module: nn.Module, image: Image, tokens: bool) -> Cost:
    """Cost of a module on one image, which has no batch statistics; samples of other ranks are as they are."""
    shape = (*image[-1:], *image[:-1]) if len(image) == 3 else image
    x = torch.zeros(1, *shape, dtype=torch.int64 if tokens else torch.float32)
    macs, activations = count(lambda: module.eval()(x))
    return Cost(sum(p.numel() for p in module.parameters()), macs, activations)


def _zeroed(build: Build, width: Fraction) -> nn.Module:
    """A net of zeros: no time is lost on random numbers."""
    module = weightless(build)(width)
    if any(not name.endswith(STATISTICS) for name, _ in module.named_buffers()):
        raise TypeError("numbers that the net was built with would be lost")
    return module._apply(lambda value: torch.zeros(value.shape, dtype=value.dtype))
