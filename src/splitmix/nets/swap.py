"""A user's own net with its layers swapped: for such as hold many bases at once, and for norms with a dial.

The new layers have the names and numbers of the old, and the user's code calls them as before. Whether it then computes
the same depends on that code, which may reshape or mix channels by hand; so it is tried beside the plain net.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from splitmix.core.net import Build, Net
from splitmix.core.types import Layout, Weights
from splitmix.core.width import Width
from splitmix.nets.images import skipped
from splitmix.nets.layers import BatchNorm, linear, turned

TRIED = 3  # bases that are run side by side, to see that they stay apart
MIXES = "its code mixes the channels of bases that run side by side"
DRAWS = "its code draws numbers at random, so that the two ways cannot be compared"


@dataclass(frozen=True)
class Swap:
    """A user's build, with layers that hold many bases, with norms that have noisy twins, or with both."""

    build: Build
    stacked: bool = True
    dual: bool = False

    def __call__(self, width: Width) -> nn.Module:
        return Swapped(self.build(width), stacked=self.stacked, dual=self.dual)


class SwapError(ValueError):
    """Says which layer has no other form."""


def side_by_side(build: Build) -> Build:
    """The build whose bases run at once."""
    return replace(build, stacked=True) if isinstance(build, Swap) else Swap(build)


def stacked_net(build: Build, width: Width, x: Tensor) -> Net:
    """The net, with its bases side by side if that computes the same on a batch; its `stacking` says so, or why not."""
    reason = why_looped(build, width, x)
    net = Net(build if reason else side_by_side(build))
    net.stacking, net.axes = reason or "yes", x.dim() - 1
    net.apart = not reason and why_looped(build, width, x, own=True) is not None
    return net


def why_looped(build: Build, width: Width, x: Tensor, *, own: bool = False) -> str | None:
    """Why the bases of a net must run one after another; None if side by side they compute and learn the same.

    They are tried on samples that they share, or on their `own`, as an attack makes them.
    """
    nets = looped, stacked = Net(build), Net(side_by_side(build))
    looped.axes = stacked.axes = x.dim() - 1
    x = torch.stack([x / (1 + base) if x.is_floating_point() else x for base in range(TRIED)]) if own else x
    dials = (0.0, 1.0) if isinstance(build, Swap) and build.dual else (0.0,)
    try:
        if looped.parameter_names(width) != stacked.parameter_names(width):
            return "some of its layers share their weights"
        start = looped.init(Layout(TRIED, width), 0, rescale=False, tracked=True)
        for dial, training in product(dials, (True, False)):
            one, other = (_tried(net, width, start, x, dial, training) for net in nets)
            if not all(map(_close, one, other)):
                again = _tried(looped, width, start, x, dial, training)
                return MIXES if all(map(_close, one, again)) else DRAWS
    except SwapError as found:
        return str(found)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f"its code does not run on several bases at once ({reason})"
    return None


class Call:
    """What layers must know of the call they are in; the user's code between them need not hand it on."""

    robust: float | Tensor = 0.0
    batch: int | None = None  # samples that a convolution has seen


class Swapped(nn.Module):
    """A user's module with its layers swapped; the children are the module's own, so entries keep their names."""

    def __init__(self, module: nn.Module, *, stacked: bool, dual: bool) -> None:
        super().__init__()
        self.stackable, self.call = stacked, Call()
        inner = Swapper(self.call, stacked, dual).swapped(module)
        self.__dict__["inner"] = inner  # not as a child
        self._modules, self._parameters, self._buffers = inner._modules, inner._parameters, inner._buffers

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        self.call.robust, self.call.batch = robust, None
        return self.inner(x)  # type: ignore[operator]

    def train(self, mode: bool = True) -> "Swapped":
        self.__dict__["inner"].train(mode)
        return super().train(mode)


class Layer(nn.Module):
    """A layer with the entries of a user's, and a leading base axis to each."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Module, call: Call) -> None:
        super().__init__()
        self.call = call
        _take_entries(self, layer, stacked=True)

    @property
    def flat(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of all bases as those of one layer with so many times the outputs."""
        return self.weight.flatten(0, 1), None if self.bias is None else self.bias.flatten()


