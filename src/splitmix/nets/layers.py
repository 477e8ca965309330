"""Layers that run several bases at once: entries have a leading base axis, activations are (batch, base*channels, ...).

A fresh layer holds one base. Give it entries stacked over n bases (`torch.func.functional_call`) and it computes all n
side by side: grouped convolutions, batched linears, norms over n*C channels. This is the block-diagonal net of the
paper's appendix.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitmix.core.types import Weights
from splitmix.core.width import parse_dial
from splitmix.nets.images import FEW, OwnImages, skipped
from splitmix.nets.stages import Stages


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
        stride = self.stride
        if stride > 1 and self.padding == 0 and self.weight.shape[3:] == (1, 1):
            # the same numbers, but safe: with a stride PyTorch 2.13 writes past the end of gradients of few channels
            x, stride = skipped(x, (stride, stride)), 1
        if inputs < FEW and stride == 1 and torch.is_grad_enabled() and (groups > 1 or x.requires_grad):
            convolve: Callable[..., Tensor] = OwnImages.apply
            return convolve(x, self.weight.flatten(0, 1), bias, self.padding, groups)
        return F.conv2d(x, self.weight.flatten(0, 1), bias, stride, self.padding, groups=groups)


class Linear(nn.Module):
    """Linear map of each base's features."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = _uniform((1, outputs, inputs), fan_in=inputs)
        self.bias = _uniform((1, outputs), fan_in=inputs)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each base's linear map of its features, (batch, base*features); plain features are shared by all bases."""
    bases, outputs, inputs = weight.shape
    if bases == 1:
        return F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    shared = x.shape[1] == inputs
    stacked = x.t().expand(bases, -1, -1) if shared else x.unflatten(1, (bases, inputs)).permute(1, 2, 0)
    # this way round the weights' gradient comes out contiguous
    y = torch.bmm(weight, stacked) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, stacked)
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
        return turned(x, robust, self.clean, self.noisy)


def turned(x: Tensor, robust: float | Tensor, clean: BatchNorm, noisy: BatchNorm | None) -> Tensor:
    """What a dial makes of two norms: with fixed statistics both are affine maps, so is what lies between them.

    In training both look at the batch, and differ by their own affines alone; the statistics of the nearer one follow.
    """
    if noisy is None or (isinstance(robust, float | int) and robust == 0):
        return BatchNorm.forward(clean, x)
    if isinstance(robust, float | int) and robust == 1:
        return BatchNorm.forward(noisy, x)
    if clean.training:
        weight, bias = between(robust, clean, noisy)
        return (clean if robust < 0.5 else noisy).normalised(x, weight.flatten(), bias.flatten())
    (a0, b0), (a1, b1) = clean.affine(), noisy.affine()
    shape = (1, -1) + (1,) * (x.dim() - 2)
    a, b = a0 + robust * (a1 - a0), b0 + robust * (b1 - b0)
    return x * a.view(shape) + b.view(shape)


def between(robust: float | Tensor, clean: BatchNorm, noisy: BatchNorm) -> tuple[Tensor, Tensor]:
    """The affine, weight and bias, between those of two norms."""
    return clean.weight + robust * (noisy.weight - clean.weight), clean.bias + robust * (noisy.bias - clean.bias)


def scaled(channels: int, width: Fraction) -> int:
    """Channels of a hidden layer at a width."""
    return max(1, int(channels * width))


Rescale = bool | Literal["released"]
MakeNorm = Callable[[int], nn.Module]  # of so many channels


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


CORNERS = (0.0, 0.1, 0.2, 0.3, 0.4, 1.0)  # dials with a code of their own: those that the paper trains
HIDDEN = 16  # more than corners, so that a gamma may take any value at each of them


