"""A few pictures that a bundle brings along, so that whoever opens its page has something to ask."""

import io
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.inputs.pictures import Pixels, picture_from_file
from splitmix.runtime.bundle import Bundle, read_regular
from splitmix.runtime.images import to_png
from splitmix.runtime.strict import Name, what_is_wrong

FILE = "examples.json"
MOST_BYTES = 4 << 20
MOST_ROWS, MOST_CLASSES, MOST_EACH = 8, 10, 3


class Example(BaseModel):
    """A picture, and what it shows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: Name = Field(description="the class that it is of")
    png: Annotated[str, Field(max_length=MOST_BYTES, description="the picture as PNG in base64")]


class ExampleRow(BaseModel):
    """Pictures of one domain."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    pictures: Annotated[list[Example], Field(max_length=MOST_CLASSES * MOST_EACH)]


class Examples(BaseModel):
    """All of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: Annotated[list[ExampleRow], Field(max_length=MOST_ROWS)] = []


def example_row(name: str, images: NDArray[np.generic], labels: Sequence[str]) -> ExampleRow:
    """Pictures (n, height, width, channels) as they are trained on, and the names of their classes."""
    try:
        pngs = [to_png(_pixels(image)) for image in images]
    except ImportError:
        raise UserError("examples are stored as pictures, which needs pillow; install splitmix[serve]") from None
    return ExampleRow(name=name, pictures=[Example(label=a, png=b) for a, b in zip(labels, pngs, strict=True)])


def write_examples(bundle: Bundle, examples: Examples) -> None:
    """Put examples into a bundle; they are shown, and nothing is computed from them, so its manifest need not know."""
    data = examples.model_dump_json().encode()
    if len(data) > MOST_BYTES:
        raise UserError(f"the examples take {len(data):,} bytes, more than {MOST_BYTES:,}; give fewer of each class")
    write_atomically(bundle.path / FILE, data)


def read_examples(bundle: Bundle) -> Examples:
    """The examples of a bundle, or none; each is checked to be a picture of its size and a class of its own."""
    file = bundle.path / FILE
    if not file.is_symlink() and not file.exists():
        return Examples()
    try:
        found = Examples.model_validate_json(read_regular(file, MOST_BYTES))
    except ValidationError as error:
        raise UserError(f"'{file}' cannot be used: {what_is_wrong(error)}; remove it, or fetch it again") from None
    for example in (example for row in found.rows for example in row.pictures):
        _check(example, bundle, file)
    return found


def _check(example: Example, bundle: Bundle, file: Path) -> None:
    if example.label not in bundle.manifest.classes:
        raise UserError(f"'{file}' shows a class that the bundle has not; remove it, or fetch it again")
    try:
        picture_from_base64(example.png, bundle.manifest.image)
    except UserError as error:
        raise UserError(f"'{file}': {error}; remove it, or fetch it again") from None


def picture_from_base64(text: str, shape: Sequence[int]) -> Pixels:
    """What `to_png` wrote, if it is a picture of just this shape."""
    from PIL import Image

    try:
        data = b64decode(text, validate=True)
        size = Image.open(io.BytesIO(data), formats=["PNG"]).size  # reads the size, not the pixels
    except Exception:  # a damaged file can raise nearly anything
        raise UserError("what should be a PNG in base64 is none") from None
    if size != (shape[1], shape[0]):
        raise UserError(f"a picture of {size[0]} x {size[1]} pixels where {shape[1]} x {shape[0]} are wanted")
    return picture_from_file(data, shape, most=shape[0] * shape[1])


def _pixels(image: NDArray[np.generic]) -> Pixels:
    whole = image if image.dtype == np.uint8 else np.round(255 * np.clip(image.astype(np.float64), 0, 1))
    return np.ascontiguousarray(whole, np.uint8)
