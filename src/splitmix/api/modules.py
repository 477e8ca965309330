"""A mix of parts as one plain module: of users' own modules, or of PyTorch's layers for our nets."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from splitmix.core.errors import UserError
from splitmix.core.inputs import Scaling
from splitmix.core.net import Build, TorchNorm
from splitmix.core.parts import cut
from splitmix.core.types import Part, Weights
from splitmix.core.width import Width
from splitmix.nets.swap import Swap
from splitmix.runs.setup import Setup
from splitmix.runtime.export.plain import plain_graph
from splitmix.runtime.mix import Mixer


class Mean(nn.Module):
    """The mean of the logits of modules, each by its share."""

    shares: Tensor

    def __init__(self, modules: Sequence[nn.Module], shares: Sequence[float]) -> None:
        super().__init__()
        self.bases = nn.ModuleList(modules)
        self.register_buffer("shares", torch.tensor(shares))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensordot(self.shares, torch.stack([base(x) for base in self.bases]), 1)


class ChannelsFirst(nn.Module):
    """A module that takes its images channels last, for such as come channels first."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x.permute(0, 2, 3, 1))
        return logits


class Scaled(nn.Module):
    """A module that takes features as they stand in the table, and scales them as in training."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, body: nn.Module, scaling: Scaling) -> None:
        super().__init__()
        self.body = body  # in double precision, as a mean may be far larger than a deviation
        self.register_buffer("mean", torch.tensor(scaling.mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.tensor(scaling.deviation, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(((x.double() - self.mean) / self.deviation).float())
        return logits


def plain_module(setup: Setup, weights: Weights, mix: Sequence[Part], robust: float) -> nn.Module:
    """The mix at a dial, in eval mode; a part may come twice, and then counts so."""
    module, scaling = _unscaled(setup, weights, mix, robust), setup.task.scaling
    return (module if scaling is None else Scaled(module, scaling)).eval()


def _unscaled(setup: Setup, weights: Weights, mix: Sequence[Part], robust: float) -> nn.Module:
    times = Counter(mix)
    width, shares = mix[0].width, [count / len(mix) for count in times.values()]
    entries = cut(setup.net, setup.method.layout, weights, tuple(times))
    statistics = setup.net.statistic_names(width)
    if (statistics and setup.config.norm == "local") or not statistics <= entries.keys():
        raise UserError(
            "the norm statistics of this run stayed with its clients, and a module needs some; train with norm=post or "
            "norm=tracked, without privacy"
        )
    build = setup.net.build
    if setup.net.template(width).stackable and not isinstance(build, Swap):
        return _of_ours(build, width, entries, setup.image, robust, shares)
    rows = [{name: value[i] for name, value in entries.items()} for i in range(len(times))]
    own = build.build if isinstance(build, Swap) else build
    modules = [_filled(own(width), row, robust) for row in rows]
    return modules[0] if len(modules) == 1 else Mean(modules, shares)


def _of_ours(
    build: Build, width: Width, entries: Weights, image: tuple[int, ...], robust: float, shares: Sequence[float]
) -> nn.Module:
    if any(".film." in name for name in entries):
        raise UserError("the dial of objective=oat goes through layers of its own, which no plain module has")
    mixer = Mixer(build, width)
    mix = mixer.mix(mixer.fold({name: value.numpy() for name, value in entries.items()}))
    body = plain_graph(mix, image, robust=robust, shares=shares)
    return ChannelsFirst(body) if len(image) == 3 else body


def _filled(module: nn.Module, row: Weights, robust: float) -> nn.Module:
    """A user's module with the entries of a base; norms that have a noisy twin stand where the dial does."""
    for name, layer in module.named_modules():
        if isinstance(layer, TorchNorm) and f"{name}.noisy.weight".lstrip(".") in row:
            row = row | _turned(layer, name, row, robust)
    known = module.state_dict().keys()
    module.load_state_dict({name: value for name, value in row.items() if name in known}, strict=False)
    return module


def _turned(layer: Any, name: str, row: Weights, robust: float) -> Weights:
    """The entries of a norm that is the blend of two: both are affine maps, and so is a norm of mean 0, variance 1."""

    def affine(prefix: str) -> tuple[Tensor, Tensor]:
        kinds = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, var = (row[f"{prefix}.{kind}".lstrip(".")].double() for kind in kinds)
        a = weight * torch.rsqrt(var + layer.eps)
        return a, bias - a * mean

    (a0, b0), (a1, b1) = affine(name), affine(f"{name}.noisy")
    a, b = a0 + robust * (a1 - a0), b0 + robust * (b1 - b0)
    mean, var = torch.zeros_like(a), torch.full_like(a, 1 - layer.eps)
    made = {"weight": a, "bias": b, "running_mean": mean, "running_var": var}
    return {f"{name}.{kind}".lstrip("."): value.float() for kind, value in made.items()}
