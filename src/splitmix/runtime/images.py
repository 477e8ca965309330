"""Images as a user gives them, made into what a net takes."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splitmix.core.batches import as_images
from splitmix.core.errors import UserError

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
MOST_PIXELS = 50_000_000  # of one picture


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


def read_images(folder: Path, shape: Sequence[int], most: int) -> NDArray[Any]:
    """Pictures and .npz files of a folder as a model takes them; evenly spread ones, if there are more than `most`."""
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'; give one with pictures or .npz files")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (*PICTURES, ".npz"))
    if not files:
        raise UserError(f"'{folder}' has no pictures ({', '.join(PICTURES)}) and no .npz files")
    pictures = _spread([file for file in files if file.suffix.lower() in PICTURES], most)
    arrays = [_read_picture(file, shape)[None] for file in pictures]
    arrays += [checked_images(_read_arrays(file), tuple(shape)) for file in files if file.suffix.lower() == ".npz"]
    if len({array.dtype for array in arrays}) > 1:
        arrays = [a / np.float32(255) if a.dtype == np.uint8 else a for a in arrays]
    return np.concatenate(arrays)[_spread(range(sum(map(len, arrays))), most)]


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    return [items[i] for i in np.linspace(0, len(items) - 1, min(len(items), most)).round().astype(int)]


def _read_picture(file: Path, shape: Sequence[int]) -> NDArray[Any]:
    try:
        from splitmix.runtime.pictures import from_file  # as the server reads them

        return from_file(file.read_bytes(), shape, most=MOST_PIXELS)
    except ImportError:
        raise UserError("reading pictures needs pillow; install splitmix[serve], or give .npz files") from None
    except UserError as error:
        raise UserError(f"'{file}': {error}") from None


def _read_arrays(file: Path) -> NDArray[Any]:
    """The images of an .npz file: its array `x`, or `x_train`, or the only one it has."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            names = [name for name in ("x", "x_train", *arrays.files[:1]) if name in arrays.files]
            return np.asarray(arrays[names[0]])
    except (OSError, ValueError, IndexError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"'{file}' cannot be read as .npz ({reason}); give images as an array x") from None
