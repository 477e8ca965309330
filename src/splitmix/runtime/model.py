"""A trained model whose width is an argument of every call."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splitmix.core.client import as_images, mean_logits, part_logits
from splitmix.core.errors import UserError
from splitmix.core.method import Method
from splitmix.core.net import Net
from splitmix.core.parts import covering, cut
from splitmix.core.types import Weights, Width, parse_width


@dataclass(frozen=True)
class Model:
    """Mixes the first bases of a trained federation; `result` says how it was made and how well it does."""

    net: Net
    method: Method
    weights: Weights
    image: tuple[int, ...]  # (height, width, channels), as in training
    result: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def widths(self) -> tuple[Width, ...]:
        return self.method.widths

    def __call__(self, x: ArrayLike, width: Width | str | float = 1) -> Tensor:
        """Logits (n, class) of images given as in training: (n, height, width, channels), uint8 or float in [0, 1]."""
        images = self._images(x)
        mix = self.method.compose(parse_width(width))
        download = cut(self.net, self.method.layout, self.weights, covering(mix))
        with torch.inference_mode():
            return mean_logits(part_logits(self.net, download, [mix], images), mix)

    def predict(self, x: ArrayLike, width: Width | str | float = 1) -> NDArray[np.int64]:
        """The most likely class of each image."""
        return self(x, width).argmax(-1).numpy()

    def _images(self, x: ArrayLike) -> Tensor:
        array = np.asarray(x)
        if array.shape[1:] != self.image:
            raise UserError(
                f"images of shape {array.shape} given, but the model takes (n, {', '.join(map(str, self.image))})"
            )
        if array.dtype.kind not in "iuf":
            raise UserError(f"pixels of type {array.dtype} given; give uint8, or float from 0 to 1")
        if array.ndim == 4 and array.dtype.kind in "iu":
            if array.size and not 0 <= array.min() <= array.max() <= 255:
                raise UserError(f"whole-number pixels run from {array.min()} to {array.max()}; give 0 to 255")
            array = array.astype(np.uint8)
        return as_images(
            torch.from_numpy(np.ascontiguousarray(array, np.uint8 if array.dtype == np.uint8 else np.float32))
        )
