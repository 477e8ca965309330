"""What a user's own net does with its channels, found by running two samples through it and following the gradient.

PyTorch's graph of a loss names every operation on the way back to the weights, whatever the module's code looks like.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splitmix.core.net import Net
from splitmix.core.types import Weights
from splitmix.core.width import Width

Node = Any  # of the graph: PyTorch gives no type for it
LAYERS = ("Convolution", "Addmm", "Mm", "Bmm", "Baddbmm", "MkldnnConvolution")
# Operations that hand a factor on: what holds for their output's scale holds for their input's.
LINEAR = (
    *("Add", "Sub", "Mul", "Div", "Cat", "Mean", "Sum", "Relu", "LeakyRelu", "Prelu", "NativeDropout"),
    *("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "MkldnnAdaptiveAvgPool", "ConstantPad"),
    *("View", "UnsafeView", "ReshapeAlias", "Clone", "Permute", "Transpose", "T", "Squeeze", "Unsqueeze"),
    *("Select", "Slice", "Split", "Expand", "Alias"),
)
KEEP_CHANNELS = ("Relu", "LeakyRelu", "Prelu", "NativeDropout", "Gelu", "Silu", "Hardswish", "Clone", "Mul", "Div")


@dataclass(frozen=True)
class Trace:
    """Entries of a net of which more is known than their shape."""

    normed: frozenset[str]  # weights and biases whose scale a batch norm takes away
    blocks: Mapping[str, int]  # linear weights behind a flattened image: inputs that belong to one channel


def trace(module: nn.Module, x: Tensor) -> Trace:
    """Follow the gradient of a module's outputs on a batch back to its entries."""
    with torch.enable_grad():
        nodes = _from_the_top(module.train()(x).grad_fn)
    behind_norm = _behind_norms(nodes)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    uses: dict[str, list[bool]] = defaultdict(list)
    blocks = {}
    for node in (node for node in nodes if _kind(node) in LAYERS):
        held = [(names[id(leaf)], leaf) for leaf in _parameters(node) if id(leaf) in names]
        for name, leaf in held:
            uses[name].append(behind_norm[node])
            pixels = _flattened(node, leaf.shape[-1]) if _kind(node) != "Convolution" and leaf.dim() > 1 else None
            if pixels is not None:
                blocks[name] = pixels
    return Trace(frozenset(name for name, normed in uses.items() if all(normed)), blocks)


def rescaled_names(net: Net, width: Width, traced: Trace) -> frozenset[str]:
    """The entries that start smaller in a narrow net: those a batch norm follows, with inputs that grow with the width.

    A norm takes the factor away again, so only the step length behind it changes. Without one a smaller start is
    another net: gains and residual streams of a transformer, say, would fade.
    """
    if width == 1:
        return frozenset()
    wider = net.shapes(min(Width(1), 2 * width))
    inputs = {name for name, shape in net.shapes(width).items() if shape[1:] != wider[name][1:]}
    layers = {name.rpartition(".")[0] for name in inputs & traced.normed}
    return frozenset(name for name in traced.normed if name.rpartition(".")[0] in layers)


def channels_roll(net: Net, width: Width, weights: Weights, x: Tensor) -> bool:
    """Whether a net computes the same with all its scaled channels moved on by one: only then do shifted windows fit.

    `weights` hold one base of the width. Groups of channels, and features that mix channels with something else in an
    unknown order, do not roll.
    """
    narrow, blocks = net.shapes(width / 2), net.blocks(width)
    rolled = {}
    for name, value in weights.items():
        for axis, (have, want) in enumerate(zip(value.shape[1:], narrow[name], strict=True), start=1):
            if have != want:
                value = value.roll(blocks.get(name, 1) if axis == 2 else 1, axis)
        rolled[name] = value
    with torch.no_grad():
        before, after = (net.run(width, entries, x, training=False) for entries in (weights, rolled))
    return torch.allclose(before, after, rtol=1e-3, atol=1e-4)


def _from_the_top(top: Node) -> list[Node]:
    """All operations, each before what it is made of."""
    order: list[Node] = []
    seen = set()
    stack = [(top, False)] if top is not None else []
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(below, False) for below, _ in node.next_functions if below is not None]
    return order[::-1]


def _behind_norms(nodes: list[Node]) -> dict[Node, bool]:
    """Whether all that is made of an operation's output ends in a batch norm, on every way."""
    ends: dict[Node, list[bool]] = defaultdict(list)
    found = {}
    for node in nodes:
        found[node] = bool(ends[node]) and all(ends[node])
        for place, (below, _) in enumerate(node.next_functions):
            if below is not None:
                normed = _kind(node) == "NativeBatchNorm" and place == 0
                ends[below].append(normed or (_kind(node) in LINEAR and found[node]))
    return found


def _parameters(node: Node) -> Iterator[Tensor]:
    """The leaves that an operation takes as they are, or transposed."""
    for below, _ in node.next_functions:
        while below is not None and _kind(below) in ("T", "Transpose", "View", "Permute", "Expand"):
            below = below.next_functions[0][0]
        if below is not None and hasattr(below, "variable"):
            yield below.variable


def _flattened(node: Node, inputs: int) -> int | None:
    """Pixels of each channel, if the inputs of a layer are a flattened image."""
    for below, _ in node.next_functions:
        while below is not None and _kind(below) in KEEP_CHANNELS:
            below = below.next_functions[0][0]
        sizes = getattr(below, "_saved_self_sym_sizes", ())
        if _kind(below) in ("View", "UnsafeView", "ReshapeAlias") and len(sizes) > 2 and math.prod(sizes[1:]) == inputs:
            return int(math.prod(sizes[2:]))
    return None


def _kind(node: Node) -> str:
    """The name of an operation, without what PyTorch adds to it: its dimensions and version."""
    name = type(node).__name__ if node is not None else ""
    return name.removesuffix("0").removesuffix("1").removesuffix("Backward").rstrip("123D") or name
