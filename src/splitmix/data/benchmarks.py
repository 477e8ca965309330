"""Benchmarks: digits and CIFAR-10 in `.npz` files; DomainNet, Office-Caltech10 and PACS in packs of small pictures."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.reproducible import rng_for
from splitmix.data.domain import Domain
from splitmix.data.folder import load_arrays, read_split, require_files

DIGITS_FILES = {  # in FedBN's order
    "mnist": "digits/mnist.npz",
    "svhn": "digits/svhn.npz",
    "usps": "digits/usps.npz",
    "synthdigits": "digits/synthdigits.npz",
    "mnist_m": "digits/mnist_m.npz",
}
SYNTH_SUBSTITUTE = "digits/synthdigits_substitute.npz"  # rendered anew after its description
CIFAR10 = "cifar10.npz"
CIFAR10_SMALL = "cifar10_small.npz"  # a balanced part: the first 1000 training and 200 test images of each class


def digits_domains(root: Path, percent: float = 0.3) -> tuple[Domain, ...]:
    """The five domains in FedBN's order, in colour, with the first tenths of the training rows and all test rows.

    FedBN cuts the training rows of every domain into ten partitions of the same size, a tenth of the smallest domain
    (743 rows); `percent=0.3` takes the first three (2229 rows). Where SynthDigits is not at hand, a domain named
    `synth_substitute` stands in for it.
    """
    tenths = round(percent * 10)
    if not 1 <= tenths <= 10 or abs(tenths - percent * 10) > 1e-9:
        raise UserError(f"percent {percent} is not a whole number of tenths; choose one of 0.1, 0.2, ... 1.0")
    files = _files(root)
    parts = [read_split(file) for file in require_files(root, list(files.values()), "digits")]
    rows = tenths * (min(len(y_train) for _, y_train, _, _ in parts) // 10)
    return tuple(
        Domain(name, _colour(x_train[:rows]), y_train[:rows], _colour(x_test), y_test)
        for name, (x_train, y_train, x_test, y_test) in zip(files, parts, strict=True)
    )


def cifar_domain(root: Path, *, small: bool = False, percent: float = 1.0) -> Domain:
    """CIFAR-10 as one domain, with the first part of its training images; its name tells the whole from the subset.

    Where the whole is not at hand, the subset stands in for it.
    """
    if not 0 < percent <= 1:
        raise UserError(f"percent {percent} is outside (0, 1]; 0.5 takes the first half of the training images")
    file = CIFAR10_SMALL if small or ((root / CIFAR10_SMALL).is_file() and not (root / CIFAR10).is_file()) else CIFAR10
    x_train, y_train, x_test, y_test = read_split(require_files(root, [file], "CIFAR-10")[0])
    rows = max(1, int(len(y_train) * percent))
    return Domain(file.removesuffix(".npz"), x_train[:rows], y_train[:rows], x_test, y_test)


def _files(root: Path) -> dict[str, str]:
    """The file of each domain; the substitute where only that is there."""
    if (root / DIGITS_FILES["synthdigits"]).is_file() or not (root / SYNTH_SUBSTITUTE).is_file():
        return DIGITS_FILES
    stand_in = {"synthdigits": ("synth_substitute", SYNTH_SUBSTITUTE)}
    return dict(stand_in.get(name, (name, file)) for name, file in DIGITS_FILES.items())


def _colour(images: NDArray[Any]) -> NDArray[Any]:
    """(n, h, w, 3): grey images have three equal channels."""
    images = images[..., None] if images.ndim == 3 else images
    return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images


SIZES = (96, 256)  # pixels of a side: for a laptop, and as in the paper
PACK_KEYS = ("jpeg", "offset", "label", "domain", "is_test", "domains", "classes")


@dataclass(frozen=True)
class PackedSet:
    """A set of pictures: its domains in the order of the paper or its authors, each with the names it goes by."""

    name: str
    title: str
    domains: tuple[tuple[str, ...], ...]
    classes: dict[str, int]  # folder names, several of which may mean one class
    even: bool = True  # every domain is cut to the training size of the smallest

    def task(self, size: int) -> str:
        """The name of the task with pictures of this size."""
        return self.name if size == SIZES[0] else f"{self.name}-{size}"

    def file(self, size: int) -> str:
        return f"{self.name.replace('-', '_')}_{size}.npz"

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class, in the order of the labels: the first that it goes by."""
        first: dict[int, str] = {}
        for name, label in self.classes.items():
            first.setdefault(label, name)
        return tuple(first[label] for label in sorted(first))


