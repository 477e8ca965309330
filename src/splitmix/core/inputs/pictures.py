"""Pictures of strangers, decoded in bounds: of size, of pieces, and of the time that they take."""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
PICTURE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
MOST_PIXELS = 50_000_000  # of one picture
MOST_SCANS = 40  # of a JPEG: each goes over all pixels again, and those that programs write have about ten
MOST_BYTES = 64 << 20  # of one file
ORIENTATION = 0x112  # the number of that note
UNREADABLE = f"the file cannot be read as a picture; send one of {', '.join(PICTURE_FORMATS)}, not damaged"
Made = TypeVar("Made")


class UnreadableError(UserError):
    """Bytes that are no picture, or one of a kind that is not taken."""


class TooManyPixelsError(UserError):
    """A picture that would fill the memory, or take long, if it were decoded."""


def picture_from_file(data: bytes, shape: Sequence[int], *, most: int) -> Pixels:
    """A picture file as the model's images: its middle, made smaller or larger; refused unread above `most` pixels."""
    from PIL import Image

    try:
        _refuse_many_scans(data)
        picture = Image.open(_Pieces(data), formats=PICTURE_FORMATS)  # reads the size, not the pixels
        pixels = picture.width * picture.height
        if pixels <= most:
            return fitted(picture, shape)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        pixels = None
    except UserError:
        raise
    except Exception:  # a damaged file can raise nearly anything
        raise UnreadableError(UNREADABLE) from None
    size = f"{pixels:,}" if pixels else "far too many"
    raise TooManyPixelsError(f"the picture has {size} pixels; at most {most:,} are taken: make it smaller")


def fitted(picture: "Image", shape: Sequence[int]) -> Pixels:
    """An opened picture as an image of a shape: its middle, made smaller or larger."""
    from PIL import Image, ImageOps

    height, width, channels = shape
    plain = _plain(_upright(picture), "L" if channels == 1 else "RGB")
    if plain.size != (width, height):
        plain = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
    return np.array(plain, np.uint8).reshape(height, width, channels)


def read_picture(file: Path, shape: Sequence[int]) -> Pixels:
    """A picture file as an image of a shape; whatever is wrong with it is a sentence with its name."""
    return _named(file, lambda data: picture_from_file(data, shape, most=MOST_PIXELS))


def size_of_picture(file: Path) -> tuple[int, int]:
    """Height and width that a picture file says it has; its pixels are not read."""
    return _named(file, _stated_size)


def _named(file: Path, made: Callable[[bytes], Made]) -> Made:
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise TooManyPixelsError(f"it has more than {MOST_BYTES:,} bytes; make it smaller")
        return made(data)
    except ImportError:
        raise UserError("reading pictures needs Pillow; run: pip install 'splitmix[plots]'") from None
    except OSError as error:
        raise UserError(f"the picture '{file}' cannot be read ({error.strerror}); check who may read it") from None
    except UserError as error:
        raise UserError(f"'{file}': {error}") from None


def _stated_size(data: bytes) -> tuple[int, int]:
    from PIL import Image

    try:
        with Image.open(_Pieces(data), formats=PICTURE_FORMATS) as picture:
            return picture.height, picture.width
    except Exception:  # a damaged file can raise nearly anything
        raise UnreadableError(UNREADABLE) from None


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


def _upright(picture: "Image") -> "Image":
    """The picture as its camera was held: many store it on its side, with a note (EXIF) how it is to be turned."""
    from PIL.Image import Transpose as To

    ways = (None, To.FLIP_LEFT_RIGHT, To.ROTATE_180, To.FLIP_TOP_BOTTOM)
    ways_aside = (To.TRANSPOSE, To.ROTATE_270, To.TRANSVERSE, To.ROTATE_90)
    try:
        way = dict(enumerate((*ways, *ways_aside), start=1)).get(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # what stands beside the pixels may be damaged, and they are fine
        return picture
    return picture if way is None else picture.transpose(way)


def _plain(picture: "Image", mode: str) -> "Image":
    """One frame in the colours of the model; what is see-through lies on white."""
    from PIL import Image

    if picture.mode.startswith(("I", "F")):
        raise UnreadableError("the picture has more than 8 bits a colour; save it with 8")
    if picture.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in picture.info:
        front = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", front.size, "white"), front)
    return picture.convert(mode)
