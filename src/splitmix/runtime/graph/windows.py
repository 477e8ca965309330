"""Operators that look at windows of an image or a signal, or change its size, in the operators of a graph."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from splitmix.runtime.graph.writers import Write, writes_in

WINDOWS: dict[str, Write] = {}
_writes = partial(writes_in, WINDOWS)


def _pairs(value: Any, axes: int) -> list[int]:
    """A setting for each axis, where PyTorch may leave some out."""
    given = [value] if isinstance(value, int) else list(value)
    return given * axes if len(given) == 1 else given


@_writes("convolution")
def _conv(
    to: Any,
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    axes, kernel = x.dim() - 2, weight.shape[-(x.dim() - 2) :]
    windows = {"strides": _pairs(stride, axes), "pads": _pairs(padding, axes) * 2, "dilations": _pairs(dilation, axes)}
    windows |= {"output_padding": _pairs(output_padding, axes)} if transposed else {}
    given = [x, weight] if bias is None else [x, weight, bias]
    op = "ConvTranspose" if transposed else "Conv"
    to.call(to.step(op, given, kernel_shape=kernel, group=groups, **windows), out)


@_writes("max_pool2d_with_indices", "max_pool2d", "mkldnn_max_pool2d", "max_pool3d_with_indices", "max_pool3d")
def _max_pool(
    to: Any, out: Any, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> None:
    axes, out = x.dim() - 2, out if isinstance(out, Tensor) else out[0]
    kernel, strides, dilations = (_pairs(given, axes) for given in (kernel, stride or kernel, dilation))
    before = after = _pairs(padding, axes)
    if ceil:  # the last window may reach beyond the end
        reach = [
            (o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(out.shape[2:], strides, dilations, kernel, strict=True)
        ]
        after = [max(a, r - side - b) for a, r, side, b in zip(after, reach, x.shape[2:], before, strict=True)]
    pads = [*before, *after]
    to.call(to.step("MaxPool", [x], kernel_shape=kernel, strides=strides, pads=pads, dilations=dilations), out)


@_writes("adaptive_max_pool2d")
def _adaptive_max_pool(to: Any, out: Any, x: Tensor, size: Sequence[int]) -> None:
    if any(side % wanted for side, wanted in zip(x.shape[2:], size, strict=True)):
        raise to.refusal("adaptive_max_pool2d with windows of different sizes")
    kernel = [side // wanted for side, wanted in zip(x.shape[2:], size, strict=True)]
    made = to.step("MaxPool", [x], kernel_shape=kernel, strides=kernel, pads=[0] * 4, dilations=[1, 1])
    to.call(made, out[0])


@_writes("avg_pool2d", "avg_pool1d", "avg_pool3d")
def _average_pool(
    to: Any, out: Tensor, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> None:  # fmt: skip
    if ceil or divisor_override:
        raise to.refusal("avg_pool2d with ceil_mode or a divisor")
    axes = x.dim() - 2
    windows = {"strides": _pairs(stride or kernel, axes), "pads": _pairs(padding, axes) * 2}
    kernel = _pairs(kernel, axes)
    to.call(to.step("AveragePool", [x], kernel_shape=kernel, count_include_pad=int(count_include_pad), **windows), out)


@_writes("_adaptive_avg_pool2d")
def _adaptive_pool(to: Any, out: Tensor, x: Tensor, size: Sequence[int]) -> None:
    """Means over windows that may overlap: a product with a fixed matrix along the height, and one along the width."""
    rows, columns = (_means(side, wanted) for side, wanted in zip(x.shape[2:], size, strict=True))
    to.call(to.step("MatMul", [to.step("MatMul", [rows, x]), columns.t().contiguous()]), out)


def _means(inputs: int, outputs: int) -> Tensor:
    """The matrix (output, input) of the means that adaptive pooling takes along one axis."""
    with torch.utils._python_dispatch._disable_current_modes():
        return F.adaptive_avg_pool1d(torch.eye(inputs).unsqueeze(0), outputs)[0].t().contiguous()


# --- other sizes ---


@_writes("upsample_nearest1d", "upsample_linear1d")
def _resized_signal(to: Any, out: Tensor, x: Tensor, *settings: Any) -> None:
    with torch.utils._python_dispatch._disable_current_modes():
        columns = to.func(torch.eye(x.shape[2])[None], *settings)[0]
    to.call(to.step("MatMul", [x, columns]), out)


@_writes("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")
def _resized(to: Any, out: Tensor, x: Tensor, *settings: Any) -> None:
    """Each new row is a mean of old ones, and each column: products with two fixed matrices."""
    height, width = x.shape[2:]
    with torch.utils._python_dispatch._disable_current_modes():
        rows = to.func(torch.eye(height)[None, :, :, None].expand(1, -1, -1, width), *settings)[0, :, :, 0]
        columns = to.func(torch.eye(width)[None, :, None].expand(1, -1, height, -1), *settings)[0, :, 0]
    to.call(to.step("MatMul", [to.step("MatMul", [rows.t().contiguous(), x]), columns.contiguous()]), out)


@_writes("pixel_shuffle")
def _shuffled(to: Any, out: Tensor, x: Tensor, factor: int) -> None:
    """Channels become pixels: each block of factor times factor of them is a patch."""
    count, _, height, width = x.shape
    patches = to.reshaped(x, (count, out.shape[1], factor, factor, height, width))
    to.call(to.reshaped(to.step("Transpose", [patches], perm=[0, 1, 4, 2, 5, 3]), out.shape), out)
