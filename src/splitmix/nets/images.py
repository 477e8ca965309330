"""Ways back through images that PyTorch is slow at: to few channels of bases' own, to skipped pixels, from features."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEW = 8  # input channels that fill one vector of the processor
aten = torch.ops.aten


class OwnImages(torch.autograd.Function):
    """A convolution of few channels for each base (groups), at stride 1; the same numbers, with another way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.groups = padding, groups
        return F.conv2d(x, weight, bias, 1, padding, groups=groups)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        slope = slope.to(x.dtype)  # of half precision, where that is mixed in
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        back = slope_of_images(slope, weight, ctx.padding, ctx.groups, x) if of_x else None
        if not of_weight:
            return back, None, slope.sum((0, 2, 3)) if of_bias else None, None, None
        # one base after the other: at so few channels each, groups take three times as long
        pieces = zip(slope.chunk(ctx.groups, 1), x.chunk(ctx.groups, 1), weight.chunk(ctx.groups), strict=True)
        found = [_slopes(*piece, ctx.padding, (False, True, of_bias)) for piece in pieces]
        return (
            back,
            torch.cat([w for _, w, _ in found]),
            torch.cat([b for *_, b in found]) if of_bias else None,
            None,
            None,
        )


class Skipped(torch.autograd.Function):
    """Some of the pixels; their gradient lies in memory as the images do, else what meets it there is slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *strides: int) -> Tensor:
        ctx.shape, ctx.places = x.shape, _every(strides)
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        ctx.order = torch.channels_last if last else torch.contiguous_format
        return x[ctx.places]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        whole = torch.empty(ctx.shape, dtype=slope.dtype, device=slope.device, memory_format=ctx.order).zero_()
        whole[ctx.places] = slope
        return whole, *(None for _ in ctx.places[2:])


def skipped(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Pixels at such steps, from the first on."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x[_every(strides)]
    found: Tensor = Skipped.apply(x, *strides)
    return found


def _every(strides: tuple[int, ...]) -> tuple[slice, ...]:
    return slice(None), slice(None), *(slice(None, None, step) for step in strides)


def flat(x: Tensor) -> Tensor:
    """A map as features; their gradient comes back in the order of the map, else what meets it there is slow.

    The same numbers: behind eight bases of the Digit net, ReLU's way back takes an eighth of the time.
    """
    learning = isinstance(x, Tensor) and torch.is_grad_enabled() and x.requires_grad  # what torch.fx traces is none
    if learning and x.is_contiguous(memory_format=torch.channels_last):
        x.register_hook(_channels_last)
    return x.flatten(1)


def _channels_last(slope: Tensor) -> Tensor:
    return slope.contiguous(memory_format=torch.channels_last)


def slope_of_images(slope: Tensor, weight: Tensor, padding: int, groups: int, x: Tensor) -> Tensor:
    """The gradient of images: two rows of pixels at a time, so that three channels fill most of a vector.

    A convolution of the slope at stride 2, whose kernel is one row higher: its upper half makes the even rows.
    """
    (outputs, inputs, size, _), (batch, _, height, width) = weight.shape, x.shape
    if height % 2 or padding >= size:
        return _slopes(slope, x, weight, padding, (True, False, False), groups)[0]
    turned = weight.view(groups, outputs // groups, inputs, size, size).transpose(1, 2).flip(3, 4)
    rows = turned.new_zeros(groups, 2, inputs, outputs // groups, size + 1, size)
    rows[:, 0, :, :, :size], rows[:, 1, :, :, 1:] = turned, turned
    kernel = rows.flatten(0, 2).contiguous(memory_format=torch.channels_last)
    found = F.conv2d(slope, kernel, None, (2, 1), size - 1 - padding, groups=groups)
    found = found.permute(0, 2, 3, 1).reshape(batch, height // 2, width, groups, 2, inputs)
    return found.permute(0, 1, 4, 2, 3, 5).reshape(batch, height, width, groups * inputs).permute(0, 3, 1, 2)


def _slopes(
    slope: Tensor, x: Tensor, weight: Tensor, padding: int, wanted: tuple[bool, bool, bool], groups: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """What PyTorch finds: the gradients of images, weight and bias."""
    sizes, one = [len(weight)], [1, 1]
    found: tuple[Tensor, Tensor, Tensor] = aten.convolution_backward(
        slope, x, weight, sizes, one, [padding, padding], one, False, [0, 0], groups, wanted
    )
    return found
