"""What a net costs: parameters, multiplications, activations and bytes, counted on one image without computing it.

One convention for every table: MACs are the multiplications of convolutions and linears, an addition goes with each.
Norms, biases, pooling and ReLUs are left out; counters that include norms and biases find 0.2 to 3 % more here.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from splitmix.core.width import check_multiple

Build = Callable[[Fraction], nn.Module]
Image = tuple[int, ...]  # (height, width, channel), or (feature,)
FLOAT = 4  # bytes of a number, in memory and on the way

NORMS = {
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._native_batch_norm_legit,
    torch.ops.aten._native_batch_norm_legit_no_training,
    torch.ops.aten.native_group_norm,
    torch.ops.aten.native_layer_norm,
}


@dataclass(frozen=True)
class Cost:
    """Cost of a net, or of a mix of nets, for one image."""

    parameters: int  # norms included, their statistics not
    macs: int  # multiplications of convolutions and linears; an addition goes with each
    activations: int  # numbers that convolutions, linears and norms put out

    @property
    def bytes(self) -> int:
        """Size of the parameters, in memory or on the way to a client."""
        return FLOAT * self.parameters

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.parameters + other.parameters, self.macs + other.macs, self.activations + other.activations)

    def __mul__(self, bases: int) -> "Cost":
        return Cost(self.parameters * bases, self.macs * bases, self.activations * bases)


def cost(build: Build, width: Fraction, image: Image) -> Cost:
    """Cost of the net that `build` makes at a width.

    >>> from splitmix.nets import find_net
    >>> cost(find_net("digit"), Fraction(1, 8), (28, 28, 3))
    Cost(parameters=224194, macs=1158528, activations=17898)
    """
    try:
        return _cost_on("meta", build, width, image)
    except (RuntimeError, TypeError):  # some modules of users look at the values, which only a real image has
        return _cost_on("cpu", build, width, image)


def mix_cost(build: Build, atom: Fraction, bases: int, image: Image) -> Cost:
    """Cost of `bases` nets of width `atom`, run on the same image."""
    return cost(build, atom, image) * bases


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
    outputs = FlopCounterMode(display=False, custom_mapping=dict.fromkeys((*flop_registry, *NORMS), _outputs))
    with torch.no_grad(), outputs, FlopCounterMode(display=False) as flops:
        call()
    return flops.get_total_flops() // 2, outputs.get_total_flops()


def _cost_on(device: str, build: Build, width: Fraction, image: Image) -> Cost:
    with torch.device(device):
        module = build(width).eval()  # one image has no batch statistics
        x = torch.zeros(1, *image[-1:], *image[:-1])
        macs, activations = count(lambda: module(x))
    return Cost(sum(p.numel() for p in module.parameters()), macs, activations)


def _outputs(*shapes: Any, out_shape: Any, **settings: Any) -> int:
    first = out_shape if isinstance(out_shape, torch.Size) else out_shape[0]  # norms also put out their statistics
    return math.prod(first)
