"""Pictures in class folders, one tree of folders (or one .zip) per domain: DomainNet, Office-Caltech10, PACS."""

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from splitmix.core.errors import UserError
from splitmix.core.reproducible import rng_for
from splitmix.data.partition import hold_out

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")


@dataclass(frozen=True)
class PackedPicture:
    """One picture of a tree, as JPEG of the size that was asked for."""

    name: str  # class/file
    label: int
    is_test: bool
    jpeg: bytes


@dataclass(frozen=True)
class Tree:
    """Names `class/file` of pictures, and how to get the bytes of one."""

    place: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]


def open_tree(place: Path) -> Tree:
    """The pictures in a folder, or in a .zip, which is not unpacked; a class is the folder right above a picture."""
    if place.is_dir():
        files = {"/".join(file.parts[-2:]): file for file in sorted(place.rglob("*")) if _is_picture(file.name)}
        return Tree(place, tuple(files), lambda name: files[name].read_bytes())
    try:
        archive = zipfile.ZipFile(place)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read {place} ({error}); fetch the file anew") from None
    members = {"/".join(name.split("/")[-2:]): name for name in sorted(archive.namelist()) if _is_picture(name)}
    return Tree(place, tuple(members), lambda name: archive.read(members[name]))


def read_pictures(
    tree: Tree, classes: Mapping[str, int], size: int, is_test: Mapping[str, bool]
) -> Iterator[PackedPicture]:
    """The pictures that `is_test` names, one at a time, as squares of `size` pixels (bilinear, in three colours)."""
    for name, test in is_test.items():
        picture = open_picture(lambda name=name: tree.read(name), tree.place / name)  # type: ignore[misc]
        yield PackedPicture(name, classes[name.split("/")[0]], test, _jpeg(picture, size))


def listed_split(tree: Tree, classes: Mapping[str, int], train: Path, test: Path) -> dict[str, bool]:
    """Which pictures of these classes are for testing, after two lists with lines `domain/class/file number`."""
    known = set(tree.names)
    split: dict[str, bool] = {}
    for file, is_test in ((train, False), (test, True)):
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {file} ({error}); fetch the file anew") from None
        for line in lines:
            name = "/".join(line.rpartition(" ")[0].split("/")[-2:])
            if name.split("/")[0] in classes:
                if name not in known:
                    raise UserError(f"{file} lists {name}, which is not in {tree.place}; fetch both anew")
                split[name] = is_test
    _check_classes(tree, classes, split)
    return split


def drawn_split(tree: Tree, classes: Mapping[str, int], domain: str) -> dict[str, bool]:
    """Hold out a fifth of each class for testing: the same pictures whenever the same names are there."""
    names = [name for name in tree.names if name.split("/")[0] in classes]
    labels = np.array([classes[name.split("/")[0]] for name in names], np.int64)
    split = dict.fromkeys(names, False)
    if names:
        _, out = hold_out(labels, 0.2, rng_for(0, "held-out pictures", domain))
        split |= dict.fromkeys((names[row] for row in out), True)
    _check_classes(tree, classes, split)
    return split


def open_picture(read: Callable[[], bytes], file: Path) -> "Image":
    """A picture in three colours; grey ones get three equal channels."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("pictures need Pillow; run: pip install 'splitmix[plots]'") from None
    try:
        with Image.open(io.BytesIO(read())) as picture:
            return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, zipfile.BadZipFile, Image.DecompressionBombError) as error:
        raise UserError(f"cannot read the picture {file} ({error}); fetch it anew, or delete it") from None


def resized(picture: "Image", size: int) -> "Image":
    """A square of `size` pixels, whatever the shape before, as FedBN does."""
    from PIL import Image

    return picture.resize((size, size), Image.Resampling.BILINEAR)


def find_domains(folder: Path, domains: Sequence[Sequence[str]]) -> list[Path]:
    """The folder of each domain, by any of its names: right below `folder`, or below a folder in it that has all."""
    below = [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]
    below += [path for parent in below[1:] for path in sorted(parent.glob("*")) if path.is_dir()]
    for base in below:
        found = [next((base / name for name in names if (base / name).is_dir()), None) for names in domains]
        if all(found):
            return [path for path in found if path is not None]
    wanted = ", ".join(names[0] for names in domains)
    raise UserError(
        f"{folder} has no folder with {wanted} in it; unpack the pictures there, in a folder for each class"
    )


def _jpeg(picture: "Image", size: int) -> bytes:
    packed = io.BytesIO()
    resized(picture, size).save(packed, format="JPEG", quality=95)
    return packed.getvalue()


def _is_picture(name: str) -> bool:
    file = name.rpartition("/")[2]
    return file.lower().endswith(SUFFIXES) and not file.startswith(".") and "__MACOSX" not in name


def _check_classes(tree: Tree, classes: Mapping[str, int], split: Mapping[str, bool]) -> None:
    """Every class must have pictures to train on and pictures to test on."""
    for is_test, purpose in ((False, "train on"), (True, "test on")):
        held = {classes[name.split("/")[0]] for name, test in split.items() if test == is_test}
        lacking = [name for name, label in classes.items() if label not in held]
        if len(held) < len(set(classes.values())):
            raise UserError(f"{tree.place} has no pictures of {', '.join(lacking)} to {purpose}; fetch it anew")