class ScaledNet(nn.Module):
    """What our nets share: each is made of a width and of norms of one kind, and its bases can be stacked."""

    stackable = True
    blocks: ClassVar[Mapping[str, int]] = {}  # inputs of a channel, behind a flattened map
    behind: ClassVar[Mapping[str, str]] = {}  # norms that see what one layer gives, and nothing else; and that layer
    staged = False  # whether its layers are called in stages, which others may take the place of

    def __init__(
        self,
        width: Fraction,
        *,
        classes: int = 10,
        dual: bool = False,
        film: bool = False,
        rescale_layers: Rescale = True,
        stages: Stages | None = None,
    ) -> None:
        super().__init__()
        self.stages = stages or Stages()
        self.make_layers(width, classes, norms(width, rescale_layers, dual=dual, film=film))

    def make_layers(self, width: Fraction, classes: int, norm: MakeNorm) -> None:
        """Make the layers of a width; `norm` makes one for so many channels."""
        raise NotImplementedError

    def fold(self, weights: Weights, robust: float) -> Weights | None:
        """Stacked entries of the net without norms: each is part of the layer before it. None where that cannot be.

        With fixed statistics a norm is an affine map of each channel wherever its dial stands.
        """
        norms = {name: getattr(self, name) for name in self.behind}
        if not isinstance(robust, float | int) or any(type(norm) is not Norm for norm in norms.values()):
            return None
        folded = dict(weights)
        for name, layer in self.behind.items():
            dial = robust if norms[name].noisy is not None else 0
            ends = [self._folded(weights, layer, name, twin) for twin in twins_at(dial)]
            folded |= (
                ends[0] if len(ends) == 1 else {key: torch.lerp(ends[0][key], ends[1][key], dial) for key in ends[0]}
            )
        return folded

    def _folded(self, weights: Weights, layer: str, norm: str, twin: str) -> Weights:
        """A layer with one of the two norms behind it."""
        kept = (f"{norm}.{twin}.{entry}" for entry in ("weight", "bias", "running_mean", "running_var"))
        gain, shift, mean, var = (weights[entry] for entry in kept)
        scale, weight = gain * torch.rsqrt(var + getattr(self, norm).clean.eps), weights[f"{layer}.weight"]
        return {
            f"{layer}.weight": weight * scale.view(*scale.shape, *(1,) * (weight.dim() - 2)),
            f"{layer}.bias": (weights[f"{layer}.bias"] - mean) * scale + shift,
        }

    def without_norms(self) -> "ScaledNet":
        """Itself, with nothing in the place of the norms that `fold` makes part of other layers."""
        for name in self.behind:
            setattr(self, name, Nothing())
        return self


def twins_at(robust: float) -> tuple[str, ...]:
    """The norms that a dial touches."""
    return ("clean",) if robust == 0 else ("noisy",) if robust == 1 else ("clean", "noisy")


class Nothing(nn.Module):
    """In the place of a norm."""

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        return x


def norms(width: Fraction, rescale_layers: Rescale, *, dual: bool, film: bool) -> MakeNorm:
    """What builds the norms of a net from their channels: single or dual ones, or conditioned ones (always dual)."""
    eps, divisor = norm_eps(width, rescale_layers), float(width) if rescale_layers == "released" else 1.0
    kind: Callable[..., nn.Module] = FilmNorm if film else partial(Norm, dual=dual)
    return partial(kind, eps=eps, divisor=divisor)


class FilmNorm(nn.Module):
    """The clean norm at `robust=0`, its noisy twin above, each with an affine that depends on the dial.

    Nothing is blended, so any dial can be trained, and served with the statistics of a batch. The clean norm is reached
    by one batch in six only, which therefore counts six times in its running statistics: in the mean over clients they
    follow as fast as those of a norm that every batch reaches.
    """

    def __init__(self, channels: int, *, eps: float = 1e-5, divisor: float = 1.0) -> None:
        super().__init__()
        self.clean, self.noisy = (BatchNorm(channels, eps=eps, divisor=divisor) for _ in range(2))
        self.clean.momentum *= len(CORNERS)
        self.film = Film(channels)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        dial = float(robust)
        norm = self.clean if dial == 0 else self.noisy
        gamma, beta = self.film(encode(dial).to(x))
        return norm.normalised(x, (norm.weight * gamma).flatten(), (norm.bias * gamma + beta).flatten())


class Film(nn.Module):
    """Gamma and beta of every channel, from the code of a dial: h = LeakyReLU(A code + a), (1 + G h, B h).

    G and B start at 0: a fresh net is the net without FiLM. They need no biases, the affine of the norm is one. The
    entries have other names than those of layers, so that narrow nets start with the same ones: no sum in here grows
    with the width.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        bound = len(CORNERS) ** -0.5
        self.table = nn.Parameter(torch.empty(1, HIDDEN, len(CORNERS)).uniform_(-bound, bound))  # A
        self.offset = nn.Parameter(torch.empty(1, HIDDEN).uniform_(-bound, bound))  # a
        self.gamma = nn.Parameter(torch.zeros(1, channels, HIDDEN))  # G
        self.beta = nn.Parameter(torch.zeros(1, channels, HIDDEN))  # B

    def forward(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Both as (base, channel)."""
        hidden = F.leaky_relu((self.table * code).sum(-1) + self.offset).unsqueeze(1)  # (base, 1, hidden)
        return 1 + (self.gamma * hidden).sum(-1), (self.beta * hidden).sum(-1)


def encode(robust: float) -> Tensor:
    """The code of a dial: a unit vector at each of `CORNERS`, between two of them the straight line.

    The paper gives every trained dial one of several orthogonal codes, which beat the bare number. To a linear layer
    they are all alike: one is a rotation of another. Unit vectors are the simplest, and can be interpolated.

    >>> encode(0.25)
    tensor([0.0000, 0.0000, 0.5000, 0.5000, 0.0000, 0.0000])
    """
    dial = parse_dial(robust)
    place = max(i for i, corner in enumerate(CORNERS[:-1]) if corner <= dial)
    share = (dial - CORNERS[place]) / (CORNERS[place + 1] - CORNERS[place])
    code = [0.0] * len(CORNERS)
    code[place], code[place + 1] = 1 - share, share
    return torch.tensor(code)
