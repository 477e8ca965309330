"""Layers that run several bases at once: entries have a leading base axis, activations are (batch, base*channels, ...).

A fresh layer holds one base. Give it entries stacked over n bases (`torch.func.functional_call`) and it computes all n
side by side: grouped convolutions, batched linears, norms over n*C channels. This is the block-diagonal net of the
paper's appendix.
"""

import math
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Conv(nn.Module):
    """Convolution of each base's channels; a plain image is shared by all bases."""

    def __init__(
        self, inputs: int, outputs: int, size: int, *, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = _uniform((1, outputs, inputs, size, size), fan_in=inputs * size * size)
        self.bias = _uniform((1, outputs), fan_in=inputs * size * size) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        bases, _, inputs = self.weight.shape[:3]
        groups = 1 if x.shape[1] == inputs else bases  # all bases see the same image: one dense convolution
        bias = None if self.bias is None else self.bias.flatten()
        return F.conv2d(x, self.weight.flatten(0, 1), bias, self.stride, self.padding, groups=groups)


class Linear(nn.Module):
    """Linear map of each base's features."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = _uniform((1, outputs, inputs), fan_in=inputs)
        self.bias = _uniform((1, outputs), fan_in=inputs)

    def forward(self, x: Tensor) -> Tensor:
        bases, outputs, inputs = self.weight.shape
        if bases == 1:
            return F.linear(x, self.weight.flatten(0, 1), self.bias.flatten())
        shared = x.shape[1] == inputs  # all bases see the same features
        stacked = x.t().expand(bases, -1, -1) if shared else x.unflatten(1, (bases, inputs)).permute(1, 2, 0)
        y = torch.baddbmm(self.bias.unsqueeze(2), self.weight, stacked)  # the weights' gradient comes out contiguous
        return y.permute(2, 0, 1).reshape(-1, bases * outputs)


class BatchNorm(nn.Module):
    """Batch normalisation; with its running statistics set to None it always uses those of the batch at hand."""

    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, channels: int, *, eps: float = 1e-5, divisor: float = 1.0) -> None:
        super().__init__()
        self.eps, self.momentum = eps, 0.1
        self.divisor = divisor  # of what flows in, while it is trained
        self.weight = nn.Parameter(torch.ones(1, channels))
        self.bias = nn.Parameter(torch.zeros(1, channels))
        self.register_buffer("running_mean", torch.zeros(1, channels))
        self.register_buffer("running_var", torch.ones(1, channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.normalised(x, self.weight.flatten(), self.bias.flatten())

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The norm with an affine in place of its own."""
        mean = None if self.running_mean is None else self.running_mean.view(-1)
        var = None if self.running_var is None else self.running_var.view(-1)
        from_batch = self.training or mean is None
        x = x / self.divisor if self.training and self.divisor != 1 else x
        return F.batch_norm(x, mean, var, weight, bias, from_batch, self.momentum, self.eps)

    def affine(self) -> tuple[Tensor, Tensor]:
        """The map x -> a*x + b that this norm is in eval mode with fixed statistics, as (a, b) of (base*channels,)."""
        if self.running_mean is None or self.running_var is None:
            raise ValueError("norms without fixed statistics cannot be blended; calibrate the model first")
        a = self.weight * torch.rsqrt(self.running_var + self.eps)
        return a.flatten(), (self.bias - a * self.running_mean).flatten()


class Norm(nn.Module):
    """A norm with one dial: `robust=0` is the clean norm, `1` its noisy twin, between them a blend of both (DBN)."""

    def __init__(self, channels: int, *, eps: float = 1e-5, divisor: float = 1.0, dual: bool = False) -> None:
        super().__init__()
        self.clean = BatchNorm(channels, eps=eps, divisor=divisor)
        self.noisy = BatchNorm(channels, eps=eps, divisor=divisor) if dual else None

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        if self.noisy is None or (isinstance(robust, float | int) and robust == 0):
            return self.clean(x)
        if isinstance(robust, float | int) and robust == 1:
            return self.noisy(x)
        if self.training:
            raise ValueError(f"norms blend only in eval mode; train at robust=0 or robust=1, not {robust}")
        (a0, b0), (a1, b1) = self.clean.affine(), self.noisy.affine()
        shape = (1, -1) + (1,) * (x.dim() - 2)
        a, b = a0 + robust * (a1 - a0), b0 + robust * (b1 - b0)  # both are affine maps, so is their blend
        return x * a.view(shape) + b.view(shape)


def scaled(channels: int, width: Fraction) -> int:
    """Channels of a hidden layer at a width."""
    return max(1, int(channels * width))


Rescale = bool | Literal["released"]


def norm_eps(width: Fraction, rescale_layers: Rescale) -> float:
    """Epsilon of a norm behind layers whose outputs are divided by the width: BN(z/r, eps) = BN(z, eps*r*r), exactly.

    So the paper's rescaled layers cost nothing, and training and evaluation stay on one scale. The authors' code
    ("released") does divide, but only in training: tracked statistics are then of another scale than what is served.
    """
    return 1e-5 * float(width) ** 2 if rescale_layers is True else 1e-5


def _uniform(shape: tuple[int, ...], fan_in: int) -> nn.Parameter:
    """PyTorch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
