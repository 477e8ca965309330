"""Pictures of data: a contact sheet of what the images of each domain look like."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.inputs import made
from splitmix.data.domain import Domain
from splitmix.report.drawing import GREY, INK, LINE

if TYPE_CHECKING:
    from PIL.Image import Image


_TILE, _GAP, _MARGIN, _CAPTION, _HEADER = 56, 4, 28, 44, 24  # pixels
_ROWS = 4  # of images


def contact_sheet(domains: Sequence[Domain], path: Path) -> None:
    """Write a PNG with a block per domain: a column per class, and in it the first four training images."""
    _check(domains)
    try:
        from PIL import Image
    except ImportError as missing:
        raise UserError('the contact sheet needs Pillow; run: pip install "splitmix[plots]"') from missing
    blocks = [_block(domain) for domain in domains]
    columns = 2 if len(blocks) > 1 and max(block.width for block in blocks) <= 900 else 1
    width, height = max(block.width for block in blocks), max(block.height for block in blocks)
    rows = math.ceil(len(blocks) / columns)
    size = (columns * (width + _MARGIN) + _MARGIN, rows * (height + _MARGIN) + _MARGIN)
    sheet = Image.new("RGB", size, "white")
    for i, block in enumerate(blocks):
        row, column = divmod(i, columns)
        sheet.paste(block, (_MARGIN + column * (width + _MARGIN), _MARGIN + row * (height + _MARGIN)))
    png = io.BytesIO()
    sheet.save(png, format="PNG", optimize=True)
    write_atomically(path, png.getvalue())


def _block(domain: Domain) -> "Image":
    """One domain: its name and counts, a line, the classes and the images below them."""
    from PIL import Image, ImageDraw, ImageFont

    classes = np.unique(domain.y_train)
    step = _TILE + _GAP
    counts = f"{len(domain.y_train):,} train, {len(domain.y_test):,} test"
    name_font, text_font = ImageFont.load_default(24), ImageFont.load_default(14)
    width = max(
        len(classes) * step - _GAP, math.ceil(name_font.getlength(domain.name) + text_font.getlength(counts)) + 12
    )
    block = Image.new("RGB", (width, _CAPTION + _HEADER + _ROWS * step - _GAP), "white")
    draw = ImageDraw.Draw(block)
    draw.text((0, _CAPTION - 14), domain.name, font=name_font, fill=INK, anchor="ls")
    draw.text((width, _CAPTION - 14), counts, font=text_font, fill=GREY, anchor="rs")
    draw.line((0, _CAPTION - 4, width, _CAPTION - 4), fill=LINE)
    for column, label in enumerate(classes):
        x = column * step
        name = domain.class_names[label][:8] if domain.class_names else str(label)
        draw.text((x + _TILE // 2, _CAPTION + _HEADER // 2), name, font=text_font, fill=GREY, anchor="mm")
        for row, i in enumerate(np.flatnonzero(domain.y_train == label)[:_ROWS]):
            block.paste(_tile(made(domain.x_train, [i])[0]), (x, _CAPTION + _HEADER + row * step))
    return block


def _tile(image: NDArray[np.generic]) -> "Image":
    """An image (height, width, 1 or 3) as a square RGB tile; small ones are enlarged with their pixels visible."""
    from PIL import Image

    values = np.asarray(image)
    if values.dtype != np.uint8:
        values = np.rint(np.clip(values.astype(np.float64), 0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(np.broadcast_to(values, (*values.shape[:2], 3)).copy())
    method = Image.Resampling.NEAREST if _TILE % picture.width == 0 else Image.Resampling.BICUBIC
    return picture.resize((_TILE, _TILE), method)


def _check(domains: Sequence[Domain]) -> None:
    if not domains:
        raise UserError("a contact sheet of no domains was asked for; give at least one")
    for domain in domains:
        if len(domain.x_train.shape) != 4 or domain.x_train.shape[-1] not in (1, 3):
            raise UserError(
                f"domain '{domain.name}' has arrays of shape {domain.x_train.shape}; "
                "a contact sheet shows images (n, height, width, 1 or 3)"
            )
