"""The embedded task `mini`: digits 0-9 in four domains, made on this computer in seconds, with nothing to download.

Each domain has 580 training and 290 test images (58 and 29 of every digit), 28x28 pixels, RGB, uint8:

- `pen`    handwriting, white on black: 8x8 UCI digits (scikit-learn's `load_digits`), enlarged smoothly.
- `photo`  other UCI digits blended as |photograph - digit|, the recipe of MNIST-M, over patches of the two
           photographs inside scikit-learn (`china.jpg`, `flower.jpg`).
- `print`  digits in the 22 text fonts that ship with matplotlib, in random colours, sizes, places and angles.
- `sign`   printed house numbers: a digit between parts of its neighbours on a coloured plate, with tilt, blur,
           uneven light and noise, after the look of SVHN.

What it is not: a benchmark. The images stand in for MNIST, MNIST-M, SynthDigits and SVHN, but share no pixel with
them, and scores on `mini` compare with no published number. A row of UCI digits is used once, in one domain and one
split; yet its 13 writers are not named in the data, so a writer may be in both splits. Likewise train and test share
the fonts and the photographs, though every placement is drawn anew.

The images depend on nothing but this file, `rng_for` and the versions of four libraries; a hash of all these is in
the name of the cache file. Another version of Pillow may draw a font's edges a little differently.
"""

import functools
import hashlib
import io
import logging
import math
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.files import read_npz, write_atomically
from splitmix.core.reproducible import rng_for
from splitmix.data.domain import Domain
from splitmix.data.partition import Rows

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

NAMES = ("pen", "photo", "print", "sign")
PER_CLASS = {"train": 58, "test": 29}  # 2 * (58 + 29) = 174, the rows of UCI's rarest digit
SIDE = 28
FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)  # the other fonts in that folder have symbols in place of digits

Images = NDArray[np.uint8]
Floats = NDArray[np.float64]
Rng = np.random.Generator

_log = logging.getLogger(__name__)
_FINE = 4  # text is drawn this many times larger, then shrunk, for smooth edges


def mini_domains(cache: Path | None = None) -> tuple[Domain, ...]:
    """The domains pen, photo, print and sign: read from the folder `cache`, or made and kept there if it is writable.

    Without an argument the folder is `$XDG_CACHE_HOME/splitmix`, or `~/.cache/splitmix`.
    """
    file = (cache or _default_cache()) / f"mini-{_recipe()}.npz"
    kept = _read(file)
    if kept is not None:
        return kept
    domains = make_domains()
    _keep(domains, file)
    return domains


def make_domains() -> tuple[Domain, ...]:
    """Make the four domains afresh, without a cache; the bytes are the same each time."""
    _need_extra()
    return tuple(Domain(name, *_make(name, "train"), *_make(name, "test")) for name in NAMES)


def handwriting_rows() -> dict[tuple[str, str], Rows]:
    """Which rows of `load_digits` went into which (domain, split), in the order of its images; none is used twice."""
    _need_extra()
    slots = [(name, split) for name in ("pen", "photo") for split in PER_CLASS]
    ends = np.cumsum([PER_CLASS[split] for _, split in slots])
    dealt: dict[tuple[str, str], list[Rows]] = {slot: [] for slot in slots}
    labels = _uci()[1]
    for digit in range(10):
        rows = rng_for("mini", "rows", digit).permutation(np.flatnonzero(labels == digit))
        for slot, hand in zip(slots, np.split(rows, ends), strict=False):  # what is left over stays unused
            dealt[slot].append(hand)
    return {slot: rng_for("mini", *slot, "order").permutation(np.concatenate(hands)) for slot, hands in dealt.items()}


# --- the four recipes: each makes one image, (28, 28, 3) in 0..1 --------------------------------------------------


def _make(name: str, split: str) -> tuple[Images, Rows]:
    """The images and labels of one split; image i is drawn from its own address."""
    recipe: Callable[[int, Rng], Floats] = {"pen": _pen, "photo": _photo, "print": _print, "sign": _sign}[name]
    rows = handwriting_rows().get((name, split))
    if rows is None:
        digits = rng_for("mini", name, split, "order").permutation(np.repeat(np.arange(10), PER_CLASS[split]))
        subjects = digits
    else:
        digits = _uci()[1][rows]
        subjects = rows
    images = [recipe(int(subject), rng_for("mini", name, split, i)) for i, subject in enumerate(subjects)]
    return _bytes(np.stack(images)), digits.astype(np.int64)


