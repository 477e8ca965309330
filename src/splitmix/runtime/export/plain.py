"""A mix as one plain graph: what other runtimes are given, in layers that all of them know.

Bases lie side by side in grouped convolutions, norms are affine maps, and the mean over bases is part of the last
linear: mean_i(W_i h_i + b_i) is one linear of all features, with the weights (W_1 ... W_k)/k.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from splitmix.nets.layers import Conv, Linear
from splitmix.runtime.mix import Blend, Mix

Array = NDArray[np.float32]
RunFile = Callable[[Array, float], Array]  # a file at work: images and a dial to logits
ALL = slice(None)


def plain_graph(
    mix: Mix, image: Sequence[int], *, rows: slice = ALL, robust: float | None = None, shares: Sequence[float] = ()
) -> fx.GraphModule:
    """A module from images (n, height, width, channel) in [0, 1] to mean logits (n, class); `rows` picks bases.

    Each of them has its share in the mean; where none are given, all have the same.

    Where the norms have a dial that `robust` does not fix, it is a second input: a tensor of one number, cut to [0, 1].
    """
    traced = fx.GraphModule(mix.body, _Layers().trace(mix.body))
    height, width, channels = image
    with torch.no_grad():
        ShapeProp(traced).propagate(torch.zeros(1, channels, height, width), 0.0)
    return _Writer(traced, mix.bases, rows, robust, shares).write()


def has_dial(module: fx.GraphModule) -> bool:
    """Whether a plain graph has the dial for an input."""
    return bool(module.graph.find_nodes(op="placeholder", target="robust"))


class DialLayer(nn.Module):
    """Scale and shift of every norm at a dial, in one multiplication: all scales, then all shifts."""

    start: Tensor
    rise: Tensor

    def __init__(self, norms: Sequence["_Affine"]) -> None:
        super().__init__()
        self.sizes = [len(norm.scale) for norm in norms] * 2
        self.register_buffer("start", torch.cat([n.scale for n in norms] + [n.shift for n in norms]))
        self.register_buffer("rise", torch.cat([n.scale_rise for n in norms] + [n.shift_rise for n in norms]))

    def forward(self, robust: Tensor) -> tuple[Tensor, ...]:
        return (self.start + robust.clamp(0, 1) * self.rise).split(self.sizes)


class Scale(nn.Module):
    """a*x + b for each channel, for numbers that come from the dial."""

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return x * a.view(_along(x.dim())) + b.view(_along(x.dim()))


class Fixed(Scale):
    """a*x + b for each channel, once and for all."""

    a: Tensor
    b: Tensor

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.register_buffer("a", a)
        self.register_buffer("b", b)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, self.a, self.b)


class Side(nn.Module):
    """Linears side by side, each of its own features: faster than one batched product once a batch has some images."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_linear(w, b) for w, b in zip(weight, bias, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        pieces = x.chunk(len(self.parts), 1)
        return torch.cat([part(piece) for part, piece in zip(self.parts, pieces, strict=True)], 1)