class Conv(Layer):
    """Convolution of each base's channels; plain samples are shared by all bases."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d, call: Call) -> None:
        super().__init__(layer, call)
        self.inputs, self.groups = layer.in_channels, layer.groups
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
        self.skips = _skips(layer)
        self.convolve: Callable[..., Tensor] = F.conv1d if isinstance(layer, nn.Conv1d) else F.conv2d

    def forward(self, x: Tensor) -> Tensor:
        bases, stride, self.call.batch = len(self.weight), self.stride, len(x)
        dense = self.groups == 1 and x.shape[1] == self.inputs  # all bases see the same: one convolution
        groups = 1 if dense else bases * self.groups
        if self.skips:  # with a stride PyTorch 2.13 writes past the end of gradients of few channels
            x, stride = skipped(x, stride), (1,) * len(stride)
        x = x if dense else spread(x, bases, self.inputs)
        return self.convolve(x, *self.flat, stride, self.padding, self.dilation, groups)


class Linear(Layer):
    """Linear map of each base's features, the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        bases, _, inputs = self.weight.shape
        if self.call.batch and x.shape == (self.call.batch * bases, inputs):  # maps as rows: x.view(-1, inputs)
            x = x.reshape(self.call.batch, -1)
        return linear(x.flatten(0, -2), self.weight, self.bias).unflatten(0, x.shape[:-1])


