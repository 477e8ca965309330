"""Images as users give them (arrays, pixels in lists, picture files, folders), made into what a net takes."""

import io
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splitmix.core.errors import UserError
from splitmix.core.files import read_npz
from splitmix.core.inputs import Kind, Scaling, spread
from splitmix.core.inputs.pictures import PICTURE_SUFFIXES, Pixels, read_picture

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN_TOKEN = "a token among these is none that the net knows; give those that it was trained on"
BATCH = 128  # images that run together: more would only take more memory


def checked_images(x: "ArrayLike | Tensor", shape: tuple[int, ...]) -> NDArray[Any]:
    """(n, height, width, channels) as uint8, or as float32 in [0, 1]; a sentence for what is neither."""
    array = as_array(x)
    if array.shape[1:] != shape:
        raise UserError(f"images of shape {array.shape} given, but the model takes (n, {', '.join(map(str, shape))})")
    if array.dtype.kind not in "iuf":
        raise UserError(f"pixels of type {array.dtype} given; give uint8, or float from 0 to 1")
    if not array.size:
        return np.zeros(array.shape, np.float32)
    if array.ndim != 4:
        return array.astype(np.float32)
    if array.dtype == np.uint8:
        return array
    low, high = array.min(), array.max()
    if array.dtype.kind in "iu":
        if not 0 <= low <= high <= 255:
            raise UserError(f"whole-number pixels run from {low} to {high}; give 0 to 255")
        return array.astype(np.uint8, copy=False)
    if not 0 <= low <= high <= 1:  # NaN passes through min and max
        raise UserError(f"float pixels run from {low:g} to {high:g}; give numbers from 0 to 1, or uint8")
    return array.astype(np.float32, copy=False)


def checked_inputs(
    x: "ArrayLike | Tensor", shape: tuple[int, ...], kind: Kind = "image", scaling: Scaling | None = None
) -> NDArray[Any]:
    """Samples of any kind, checked, and scaled as in training."""
    if kind == "image":
        return checked_images(x, shape)
    array = as_array(x)
    if array.shape[1:] != shape:
        raise UserError(f"samples of shape {array.shape} given, but the model takes (n, {', '.join(map(str, shape))})")
    if array.dtype.kind not in ("iu" if kind == "tokens" else "iuf"):
        raise UserError(f"{kind} of type {array.dtype} given; give {'whole ' if kind == 'tokens' else ''}numbers")
    if kind == "tokens":
        if array.size and array.min() < 0:  # which would count from the end of a vocabulary
            raise UserError(f"tokens run from {array.min()} to {array.max()}; give whole numbers from 0")
        return array.astype(np.int64)
    if not np.isfinite(array).all():
        raise UserError(f"there are NaN or infinite numbers in these {kind}; remove or replace them")
    return scaling(array) if scaling else array if array.dtype == np.uint8 else array.astype(np.float32)


def to_net(samples: NDArray[Any]) -> NDArray[Any]:
    """Checked samples as a net takes them: tokens as they are, all else as float, images with their channels first."""
    if samples.dtype == np.int64:
        return samples
    first = samples.transpose(0, 3, 1, 2) if samples.ndim == 4 else samples
    if first.dtype != np.uint8:
        return np.ascontiguousarray(first, np.float32)
    pixels = first.astype(np.float32, order="C")
    pixels /= 255  # in place: for anything else numpy takes buffers, which small nets feel
    return pixels


def picture_from_pixels(value: Any, shape: Sequence[int]) -> Pixels:
    """Nested lists of whole numbers from 0 to 255, shaped as the model's images; a grey one may leave its channels out.

    >>> picture_from_pixels([[0, 255]], (1, 2, 3)).tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    height, width, channels = shape
    allowed = f"give {height} rows of {width} pixels, each {_pixel(channels)} from 0 to 255"
    try:
        array = np.asarray(value)
    except ValueError:
        raise UserError(f"the rows of the pixels differ in length; {allowed}") from None
    if array.dtype.kind not in "iu":
        raise UserError(f"the pixels are not all whole numbers; {allowed}")
    if array.shape not in ((height, width), (height, width, 1), (height, width, channels)):
        raise UserError(f"the pixels have the shape {' x '.join(map(str, array.shape))}; {allowed}")
    if array.min() < 0 or array.max() > 255:
        raise UserError(f"the pixels run from {array.min()} to {array.max()}; {allowed}")
    whole = array.reshape(height, width, -1).astype(np.uint8)
    return np.array(np.broadcast_to(whole, (height, width, channels)))  # a copy that may be written to


def to_png(pixels: Pixels) -> str:
    """A picture as PNG in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).save(file, format="PNG")
    return b64encode(file.getvalue()).decode()


def read_images(folder: Path, shape: Sequence[int], most: int, kind: Kind = "image") -> NDArray[Any]:
    """Pictures and .npz files of a folder as a model takes them; evenly spread ones, if there are more than `most`.

    Samples of other kinds than images come from .npz files alone.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'; give one with pictures or .npz files")
    suffixes = PICTURE_SUFFIXES if kind == "image" else ()
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (*suffixes, ".npz"))
    if not files:
        lacks = f"no pictures ({', '.join(suffixes)}) and no .npz files" if suffixes else "no .npz files"
        raise UserError(f"'{folder}' has {lacks}; this model takes {'images' if suffixes else kind}, give some there")
    pictures = spread([file for file in files if file.suffix.lower() in suffixes], most)
    packed = [file for file in files if file.suffix.lower() == ".npz"]
    arrays: list[NDArray[Any]] = [read_picture(file, shape)[None] for file in pictures]
    arrays += [checked_inputs(_read_arrays(file), tuple(shape), kind) for file in packed]
    if len({array.dtype for array in arrays}) > 1:
        arrays = [a / np.float32(255) if a.dtype == np.uint8 else a for a in arrays]
    return np.concatenate(arrays)[spread(range(sum(map(len, arrays))), most)]


def as_array(x: "ArrayLike | Tensor") -> NDArray[Any]:
    """What a user gives, be it a tensor; what has no one shape is refused."""
    if type(x) is np.ndarray:
        return x
    if hasattr(x, "detach"):
        return np.asarray(x.detach().cpu().numpy())
    try:
        return np.asarray(x)
    except ValueError:
        raise UserError("the images do not form an array; give all of them the same shape") from None


def _read_arrays(file: Path) -> NDArray[Any]:
    """The images of an .npz file: its array `x`, or `x_train`, or the only one it has."""
    found = read_npz(file, lambda names: [name for name in ("x", "x_train", *names[:1]) if name in names][:1])
    if not found:
        raise UserError(f"'{file}' has no array; give images as an array x")
    return next(iter(found.values()))


def _pixel(channels: int) -> str:
    return "a whole number" if channels == 1 else f"{channels} whole numbers (or one, if grey)"
