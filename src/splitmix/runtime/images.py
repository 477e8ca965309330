"""Images as a user gives them, made into what a net takes."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splitmix.core.client import as_images
from splitmix.core.errors import UserError


def checked_images(x: ArrayLike | Tensor, shape: tuple[int, ...]) -> NDArray[Any]:
    """(n, height, width, channels) as uint8, or as float32 in [0, 1]; a sentence for what is neither."""
    array = x.detach().cpu().numpy() if isinstance(x, Tensor) else _as_array(x)
    if array.shape[1:] != shape:
        raise UserError(f"images of shape {array.shape} given, but the model takes (n, {', '.join(map(str, shape))})")
    if array.dtype.kind not in "iuf":
        raise UserError(f"pixels of type {array.dtype} given; give uint8, or float from 0 to 1")
    if not array.size:
        return np.zeros(array.shape, np.float32)
    if array.ndim != 4:
        return array.astype(np.float32)
    low, high = array.min(), array.max()
    if array.dtype.kind in "iu":
        if not 0 <= low <= high <= 255:
            raise UserError(f"whole-number pixels run from {low} to {high}; give 0 to 255")
        return array.astype(np.uint8, copy=False)
    if not 0 <= low <= high <= 1:  # NaN passes through min and max
        raise UserError(f"float pixels run from {low:g} to {high:g}; give numbers from 0 to 1, or uint8")
    return array.astype(np.float32, copy=False)


def to_net(images: NDArray[Any]) -> Tensor:
    """Checked images as a net takes them: float in [0, 1], (n, channel, height, width)."""
    return as_images(torch.from_numpy(np.ascontiguousarray(images)))


def _as_array(x: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(x)
    except ValueError:
        raise UserError("the images do not form an array; give all of them the same shape") from None