class OwnNorm(BatchNorm):
    """A user's batch norm; with a dial it has a noisy twin beside its own entries."""

    def __init__(self, layer: nn.BatchNorm2d, call: Call, *, stacked: bool, dual: bool) -> None:
        super().__init__(layer.num_features, eps=layer.eps)
        _take_entries(self, layer, stacked=stacked)
        self.momentum, self.call = layer.momentum or 0.0, call
        self.noisy = OwnNorm(layer, call, stacked=stacked, dual=False) if dual else None

    def forward(self, x: Tensor) -> Tensor:
        channels = self.weight.shape[-1]
        return turned(spread(x, self.weight.numel() // channels, channels), self.call.robust, self, self.noisy)


class GroupNorm(Layer):
    """Norm over groups of each base's channels."""

    def __init__(self, layer: Any, call: Call) -> None:
        super().__init__(layer, call)
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        bases, channels = self.weight.shape
        return F.group_norm(spread(x, bases, channels), bases * self.groups, *self.flat, self.eps)


class ChannelNorm(GroupNorm):
    """Norm of each channel by itself; without entries it does not matter whose channels they are."""

    def __init__(self, layer: nn.InstanceNorm1d | nn.InstanceNorm2d, call: Call) -> None:
        Layer.__init__(self, layer, call)
        self.groups, self.eps = layer.num_features, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(x, eps=self.eps) if self.weight is None else super().forward(x)


class LayerNorm(Layer):
    """Norm over each base's features, the last axes."""

    def __init__(self, layer: nn.LayerNorm, call: Call) -> None:
        super().__init__(layer, call)
        self.eps = layer.eps

    def forward(self, x: Tensor) -> Tensor:
        bases, *shape = self.weight.shape
        place = x.dim() - len(shape)
        x = spread(x, bases, shape[0], place).unflatten(place, (bases, shape[0]))
        y = F.layer_norm(x, shape, eps=self.eps) * self.weight
        return (y if self.bias is None else y + self.bias).flatten(place, place + 1)


class Embedding(Layer):
    """Each base's vector of a token, one behind the other on the last axis."""

    def __init__(self, layer: nn.Embedding, call: Call) -> None:
        super().__init__(layer, call)
        self.padding = layer.padding_idx

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight.transpose(0, 1).flatten(1), self.padding)


class PReLU(Layer):
    """ReLU with a slope for each channel, or one for all channels of a base."""

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight.expand(-1, x.shape[1] // len(self.weight)).flatten())


STACKED: dict[type[nn.Module], Callable[[Any, Call], nn.Module]] = {
    **{nn.Conv1d: Conv, nn.Conv2d: Conv, nn.Linear: Linear, nn.PReLU: PReLU},
    **{nn.GroupNorm: GroupNorm, nn.LayerNorm: LayerNorm, nn.Embedding: Embedding},
    **{nn.InstanceNorm1d: ChannelNorm, nn.InstanceNorm2d: ChannelNorm},
}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
USUAL = {  # settings that the layers above take for granted
    **{"padding_mode": "zeros", "affine": True, "elementwise_affine": True},
    **{"max_norm": None, "sparse": False, "scale_grad_by_freq": False},
}


def spread(x: Tensor, bases: int, channels: int, axis: int = 1) -> Tensor:
    """Samples that all bases share, once for each."""
    return torch.cat([x] * bases, axis) if bases > 1 and x.shape[axis] == channels else x


@dataclass(frozen=True)
class Swapper:
    """Walks through a module and swaps its layers; one that stands in two places stays one."""

    call: Call
    stacked: bool
    dual: bool
    done: dict[nn.Module, nn.Module] = field(default_factory=dict)

    def swapped(self, layer: nn.Module, name: str = "") -> nn.Module:
        """The layer's other form, or the module with all its layers swapped."""
        if layer not in self.done:
            self.done[layer] = self._form(layer, name)
        return self.done[layer]

    def _form(self, layer: nn.Module, name: str) -> nn.Module:
        kind = type(layer)
        if kind in NORMS and (self.stacked or self.dual):
            return OwnNorm(_usual(layer, name), self.call, stacked=self.stacked, dual=self.dual)
        if kind in STACKED and self.stacked:
            return STACKED[kind](_usual(layer, name), self.call)
        if self.stacked and any(value is not None for value in (*layer._parameters.values(), *layer._buffers.values())):
            raise SwapError(f"its {named(layer, name)} has no form for several bases")
        for child, module in layer._modules.items():
            if module is not None:
                layer._modules[child] = self.swapped(module, f"{name}.{child}".lstrip("."))
        return layer


def named(layer: nn.Module, name: str) -> str:
    """How a reason speaks of a layer."""
    return f"layer '{name}' ({type(layer).__name__})" if name else type(layer).__name__


def _usual(layer: Any, name: str) -> Any:
    """The layer, if there is nothing about it that its other form does not know."""
    known = USUAL
    if STACKED.get(type(layer)) is ChannelNorm:
        known = {"track_running_stats": False}  # with an affine map or without
    odd = [f"{key}={getattr(layer, key)!r}" for key, usual in known.items() if getattr(layer, key, usual) != usual]
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and _skips(layer) and any(layer.padding):
        odd.append("a kernel smaller than its padding")
    if layer._forward_hooks or layer._forward_pre_hooks or not {"weight", "bias"} >= layer._parameters.keys():
        odd.append("hooks")
    if odd:
        raise SwapError(f"its {named(layer, name)} has no form for several bases or a dial with {', '.join(odd)}")
    return layer


def _skips(layer: nn.Conv1d | nn.Conv2d) -> bool:
    """Whether a convolution looks at single points, and not at all of them."""
    return max(layer.kernel_size) == 1 and max(layer.stride) > 1


def _take_entries(target: nn.Module, layer: nn.Module, *, stacked: bool) -> None:
    """Give a layer copies of another's entries."""

    def copy(value: Tensor) -> Tensor:
        return value.detach().clone()[None if stacked else ...]

    for name, value in layer._parameters.items():
        target.register_parameter(name, None if value is None else nn.Parameter(copy(value), value.requires_grad))
    for name in target._buffers:
        kept = layer._buffers[name]  # none in a norm that tracks no statistics
        target._buffers[name] = None if kept is None else copy(kept)


def _tried(net: Net, width: Width, start: Weights, x: Tensor, dial: float, training: bool) -> list[Tensor]:
    """What a batch gives: logits, gradients, and the statistics afterwards, all in double precision."""
    learned, kept = sorted(net.parameter_names(width)), sorted(net.statistic_names(width))
    weights = {name: value.double() for name, value in start.items()}
    x = x.double().requires_grad_() if x.is_floating_point() else x  # tokens have no gradient
    leaves = [*([x] if x.requires_grad else []), *(weights[name].requires_grad_() for name in learned)]
    with torch.enable_grad(), WithoutDropout():
        logits = net.run(width, weights, x, dial, training=training)
        loss = (logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()
    slopes = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [logits.detach(), *slopes, *(weights[name] for name in kept)]


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-5 * one.abs().max() + 1e-9)


class WithoutDropout(TorchFunctionMode):
    """Lets everything through that a dropout would drop: two draws cannot be compared."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))
