"""A net at any width, run as a pure function of its weights: all bases of one width in one call."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from splitmix.core.random import torch_seed_for
from splitmix.core.types import Layout, Weights, Width, nested_width

Build = Callable[[Width], nn.Module]
TorchNorm = nn.modules.batchnorm._BatchNorm


class Net:
    """What `build(width)` makes, at every width, without any state of its own.

    A module whose class says `stackable = True` (its layers come from `splitmix.nets.layers`) runs its bases side by
    side, in training at most `stack` of them if the class says so; any other module runs base after base.
    """

    def __init__(self, build: Build, *, stacked: bool = True) -> None:
        self.build, self.stacked = build, stacked
        self._modules: dict[tuple[Width, str], nn.Module] = {}

    def module(self, width: Width, norm: str = "stored") -> nn.Module:
        """The module at a width, a template whose own entries are never used.

        Its norms hold statistics (`stored`), have none (`batch`), or hold just those of the last batch (`measure`).
        """
        if (width, norm) not in self._modules:
            self._modules[width, norm] = _with_norms(self.build(width), norm)
        return self._modules[width, norm]

    def shapes(self, width: Width) -> dict[str, torch.Size]:
        """Shape of every entry of one base."""
        module = self.module(width)
        axes = 1 if _stackable(module) else 0
        return {name: value.shape[axes:] for name, value in module.state_dict().items()}

    def blocks(self, width: Width) -> Mapping[str, int]:
        """Entries whose input axis is a flattened image: how many inputs belong to one channel."""
        return getattr(self.module(width), "blocks", {})

    def parameter_names(self, width: Width) -> set[str]:
        return {name for name, _ in self.module(width).named_parameters()}

    def norm_names(self, width: Width) -> set[str]:
        """Every entry of a norm layer: statistics and affine."""
        return self._entries(width, lambda name: True)

    def statistic_names(self, width: Width) -> set[str]:
        """The running statistics of the norms."""
        return self._entries(width, lambda name: name.startswith("running_"))

    def init(self, layout: Layout, seed: int, *, rescale: bool = True, tracked: bool = False) -> Weights:
        """Independent weights for each base; rescaled, a narrow net starts like a slice of the full one."""
        bases = [self._fresh(layout.width, (seed, base), rescale, tracked) for base in range(layout.count)]
        return {name: torch.stack([b[name] for b in bases]) for name in bases[0]}

    def run(
        self, width: Width, weights: Weights, x: Tensor, robust: float | Tensor = 0.0, *, training: bool = False
    ) -> Tensor:
        """Logits of every base in `weights`, (base, batch, class).

        In training, and wherever the weights hold no statistics, the norms use those of the batch.
        """
        module = self.module(width, "stored" if self.has_statistics(width, weights) else "batch")
        weights = {name: value for name, value in weights.items() if nested_width(name) is None}
        return self._run(module, weights, x, robust, training)

    def has_statistics(self, width: Width, weights: Weights) -> bool:
        names = self.statistic_names(width)
        return bool(names) and names <= weights.keys()

    def measure(self, width: Width, weights: Weights, x: Tensor, robust: float = 0.0) -> Weights:
        """The statistics of one batch in every norm that the dial touches, stacked over bases."""
        bases = next(iter(weights.values())).shape[0]
        shapes = self.shapes(width)
        found = {name: x.new_full((bases, *shapes[name]), -1.0) for name in self.statistic_names(width)}
        with torch.no_grad():
            self._run(self.module(width, "measure"), {**weights, **found}, x, robust, training=True)
        untouched = tuple(
            name.removesuffix("var") for name, v in found.items() if name.endswith("var") and (v < 0).any()
        )
        return {name: value for name, value in found.items() if not name.startswith(untouched)}

    def _run(self, module: nn.Module, weights: Weights, x: Tensor, robust: float | Tensor, training: bool) -> Tensor:
        if module.training != training:
            module.train(training)
        bases = next(iter(weights.values())).shape[0]
        if not _stackable(module):
            return torch.stack([_call(module, {n: v[i] for n, v in weights.items()}, x, robust) for i in range(bases)])
        most = getattr(module, "stack", bases) if training else bases  # what pays off in training
        size = min(bases, most) if self.stacked else 1
        if size >= bases:
            return _stacked_call(module, weights, x, robust)
        pieces = {name: torch.split(value, size) for name, value in weights.items()}
        images = torch.split(x, size) if x.dim() == 5 else [x] * -(-bases // size)
        chunks = [{name: piece[i] for name, piece in pieces.items()} for i in range(len(images))]
        return torch.cat([_stacked_call(module, w, i, robust) for w, i in zip(chunks, images, strict=True)])

    def _fresh(self, width: Width, address: tuple[int, int], rescale: bool, tracked: bool) -> Weights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed_for("init", *address))
            module = _with_norms(self.build(width), "stored" if tracked else "batch")
        squeeze = _stackable(module)
        entries = {
            name: value.detach()[0] if squeeze else value.detach() for name, value in module.state_dict().items()
        }
        if rescale and width != 1:
            for name in _rescaled_names(module):
                entries[name] = entries[name] * float(width) ** 0.5
        return entries

    def _entries(self, width: Width, keep: Callable[[str], bool]) -> set[str]:
        module = self.module(width)
        present = set(module.state_dict())
        return {
            name
            for prefix, norm in module.named_modules()
            if is_norm(norm)
            for entry in ("weight", "bias", "running_mean", "running_var")
            if keep(entry) and (name := f"{prefix}.{entry}") in present
        }


def is_norm(module: nn.Module) -> bool:
    """Batch norms, ours or PyTorch's own."""
    return isinstance(module, TorchNorm) or (hasattr(module, "running_mean") and hasattr(module, "running_var"))


def _with_norms(module: nn.Module, norm: str) -> nn.Module:
    for layer in module.modules():
        if isinstance(layer, TorchNorm):
            layer.num_batches_tracked = None
            layer.track_running_stats = norm != "batch"
        if is_norm(layer) and norm == "batch":
            layer.running_mean, layer.running_var = None, None  # type: ignore[assignment]
        if is_norm(layer) and norm == "measure":
            layer.momentum = 1.0  # type: ignore[assignment]
    return module


def _rescaled_names(module: nn.Module) -> list[str]:
    """Weights and biases of all layers but the first and the norms: these start as in the full net, times sqrt(r)."""
    layers = [
        prefix
        for prefix, layer in module.named_modules()
        if not is_norm(layer) and isinstance(getattr(layer, "weight", None), nn.Parameter)
    ]
    present = set(module.state_dict())
    return [
        f"{prefix}.{entry}" for prefix in layers[1:] for entry in ("weight", "bias") if f"{prefix}.{entry}" in present
    ]


def _stackable(module: nn.Module) -> bool:
    return bool(getattr(module, "stackable", False))


def _stacked_call(module: nn.Module, weights: Weights, x: Tensor, robust: Any) -> Tensor:
    bases = next(iter(weights.values())).shape[0]
    if x.dim() == 5:  # own images for each base: (base, batch, channel, height, width)
        x = x.transpose(0, 1).flatten(1, 2)
    logits = _call(module, weights, x, robust)
    return logits.reshape(len(logits), bases, -1).transpose(0, 1)


def _call(module: nn.Module, weights: Weights, x: Tensor, robust: Any) -> Tensor:
    arguments = (x,) if isinstance(robust, float | int) and robust == 0 else (x, robust)
    result: Tensor = functional_call(module, weights, arguments, strict=True)
    return result
