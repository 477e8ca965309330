"""A finished run in memory, of any method: it predicts at any width, and can be bundled for devices."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splitmix.core.client import mean_logits, part_logits
from splitmix.core.method import Method, with_order
from splitmix.core.net import Net
from splitmix.core.parts import covering, cut
from splitmix.core.types import Weights, Width, parse_width
from splitmix.experiments.bundling import Wish, bundle_outcome
from splitmix.experiments.run import Outcome
from splitmix.experiments.setup import Setup
from splitmix.runtime.images import checked_images, to_net
from splitmix.runtime.model import Model


@dataclass(frozen=True)
class Trained:
    """What a run has made; `result` says how it was made and how well it does."""

    setup: Setup
    outcome: Outcome

    @property
    def method(self) -> Method:
        return with_order(self.setup.method, self.outcome.order)

    @property
    def net(self) -> Net:
        return self.setup.net

    @property
    def weights(self) -> Weights:
        return self.outcome.weights

    @property
    def widths(self) -> tuple[Width, ...]:
        return self.method.widths

    @property
    def result(self) -> dict[str, Any]:
        return self.outcome.result

    def __call__(self, x: ArrayLike, width: Width | str | float = 1) -> Tensor:
        """Logits (n, class) of images given as in training: (n, height, width, channels), uint8 or float in [0, 1]."""
        images = to_net(checked_images(x, self.setup.image))
        mix = self.method.compose(parse_width(width))
        download = cut(self.net, self.method.layout, self.weights, covering(mix))
        with torch.inference_mode():
            return mean_logits(part_logits(self.net, download, [mix], images), mix)

    def predict(self, x: ArrayLike, width: Width | str | float = 1) -> NDArray[np.int64]:
        """The most likely class of each image."""
        return self(x, width).argmax(-1).numpy()

    def bundle(self, out: str | Path, *, half: bool = False, calibrate: bool = False) -> Model:
        """Write a bundle for devices, and load it: a model with width and robustness to turn."""
        wish = Wish("float16" if half else "float32", calibrate, image=self.setup.image)
        return Model.load(bundle_outcome(self.setup.config, self.outcome, Path(out), wish).path)
