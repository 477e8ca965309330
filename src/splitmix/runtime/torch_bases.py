"""Bases on PyTorch, the reference: gradients flow to the images, so that attacks can be made on them."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.net import Net, to_moments
from splitmix.core.objective import Attack
from splitmix.core.reproducible import torch_rng_for
from splitmix.core.types import Weights
from splitmix.core.width import Width
from splitmix.nets.cost import OperatorWatcher
from splitmix.runtime.calibration import Calibration, mean_moments, variances
from splitmix.runtime.images import BATCH
from splitmix.runtime.manifest import Manifest
from splitmix.runtime.mix import Mix, Mixer
from splitmix.runtime.norms import Array, Arrays


@dataclass(frozen=True)
class TorchBases:
    """Bases side by side; replaced as a whole, never changed, and all mixes share the same numbers."""

    manifest: Manifest
    mixer: Mixer
    weights: Arrays  # as the bundle has them
    folded: Arrays
    mixes: dict[tuple[int, int], Mix] = field(default_factory=dict)

    backend = "torch"

    @classmethod
    def of(cls, manifest: Manifest, rows: Iterable[Arrays]) -> "TorchBases":
        weights = stacked(rows)
        mixer = Mixer(manifest.build(), manifest.width)
        if mixer.shapes() != {name: value.shape[1:] for name, value in weights.items()}:
            raise UserError(f"the weights are not those of the net '{manifest.net.name}'; bundle the run again")
        return cls(manifest, mixer, weights, mixer.fold(weights))._ready()

    @property
    def count(self) -> int:
        return len(next(iter(self.weights.values())))

    def joined(self, rows: Iterable[Arrays]) -> "TorchBases":
        """With more bases behind these."""
        more = stacked(rows)
        whole = {name: np.concatenate([value, more[name]]) for name, value in self.weights.items()}
        return TorchBases(self.manifest, self.mixer, whole, self.mixer.fold(whole))._ready()

    def calibrated(self, calibration: Calibration | None) -> "TorchBases":
        """With other statistics, or with those of the bundle."""
        weights = calibration.applied(self.weights) if calibration else self.weights
        return TorchBases(self.manifest, self.mixer, self.weights, self.mixer.fold(weights))._ready()

    def votes(self, start: int, stop: int, x: NDArray[Any], robust: float) -> Array:
        """Logits (base, n, class) of the bases of a range."""
        with torch.no_grad():
            pieces = [self.mix(start, stop)(batch, robust) for batch in torch.from_numpy(x).split(BATCH)]
        return torch.cat(pieces, 1).numpy()

    def mix(self, start: int, stop: int) -> Mix:
        """The bases of a range; each mix is made once, and shares the numbers of all others."""
        if (start, stop) not in self.mixes:
            self.mixes[start, stop] = self.mixer.mix({name: v[start:stop] for name, v in self.folded.items()})
        return self.mixes[start, stop]

    def bytes(self, bases: int) -> int:
        """Memory of so many bases: their weights, and the most that lives at once while an image runs."""
        mix = self.mix(0, bases)
        held = [*mix.parameters(), *mix.buffers()]
        height, across, channels = self.manifest.image
        with torch.no_grad(), Living(held) as living:
            mix(torch.zeros(1, channels, height, across), 0.5 if self.manifest.net.dual else 0.0)
        return sum(value.numel() * value.element_size() for value in held) + living.most

    def _ready(self) -> "TorchBases":
        for bases in range(1, self.count + 1):
            self.mix(0, bases)  # so that turning the dial makes nothing
        return self


def measured(
    net: Net, atom: Width, weights: Arrays, batches: Sequence[NDArray[Any]], attack: Attack | None
) -> tuple[Arrays, str | None]:
    """The mean of the moments of batches: clean norms on the images, noisy norms on what an attack makes of them.

    The labels that the attack leads away from are the answers of all bases together, at robust 1.
    """
    entries = {name: torch.from_numpy(value) for name, value in weights.items()}
    dual = any(".noisy." in name for name in net.statistic_names(atom))
    images = [torch.from_numpy(x) for x in batches]
    moments = mean_moments(_moments(net, atom, entries, images, 0.0))
    chosen = (attack or PGD()) if dual else None
    if chosen is not None:
        rng = torch_rng_for(0, "calibrate")
        made = (_attacked(net, atom, entries, x, chosen, rng) for x in images)
        moments |= mean_moments(_moments(net, atom, entries, made, 1.0))
    return variances(moments), None if chosen is None else chosen.name


def _moments(net: Net, atom: Width, weights: Weights, images: Any, robust: float) -> Iterator[Arrays]:
    for x in images:
        found = to_moments(net.measure(atom, weights, x, robust))
        yield {name: value.double().numpy() for name, value in found.items()}


def _attacked(net: Net, atom: Width, weights: Weights, x: Tensor, attack: Attack, rng: torch.Generator) -> Tensor:
    """Images of their own for each base, (base, n, channel, height, width), as in training."""
    with torch.no_grad():
        answers = net.run(atom, weights, x, 1.0).mean(0).argmax(-1)
    return attack(lambda images: net.run(atom, weights, images, 1.0), x, answers, rng)


def stacked(rows: Iterable[Arrays]) -> Arrays:
    """Entries of several bases with a leading base axis."""
    held = list(rows)
    return {name: np.stack([row.pop(name) for row in held]) for name in list(held[0])}


class Living(OperatorWatcher):
    """Counts the bytes of tensors that live at the same time; `most` is their peak."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen = {value.untyped_storage()._cdata for value in known}  # weights: they live anyway

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor) and (storage := value.untyped_storage())._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)
        return made

    def _gone(self, storage: int, size: int) -> None:
        self._seen.discard(storage)
        self.now -= size
