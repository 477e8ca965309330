"""Stages of a net in one call each, where they are trained or attacked on a processor; elsewhere layer by layer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from splitmix.nets.layers import BatchNorm, Conv, Linear, Norm, Nothing, between
from splitmix.nets.native.library import ConvSizes, LinearSizes, call, fits, numbers
from splitmix.nets.stages import Stages

LONGEST = 500  # pixels of a row that a kernel has room for


class NativeStages(Stages):
    """Stages whose numbers differ from the plain ones by rounding alone; the same for any number of workers."""

    def conv(
        self, x: Tensor, conv: nn.Module, norm: nn.Module, robust: float | Tensor, *, pool: bool = False
    ) -> Tensor:
        found = chosen(norm, robust)
        if not (isinstance(conv, Conv) and found and fits_conv(x, conv, found, pool)):
            return super().conv(x, conv, norm, robust, pool=pool)
        if not isinstance(found, BatchNorm):
            bare: Tensor = ConvStage.apply(x, conv.weight, conv.bias, None, None, None, pool)
            return bare
        y: Tensor = ConvStage.apply(x, conv.weight, conv.bias, *affine(norm, robust), found, pool)
        return y

    def linear(self, x: Tensor, linear: nn.Module, norm: nn.Module, robust: float | Tensor) -> Tensor:
        found = chosen(norm, robust)
        if not (isinstance(linear, Linear) and isinstance(found, BatchNorm) and fits_linear(x, linear, found)):
            return super().linear(x, linear, norm, robust)
        y: Tensor = LinearStage.apply(x, linear.weight, linear.bias, *affine(norm, robust), found)
        return y


def chosen(norm: nn.Module, robust: float | Tensor) -> BatchNorm | Nothing | None:
    """The norm that a dial is nearer to, if it is one that looks at its batch, or nothing at all."""
    if isinstance(norm, Nothing):
        return norm
    if type(norm) is not Norm or not isinstance(robust, float | int):
        return None
    found = norm.noisy if robust >= 0.5 and norm.noisy is not None else norm.clean
    learns = found.training and found.divisor == 1
    return found if learns else None


def affine(norm: nn.Module, robust: float | Tensor) -> tuple[Tensor, Tensor]:
    """The weight and bias of the norm that a dial turns to, or what lies between those of both."""
    assert isinstance(norm, Norm)
    if norm.noisy is None or robust == 0:
        return norm.clean.weight, norm.clean.bias
    return (norm.noisy.weight, norm.noisy.bias) if robust == 1 else between(robust, norm.clean, norm.noisy)


def fits_conv(x: Tensor, conv: Conv, norm: BatchNorm | Nothing, pool: bool) -> bool:
    """Whether a stage is of the kind that is written down in C."""
    bases, _, inputs, size, other = conv.weight.shape
    apart = x.shape[1] == bases * inputs  # else all bases see the same image, to which no slope goes back
    return (
        learning(x, conv.weight)
        and fits(x, conv.weight, conv.bias, *norm.parameters())
        and conv.bias is not None
        and (size, other, conv.stride, conv.padding) in ((1, 1, 1, 0), (3, 3, 1, 1), (5, 5, 1, 2))
        and (apart or not x.requires_grad)
        and min(x.shape[2:]) > 1
        and x.shape[3] <= LONGEST
        and (len(x) > 0 or not pool)
    )


def fits_linear(x: Tensor, linear: Linear, norm: BatchNorm) -> bool:
    """The same of a linear map."""
    bases, _, inputs = linear.weight.shape
    return (
        learning(x, linear.weight)
        and fits(x, linear.weight, linear.bias, *norm.parameters())
        and x.dim() == 2
        and x.shape[1] == bases * inputs
        and len(x) > 1
    )


def learning(x: Tensor, weight: Tensor) -> bool:
    """Whether anything asks for slopes: what is only looked at stays as the plain stages see it."""
    return torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)


class ConvStage(torch.autograd.Function):
    """relu(pool(norm(conv(x)))) with the statistics of the batch, or without the norm."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        gain: Tensor | None,
        shift: Tensor | None,
        norm: Any,
        pool: bool,
    ) -> Tensor:
        bases, outputs, inputs, size, _ = weight.shape
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        batch, channels, height, width = x.shape
        sizes = ConvSizes(
            **{"batch": batch, "bases": bases, "inputs": inputs, "outputs": outputs},
            **{"height": height, "width": width, "kernel": size, "pad": size // 2},
            **{"shared": channels == inputs, "pool": pool, "normed": norm is not None},
        )
        y = x.new_empty(batch, bases * outputs, height // 2 if pool else height, width // 2 if pool else width)
        where = torch.empty_like(y, dtype=torch.uint8) if pool else None
        z = pooled = None
        mean, var = weight.new_empty(2, bases * outputs)
        if norm is not None:
            assert gain is not None
            assert shift is not None
            gain, shift = gain.contiguous(), shift.contiguous()
            z = x.new_empty(batch * bases * outputs, numbers("plane_for", sizes))
            pooled = torch.empty_like(y) if pool else None
        ctx.sizes, ctx.eps = sizes, 0.0 if norm is None else norm.eps
        call("conv_forward", sizes, x, weight, bias, gain, shift, ctx.eps, z, pooled, y, where, mean, var)
        if norm is not None:
            follow(norm, mean, var, batch * height * width)
        ctx.save_for_backward(x, weight, gain, z, pooled, y, where, mean, var)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gain, z, pooled, y, where, mean, var = ctx.saved_tensors
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        of_bias, of_gain, of_shift = (weight.new_empty(weight.shape[:2]) for _ in range(3))
        given = (slope.contiguous(), x, weight, gain, ctx.eps, z, pooled, y, where, mean, var)
        call("conv_backward", ctx.sizes, *given, of_x, of_weight, of_bias, of_gain, of_shift)
        of_norm = (None, None) if gain is None else (of_gain, of_shift)
        return of_x, of_weight, of_bias, *of_norm, None, None


class LinearStage(torch.autograd.Function):
    """relu(norm(linear(x))) with the statistics of the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, norm: Any) -> Tensor:
        x, weight, bias, gain, shift = (value.contiguous() for value in (x, weight, bias, gain, shift))
        (batch, _), (bases, outputs, inputs) = x.shape, weight.shape
        ctx.sizes = sizes = LinearSizes(batch=batch, bases=bases, inputs=inputs, outputs=outputs)
        z, y = x.new_empty(bases * outputs, numbers("span_for", sizes)), x.new_empty(batch, bases * outputs)
        mean, var = x.new_empty(2, bases * outputs)
        ctx.eps = norm.eps
        call("linear_forward", sizes, x, weight, bias, gain, shift, ctx.eps, z, y, mean, var)
        follow(norm, mean, var, batch)
        ctx.save_for_backward(x, weight, gain, z, y, mean, var)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gain, z, y, mean, var = ctx.saved_tensors
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_weight, (of_bias, of_gain, of_shift) = torch.empty_like(weight), (torch.empty_like(gain) for _ in range(3))
        given = (slope.contiguous(), x, weight, gain, ctx.eps, z, y, mean, var)
        call("linear_backward", ctx.sizes, *given, of_x, of_weight, of_bias, of_gain, of_shift)
        return of_x, of_weight, of_bias, of_gain, of_shift, None


def follow(norm: BatchNorm, mean: Tensor, var: Tensor, count: int) -> None:
    """Running statistics go towards those of a batch, as PyTorch's do: its variance without bias."""
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.view(-1).lerp_(mean, norm.momentum)
        norm.running_var.view(-1).lerp_(var * (count / (count - 1)), norm.momentum)