def _pen(row: int, rng: Rng) -> Floats:
    return _rgb(_handwriting(row))


def _photo(row: int, rng: Rng) -> Floats:
    return np.abs(_patch(rng) - _rgb(_handwriting(row)))


def _print(digit: int, rng: Rng) -> Floats:
    ink, paper, _ = _colours(rng, contrast=0.3, vivid=1.0)
    mask = _text(str(digit), _font(rng, 22, 34), _tilt(rng, turn=15, shear=0.1, shift=2))
    return _blend(paper, ink, mask)


def _sign(digit: int, rng: Rng) -> Floats:
    """Wall, plate and number, in that order; then light, blur and noise."""
    ink, plate, wall = _colours(rng, contrast=0.18, vivid=0.6)
    left, right = rng.integers(10, size=2)
    tilt = _tilt(rng, turn=12, shear=0.25, shift=2)
    number = _text(f"{left}{digit}{right}", _font(rng, 20, 34), tilt)
    height = rng.uniform(0.75, 1.3) * SIDE
    image = _blend(_blend(wall, plate, _plate(height, tilt)), ink, number)
    image = _blur(image * _light(rng), rng.uniform(0.3, 1.3))
    return image + rng.normal(scale=rng.uniform(0.01, 0.07), size=image.shape)


# --- what the recipes are made of ---------------------------------------------------------------------------------


