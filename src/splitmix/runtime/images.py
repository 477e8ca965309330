"""Images as users give them (arrays, pixels in lists, picture files, folders), made into what a net takes."""

import io
import re
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splitmix.core.batches import as_images
from splitmix.core.errors import UserError
from splitmix.core.files import read_npz

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
PICTURE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
MOST_PIXELS = 50_000_000  # of one picture
MOST_SCANS = 40  # of a JPEG: each goes over all pixels again, and those that programs write have about ten
BATCH = 128  # images that run together: more would only take more memory


class UnreadableError(UserError):
    """Bytes that are no picture, or one of a kind that is not taken."""


class TooManyPixelsError(UserError):
    """A picture that would fill the memory, or take long, if it were decoded."""


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


def picture_from_file(data: bytes, shape: Sequence[int], *, most: int) -> Pixels:
    """A picture file as the model's images: its middle, made smaller or larger; refused unread above `most` pixels."""
    from PIL import Image, ImageOps

    height, width, channels = shape
    try:
        _refuse_many_scans(data)
        picture = Image.open(_Pieces(data), formats=PICTURE_FORMATS)  # reads the size, not the pixels
        pixels = picture.width * picture.height
        if pixels <= most:
            plain = _plain(picture, "L" if channels == 1 else "RGB")
            if plain.size != (width, height):
                plain = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
            return np.array(plain, np.uint8).reshape(height, width, channels)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        pixels = None
    except UserError:
        raise
    except Exception:  # a damaged file can raise nearly anything
        raise UnreadableError(
            f"the file cannot be read as a picture; send one of {', '.join(PICTURE_FORMATS)}, not damaged"
        ) from None
    size = f"{pixels:,}" if pixels else "far too many"
    raise TooManyPixelsError(f"the picture has {size} pixels; at most {most:,} are taken: make it smaller")


class _Pieces(io.BytesIO):
    """A file that may be read only so often: one of countless tiny pieces would take long to walk through."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        _refuse_many_pieces(self.reads, len(self.getbuffer()))
        return super().read(size)


def _refuse_many_pieces(pieces: int, size: int) -> None:
    if pieces > 1000 + size // 100:
        raise UnreadableError("the picture is made of too many pieces; save it anew")


def _refuse_many_scans(data: bytes) -> None:
    """Walk over the segments of a JPEG, as a decoder does, and count those that begin a scan."""
    scans, segments = 0, 0
    found = SEGMENT.search(data, 2) if data.startswith(b"\xff\xd8") else None
    while found and found[1] != b"\xd9":
        scans += found[1] == b"\xda"
        segments += 1
        _refuse_many_pieces(segments, len(data))
        if scans > MOST_SCANS:
            raise TooManyPixelsError(f"the picture has more than {MOST_SCANS} scans; save it as a plain JPEG")
        at = found.end()
        found = SEGMENT.search(data, at + max(2, int.from_bytes(data[at : at + 2])))


SEGMENT = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)  # a marker that a length follows, or the end


def to_png(pixels: Pixels) -> str:
    """A picture as PNG in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).save(file, format="PNG")
    return b64encode(file.getvalue()).decode()


def read_images(folder: Path, shape: Sequence[int], most: int) -> NDArray[Any]:
    """Pictures and .npz files of a folder as a model takes them; evenly spread ones, if there are more than `most`."""
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'; give one with pictures or .npz files")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (*PICTURE_SUFFIXES, ".npz"))
    if not files:
        raise UserError(f"'{folder}' has no pictures ({', '.join(PICTURE_SUFFIXES)}) and no .npz files")
    pictures = _spread([file for file in files if file.suffix.lower() in PICTURE_SUFFIXES], most)
    arrays = [_read_picture(file, shape)[None] for file in pictures]
    arrays += [checked_images(_read_arrays(file), tuple(shape)) for file in files if file.suffix.lower() == ".npz"]
    if len({array.dtype for array in arrays}) > 1:
        arrays = [a / np.float32(255) if a.dtype == np.uint8 else a for a in arrays]
    return np.concatenate(arrays)[_spread(range(sum(map(len, arrays))), most)]


def _as_array(x: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(x)
    except ValueError:
        raise UserError("the images do not form an array; give all of them the same shape") from None


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    return [items[i] for i in np.linspace(0, len(items) - 1, min(len(items), most)).round().astype(int)]


def _read_picture(file: Path, shape: Sequence[int]) -> NDArray[Any]:
    try:
        return picture_from_file(file.read_bytes(), shape, most=MOST_PIXELS)
    except ImportError:
        raise UserError("reading pictures needs pillow; install splitmix[serve], or give .npz files") from None
    except UserError as error:
        raise UserError(f"'{file}': {error}") from None


def _read_arrays(file: Path) -> NDArray[Any]:
    """The images of an .npz file: its array `x`, or `x_train`, or the only one it has."""
    found = read_npz(file, lambda names: [name for name in ("x", "x_train", *names[:1]) if name in names][:1])
    if not found:
        raise UserError(f"'{file}' has no array; give images as an array x")
    return next(iter(found.values()))


def _plain(picture: "Image", mode: str) -> "Image":
    """One frame in the colours of the model; what is see-through lies on white."""
    from PIL import Image

    if picture.mode.startswith(("I", "F")):
        raise UnreadableError("the picture has more than 8 bits a colour; save it with 8")
    if picture.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in picture.info:
        front = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", front.size, "white"), front)
    return picture.convert(mode)


def _pixel(channels: int) -> str:
    return "a whole number" if channels == 1 else f"{channels} whole numbers (or one, if grey)"