class _Layers(fx.Tracer):
    """Follows a net down to its layers, not into them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Conv | Linear | Blend)


@dataclass(frozen=True)
class _Affine:
    """A folded norm: numbers for each channel."""

    scale: Tensor
    shift: Tensor
    scale_rise: Tensor
    shift_rise: Tensor

    def at(self, robust: float) -> tuple[Tensor, Tensor]:
        return self.scale + robust * self.scale_rise, self.shift + robust * self.shift_rise


class _Writer:
    """Writes the graph of a net anew, layer by layer, for some of its bases."""

    def __init__(
        self, traced: fx.GraphModule, bases: int, rows: slice, robust: float | None, shares: Sequence[float]
    ) -> None:
        self.traced, self.bases, self.rows, self.robust = traced, bases, rows, robust or 0.0
        self.shares = shares
        self.root, self.graph = nn.Module(), fx.Graph()
        blends = {name: layer for name, layer in traced.named_modules() if isinstance(layer, Blend)}
        self.norms = {name: self._affine(blend) for name, blend in blends.items()}
        self.moving = robust is None and any(blend.scale_rise is not None for blend in blends.values())
        self.settings: dict[str, tuple[fx.Node, fx.Node]] = {}  # scale and shift of each norm, where they move
        self.written: dict[fx.Node, fx.Node] = {}

    def write(self) -> fx.GraphModule:
        nodes = list(self.traced.graph.nodes)
        images = self.graph.placeholder("x")
        if self.moving:
            self._write_dial(self.graph.placeholder("robust"))
        self.written[nodes[0]] = self.graph.call_method("permute", (images, 0, 3, 1, 2))
        for node in nodes:
            if node.op == "call_module":
                self.written[node] = self._write_layer(node)
            elif node.op != "placeholder":
                self.written[node] = self.graph.node_copy(node, self.written.__getitem__)
        self.graph.lint()
        return fx.GraphModule(self.root, self.graph).eval()

    def _write_dial(self, robust: fx.Node) -> None:
        pieces = self._call("dial", DialLayer(list(self.norms.values())), robust)
        picked = [self.graph.call_function(getitem, (pieces, i)) for i in range(2 * len(self.norms))]
        scales, shifts = picked[: len(self.norms)], picked[len(self.norms) :]
        self.settings = dict(zip(self.norms, zip(scales, shifts, strict=True), strict=True))

    def _write_layer(self, node: fx.Node) -> fx.Node:
        name, before = str(node.target), node.all_input_nodes[0]
        x, shape = self.written[before], before.meta["tensor_meta"].shape
        if name in self.settings:
            return self._call(name, Scale(), x, *self.settings[name])
        if name not in self.norms:
            last = all(user.op == "output" for user in node.users)
            return self._call(name, self._made(self.traced.get_submodule(name), shape[1], last), x)
        scale, shift = self.norms[name].at(self.robust)
        if x.op == "call_module" and len(before.users) == 1:  # the norm of one layer alone becomes part of it
            _scale(self.root.get_submodule(str(x.target)), scale, shift)
            return x
        return self._call(name, Fixed(scale, shift), x)

    def _call(self, name: str, layer: nn.Module, *inputs: fx.Node) -> fx.Node:
        name = name.replace(".", "_")
        self.root.add_module(name, layer)
        return self.graph.create_node("call_module", name, inputs)

    def _made(self, layer: Any, channels: int, last: bool) -> nn.Module:
        """A layer of PyTorch for one of ours; the last one takes the mean over bases."""
        weight = layer.weight[self.rows]
        bias = weight.new_zeros(weight.shape[:2]) if layer.bias is None else layer.bias[self.rows]
        shared = len(weight) == 1 or channels == weight.shape[2]  # one base, or all see the same image
        if isinstance(layer, Conv):
            return _conv(layer, weight, bias, groups=1 if shared else len(weight))
        if last:
            shares = weight.new_tensor(self.shares or [1 / len(weight)] * len(weight))
            return _linear((weight * shares[:, None, None]).transpose(0, 1).flatten(1), shares @ bias)
        return _linear(weight.flatten(0, 1), bias.flatten()) if shared else Side(weight, bias)

    def _affine(self, blend: Blend) -> _Affine:
        def picked(value: Tensor | None) -> Tensor:
            value = torch.zeros_like(blend.scale) if value is None else value
            return value.unflatten(0, (self.bases, -1))[self.rows].flatten()

        return _Affine(*map(picked, (blend.scale, blend.shift, blend.scale_rise, blend.shift_rise)))


def _conv(layer: Conv, weight: Tensor, bias: Tensor, groups: int) -> nn.Module:
    outputs, inputs, height, width = weight.flatten(0, 1).shape
    made = nn.utils.skip_init(
        nn.Conv2d, inputs * groups, outputs, (height, width), layer.stride, layer.padding, groups=groups
    )
    made.weight, made.bias = _held(weight.flatten(0, 1)), _held(bias.flatten())
    return made


def _linear(weight: Tensor, bias: Tensor) -> nn.Module:
    made = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])
    made.weight, made.bias = _held(weight), _held(bias)
    return made


def _scale(layer: Any, a: Tensor, b: Tensor) -> None:
    """Let a layer put out a*y + b in place of y."""
    if isinstance(layer, Side):
        size = len(a) // len(layer.parts)
        for part, scale, shift in zip(layer.parts, a.split(size), b.split(size), strict=True):
            _scale(part, scale, shift)
        return
    along = (-1,) + (1,) * (layer.weight.dim() - 1)
    layer.weight, layer.bias = _held(layer.weight * a.view(along)), _held(layer.bias * a + b)


def _held(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().clone(), requires_grad=False)


def _along(axes: int) -> tuple[int, ...]:
    """The shape in which numbers for each channel meet activations."""
    return (1, -1) + (1,) * (axes - 2)