@functools.cache
def _uci() -> tuple[Floats, Rows]:
    """UCI's optical digits: images (1797, 8, 8) in 0..1 and labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images / 16, digits.target.astype(np.int64)


@functools.cache
def _photographs() -> list[Images]:
    from sklearn.datasets import load_sample_images

    return list(load_sample_images().images)


def _handwriting(row: int) -> Floats:
    """A UCI digit, 22 pixels high in a frame of 28: enlarged, then its soft edge made steeper."""
    from PIL import Image

    small = Image.fromarray(_bytes(_uci()[0][row]))
    large = np.asarray(small.resize((22, 22), Image.Resampling.BICUBIC)) / 255
    return np.pad(np.clip((large - 0.25) / 0.5, 0, 1), 3)


def _patch(rng: Rng) -> Floats:
    """A random square of a random photograph, 28 to 84 pixels wide before it is shrunk to 28."""
    from PIL import Image

    photograph = _photographs()[rng.integers(2)]
    side = int(rng.integers(SIDE, 3 * SIDE + 1))
    top, left = (int(rng.integers(length - side + 1)) for length in photograph.shape[:2])
    square = Image.fromarray(photograph[top : top + side, left : left + side])
    return np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BOX)) / 255


def _colours(rng: Rng, contrast: float, vivid: float) -> Floats:
    """Three random colours, (3, 3); the first two differ in brightness by at least `contrast`."""
    while True:
        colours = rng.uniform(size=(3, 3))
        grey = (colours @ np.array([0.299, 0.587, 0.114]))[:, None]
        if abs(grey[0, 0] - grey[1, 0]) >= contrast:
            return np.asarray(grey + vivid * (colours - grey))


def _font(rng: Rng, low: int, high: int) -> "FreeTypeFont":
    return _load_font(FONTS[rng.integers(len(FONTS))], int(rng.integers(low, high + 1)) * _FINE)


@functools.cache
def _load_font(name: str, size: int) -> "FreeTypeFont":
    import matplotlib
    from PIL import ImageFont

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    return ImageFont.truetype(str(file), size, layout_engine=ImageFont.Layout.BASIC)


def _text(text: str, font: "FreeTypeFont", tilt: Floats) -> Floats:
    """The mask, (28, 28) in 0..1, of a text whose middle character is in the middle."""
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (2 * SIDE * _FINE, 2 * SIDE * _FINE))
    draw, gap = ImageDraw.Draw(canvas), font.size * 0.08
    boxes = [font.getbbox(character) for character in text]
    left, top, right, bottom = boxes[len(text) // 2]
    base = SIDE * _FINE - (top + bottom) / 2
    x = SIDE * _FINE - (right - left) / 2 - sum(box[2] - box[0] + gap for box in boxes[: len(text) // 2])
    for character, (left, _, right, _) in zip(text, boxes, strict=True):
        draw.text((round(x - left), round(base)), character, font=font, fill=255)
        x += right - left + gap
    return _shrink(canvas, tilt)


def _plate(height: float, tilt: Floats) -> Floats:
    """The mask of a band across the image."""
    from PIL import Image

    canvas = np.zeros((2 * SIDE * _FINE, 2 * SIDE * _FINE), np.uint8)
    middle, half = SIDE * _FINE, round(height * _FINE / 2)
    canvas[middle - half : middle + half] = 255
    return _shrink(Image.fromarray(canvas), tilt)


def _tilt(rng: Rng, turn: float, shear: float, shift: float) -> Floats:
    """A random small movement, (2, 3): it takes a place in the image to a place on the canvas, both from the middle."""
    angle = math.radians(rng.uniform(-turn, turn))
    turned = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    moved = turned @ np.array([[1.0, rng.uniform(-shear, shear)], [0.0, 1.0]])
    return np.column_stack([moved, -moved @ rng.uniform(-shift, shift, size=2) * _FINE])


def _shrink(canvas: "Image", tilt: Floats) -> Floats:
    """The middle of a canvas after the movement, as a mask (28, 28) in 0..1."""
    from PIL import Image

    size = (SIDE * _FINE, SIDE * _FINE)
    offset = canvas.width / 2 - tilt[:, :2].sum(axis=1) * size[0] / 2 + tilt[:, 2]
    data = tuple(float(v) for v in np.column_stack([tilt[:, :2], offset]).ravel())
    moved = canvas.transform(size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    return np.asarray(moved.reduce(_FINE)) / 255


def _light(rng: Rng) -> Floats:
    """Brightness (28, 28, 1) that grows along a random direction."""
    across, down = rng.uniform(-0.4, 0.4, size=2)
    steps = np.linspace(-1, 1, SIDE)
    slope: Floats = 1 + across * steps[None, :] + down * steps[:, None]
    return rng.uniform(0.7, 1.2) * slope[..., None]


def _blur(image: Floats, radius: float) -> Floats:
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(_bytes(image)).filter(ImageFilter.GaussianBlur(radius))) / 255


def _blend(below: Floats, above: Floats, mask: Floats) -> Floats:
    return below + (above - below) * mask[..., None]


def _rgb(grey: Floats) -> Floats:
    return np.repeat(grey[..., None], 3, axis=-1)


def _bytes(image: Floats) -> Images:
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)


# --- the cache ----------------------------------------------------------------------------------------------------

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def _read(file: Path) -> tuple[Domain, ...] | None:
    """The domains in a cache file, or None if it is missing or damaged."""
    try:
        kept = read_npz(file, lambda _: [f"{name}.{array}" for name in NAMES for array in _ARRAYS])
    except UserError as error:
        if file.exists():
            _log.info("%s; the images are made again", error)
        return None
    rows = {name: [kept[f"{name}.{array}"] for array in _ARRAYS] for name in NAMES}
    return tuple(Domain(name, x, y, x_test, y_test) for name, (x, y, x_test, y_test) in rows.items())


def _keep(domains: tuple[Domain, ...], file: Path) -> None:
    """Write the cache file; where that is not allowed, the images are simply made again next time."""
    buffer = io.BytesIO()
    np.savez(buffer, **{f"{d.name}.{array}": getattr(d, array) for d in domains for array in _ARRAYS})
    try:
        write_atomically(file, buffer.getvalue())
    except UserError as error:
        _log.info("the images are not kept: %s", error)


def _default_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "splitmix"


def _recipe() -> str:
    """A short hash of all that decides the images: this file, that of `rng_for` and the libraries they draw with."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + Path(rng_for.__code__.co_filename).read_bytes())
    for library in ("matplotlib", "numpy", "pillow", "scikit-learn"):
        digest.update(f"{library} {_version(library)}".encode())
    return digest.hexdigest()[:12]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def _need_extra() -> None:
    try:
        for library in ("matplotlib", "PIL.Image", "sklearn.datasets"):
            import_module(library)
    except ImportError as missing:
        raise UserError(
            f"the task 'mini' needs {missing.name}, which is not installed; run: pip install \"splitmix[mini]\""
        ) from missing
