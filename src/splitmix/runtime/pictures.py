"""Pictures from outside: pixels or a file in, an array as the model takes it out; nothing is kept."""

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


class UnreadableError(UserError):
    """Bytes that are no picture, or one of a kind that is not taken."""


class TooManyPixelsError(UserError):
    """A picture that would fill the memory if it were decoded."""


def from_pixels(value: Any, shape: Sequence[int]) -> Pixels:
    """Nested lists of whole numbers from 0 to 255, shaped as the model's images; a grey one may leave its channels out.

    >>> from_pixels([[0, 255]], (1, 2, 3)).tolist()
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


def from_file(data: bytes, shape: Sequence[int], *, most: int) -> Pixels:
    """A picture file as the model's images: its middle, made smaller or larger; refused unread above `most` pixels."""
    from PIL import Image, ImageOps

    height, width, channels = shape
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)  # reads the size, not the pixels
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
            f"the file cannot be read as a picture; send one of {', '.join(FORMATS)}, not damaged"
        ) from None
    size = f"{pixels:,}" if pixels else "far too many"
    raise TooManyPixelsError(f"the picture has {size} pixels; at most {most:,} are taken: make it smaller")


def to_png(pixels: Pixels) -> str:
    """A picture as PNG in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).save(file, format="PNG")
    return b64encode(file.getvalue()).decode()


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