def _numbered(names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split())}


DOMAINNET = PackedSet(
    "domainnet",
    "DomainNet",
    (("real",), ("clipart",), ("infograph",), ("painting",), ("quickdraw",), ("sketch",)),
    _numbered("bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"),
)
OFFICE = PackedSet(
    "office-caltech10",
    "Office-Caltech10",
    (("amazon",), ("caltech10", "caltech"), ("dslr",), ("webcam",)),
    {
        **_numbered("backpack bike calculator headphones keyboard laptop monitor mouse mug projector"),
        "back_pack": 0,  # as FedBN names them
        "laptop_computer": 5,
    },
    even=False,  # its smallest domain has some 125 pictures to train on
)
PACS = PackedSet(
    "pacs",
    "PACS",
    (("photo",), ("art_painting",), ("cartoon",), ("sketch",)),
    _numbered("dog elephant giraffe guitar horse house person"),
)
SETS = {known.name: known for known in (DOMAINNET, OFFICE, PACS)}


def packed_domains(known: PackedSet, root: Path, size: int = SIZES[0]) -> tuple[Domain, ...]:
    """The domains of a set, in pictures of a size."""
    (file,) = require_files(root, [known.file(size)], known.title, format="a pack of JPEGs")
    return read_pack(file, even=known.even)


def read_pack(file: Path, *, even: bool = True) -> tuple[Domain, ...]:
    """The domains of a pack; with `even` each has as many training pictures as the smallest, drawn once for all."""
    arrays = load_arrays(file, PACK_KEYS)
    if not _fits(arrays):
        raise UserError(f"{file} is no pack of JPEGs, or its arrays do not fit one another; prepare it anew")
    names = [str(name) for name in arrays["domains"]]
    rows = {
        (number, test): np.flatnonzero((arrays["domain"] == number) & (arrays["is_test"] == test))
        for number in range(len(names))
        for test in (False, True)
    }
    least = min(len(rows[number, False]) for number in range(len(names)))
    domains = []
    for number, name in enumerate(names):
        train, test = rows[number, False], rows[number, True]
        if even and len(train) > least:
            train = np.sort(rng_for(0, "pictures kept", name).choice(train, least, replace=False))
        labels = arrays["label"].astype(np.int64)
        domains.append(
            Domain(name, _decoded(file, arrays, train), labels[train], _decoded(file, arrays, test), labels[test])
        )
    return tuple(domains)


def _fits(arrays: dict[str, NDArray[Any]]) -> bool:
    """Whether all arrays are there, of one length, and every picture has bytes and a domain."""
    if set(arrays) != set(PACK_KEYS) or not arrays["label"].size:
        return False
    count, jpeg, offset = arrays["label"].size, arrays["jpeg"], arrays["offset"]
    return bool(
        all(arrays[key].shape == (count,) for key in ("label", "domain", "is_test"))
        and [arrays[key].dtype.kind for key in ("label", "domain", "is_test", "domains")] == ["u", "u", "b", "U"]
        and (jpeg.dtype, jpeg.ndim, offset.shape, offset.dtype.kind) == (np.uint8, 1, (count + 1,), "i")
        and (offset[0], offset[-1]) == (0, len(jpeg))
        and (np.diff(offset) > 0).all()
        and arrays["domain"].max() < len(arrays["domains"])
    )


def _decoded(file: Path, arrays: dict[str, NDArray[Any]], rows: Sequence[int] | NDArray[Any]) -> NDArray[np.uint8]:
    """The pictures of these rows, (n, size, size, 3)."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError(f"{file.name} needs Pillow to be read; run: pip install 'splitmix[plots]'") from None
    jpeg, offset = arrays["jpeg"], arrays["offset"]
    images: NDArray[np.uint8] | None = None
    for place, row in enumerate(rows):
        try:
            with Image.open(io.BytesIO(jpeg[offset[row] : offset[row + 1]].tobytes()), formats=["JPEG"]) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            if images is None:
                images = np.empty((len(rows), *pixels.shape), np.uint8)
            images[place] = pixels
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"cannot read picture {row} of {file} ({error}); prepare the file anew") from None
    if images is None:
        raise UserError(f"{file} has a domain without pictures to train or to test on; prepare the file anew")
    return images
