"""Bases side by side as one module whose norms are fixed: what a device runs."""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from splitmix.core.net import Build
from splitmix.core.types import Weights
from splitmix.core.width import Width
from splitmix.nets.cost import weightless
from splitmix.nets.layers import Linear, Norm
from splitmix.runtime.norms import Arrays, affine

TWINS = ("clean", "noisy")


class Mix(nn.Module):
    """Images (n, channel, height, width) in [0, 1] to the logits of every base, (base, n, class).

    A call changes nothing in it, so any number of threads may run it; gradients flow to the images.
    """

    def __init__(self, body: nn.Module, bases: int) -> None:
        super().__init__()
        self.body, self.bases = body, bases

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        logits: Tensor = self.body(x, robust)
        return logits.unflatten(1, (self.bases, -1)).transpose(0, 1)


class Blend(nn.Module):
    """A norm with fixed statistics, folded: a*x + b for each channel, where a and b move with the robustness dial."""

    scale: Tensor
    shift: Tensor
    scale_rise: Tensor | None
    shift_rise: Tensor | None

    def __init__(self, entries: dict[str, Tensor]) -> None:
        super().__init__()
        for name in ("scale", "shift", "scale_rise", "shift_rise"):
            self.register_buffer(name, entries.get(name))

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        a, b = self.scale, self.shift
        moved = not (isinstance(robust, float | int) and robust == 0)
        if moved and self.scale_rise is not None and self.shift_rise is not None:
            a, b = a + robust * self.scale_rise, b + robust * self.shift_rise
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return torch.addcmul(b.view(shape), x, a.view(shape))


class Dense(Linear):
    """The same linear map, written for a few images: at a batch of one it takes a third of the time."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        bases, _, inputs = self.weight.shape
        stacked = x.unflatten(1, (bases, inputs)).transpose(0, 1)  # (base, batch, feature)
        return torch.baddbmm(self.bias.unsqueeze(1), stacked, self.weight.transpose(1, 2)).transpose(0, 1).flatten(1)


class Mixer:
    """Makes mixes of bases of one width; a mix shares the tensors that it is made of, nothing is copied."""

    def __init__(self, build: Build, atom: Width) -> None:
        self.skeleton = weightless(build)(atom).eval()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every entry of one base."""
        return {name: tuple(value.shape[1:]) for name, value in self.skeleton.state_dict().items()}

    def fold(self, weights: Arrays) -> Arrays:
        """Stacked entries, each norm as its affine map: `scale` and `shift`, and how they rise on the way to noisy."""
        folded = dict(weights)
        for prefix, layer in self.skeleton.named_modules():
            if not isinstance(layer, Norm):
                continue
            own = {name: folded.pop(name) for name in weights if name.startswith(f"{prefix}.")}
            twins = [twin for twin in TWINS if getattr(layer, twin) is not None]
            (a, b), *noisy = (affine(own, f"{prefix}.{twin}", getattr(layer, twin).eps) for twin in twins)
            made = {"scale": a, "shift": b}
            for a1, b1 in noisy:
                made |= {"scale_rise": a1 - a, "shift_rise": b1 - b}
            folded |= {f"{prefix}.{name}": value.astype(np.float32) for name, value in made.items()}
        return folded

    def mix(self, folded: Arrays) -> Mix:
        """All bases in what `fold` gave, or in a slice of it; the numbers are shared, not copied."""
        entries = {name: torch.from_numpy(value) for name, value in folded.items()}
        return Mix(_filled(self.skeleton, "", entries), len(next(iter(entries.values())))).eval()


def _filled(module: nn.Module, prefix: str, folded: Weights) -> nn.Module:
    """A copy of a module without numbers, with these for its entries."""
    if isinstance(module, Norm):
        mine = ((name.removeprefix(prefix), value) for name, value in folded.items() if name.startswith(prefix))
        return Blend({name: value.flatten() for name, value in mine})
    if isinstance(module, Linear):
        return Dense(folded[f"{prefix}weight"], folded[f"{prefix}bias"])
    made = copy.copy(module)
    made._parameters = {
        name: None if value is None else nn.Parameter(folded[prefix + name], requires_grad=False)
        for name, value in module._parameters.items()
    }
    made._modules = {
        name: None if child is None else _filled(child, f"{prefix}{name}.", folded)
        for name, child in module._modules.items()
    }
    return made
