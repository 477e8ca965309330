"""Pictures in class folders, with domain folders above them if there are any, and train and test above those.

Only names are kept: a client reads the files of a batch when it needs them, so memory does not grow with the pictures.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError, printable
from splitmix.core.inputs import Lazy, spread
from splitmix.core.inputs.pictures import PICTURE_SUFFIXES, read_picture, size_of_picture
from splitmix.data.domain import Domain, make_domain
from splitmix.data.partition import Rows
from splitmix.data.reading import Reading

MOST_FILES = 5_000_000
MOST_CLASSES = 10_000
LOOKED_AT = 32  # pictures, to find out how large they are
SMALL, MIDDLE = 32, 96  # sides of images where none is set: for small pictures, and for others
SPLIT = {"train", "test"}
OTHER_PICTURES = (".tif", ".tiff", ".heic", ".avif", ".jp2", ".svg")  # that would silently be left out


@dataclass(frozen=True)
class Pictures(Lazy):
    """Picture files as images of one size: the middle of each, made smaller or larger."""

    root: Path
    names: NDArray[np.bytes_]  # below the root
    size: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.names), *self.size

    def __getitem__(self, rows: Any) -> "Pictures":
        return replace(self, names=self.names[rows])

    def take(self, rows: Rows) -> NDArray[np.uint8]:
        images = np.empty((len(rows), *self.size), np.uint8)
        for place, name in enumerate(self.names[rows]):
            images[place] = read_picture(self.root / os.fsdecode(name), self.size)
        return images

    def joined(self, others: Sequence[Any]) -> "Pictures":
        return replace(self, names=np.concatenate([self.names, *(other.names for other in others)]))


Classes = dict[str, list[str]]  # the names of the pictures of each class, below the root


def read_pictures(root: Path, how: Reading) -> tuple[Domain, ...]:
    """A domain for each folder of class folders; `test` holds the pictures for testing, else some are split off."""
    tree = Tree(root)
    parts = {part: tree.domains(part) for part in tree.parts()}
    train = parts.get("train") or parts[""]
    classes = common_classes(root, train)
    test = parts.get("test")
    if test is not None:
        check_test(root, train, test)
    every = [name for held in train.values() for names in held.values() for name in names]
    size = how.size or usual_size([size_of_picture(root / name) for name in spread(every, LOOKED_AT)])

    def labelled(held: Classes) -> tuple[Pictures, Rows]:
        names = [os.fsencode(name) for label in classes for name in held.get(label, ())]
        labels = np.repeat(np.arange(len(classes)), [len(held.get(label, ())) for label in classes])
        return Pictures(root, np.array(names, np.bytes_), size), labels

    found = []
    for name, held in train.items():
        arrays = (*labelled(held), *(() if test is None else labelled(test[name])))
        made = make_domain(name, arrays, test_ratio=how.test_ratio, seed=how.seed)
        found.append(replace(made, class_names=tuple(printable(label)[:100] for label in classes)))
    return tuple(found)


@dataclass
class Tree:
    """A folder of pictures, walked through once."""

    root: Path
    files: int = field(default=0, init=False)

    def parts(self) -> tuple[str, ...]:
        """The folders `train` and `test`, or none of them: then all is one part."""
        folders, pictures = self.look("")
        if "train" not in folders:
            return ("",)
        if odd := [*sorted(set(folders) - SPLIT), *pictures]:
            raise UserError(
                f"'{odd[0]}' lies beside the folder train of '{self.root}'; there may be train and test alone"
            )
        return tuple(folders)

    def domains(self, part: str) -> dict[str, Classes]:
        """The classes of each domain; without folders of domains there is one, named after the root."""
        folders, stray = self.look(part)
        if stray:
            raise self.mixed(stray[0])
        found = {name: self.look(below(part, name)) for name in folders}
        deep, flat = ([name for name in folders if found[name][place]] for place in (0, 1))
        if deep and flat:
            if deep[0] == flat[0]:
                raise self.mixed(found[flat[0]][1][0])
            raise UserError(
                f"in '{self.root / part}' the folder {flat[0]} holds pictures, but {deep[0]} holds folders; give class "
                "folders alone, or domain folders with class folders in each"
            )
        if not deep:
            return {self.root.resolve().name: named_alike({name: pictures for name, (_, pictures) in found.items()})}
        return {name: self.classes(below(part, name), found[name][0]) for name in folders}

    def classes(self, place: str, folders: Iterable[str]) -> Classes:
        found = {}
        for name in folders:
            deeper, pictures = self.look(below(place, name))
            if deeper:
                raise UserError(
                    f"'{self.root / place / name / deeper[0]}' is a folder too deep; pictures lie in domain/class"
                )
            found[name] = pictures
        return named_alike(found)

    def look(self, place: str) -> tuple[list[str], list[str]]:
        """The names of the folders in a folder, and the pictures in it as they are called below the root."""
        folders, pictures = [], []
        try:
            with os.scandir(self.root / place) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        folders.append(entry.name)
                    elif entry.name.lower().endswith(PICTURE_SUFFIXES) and entry.is_file():
                        pictures.append(below(place, entry.name))
                    elif entry.name.lower().endswith(OTHER_PICTURES):
                        raise UserError(
                            f"'{self.root / place / entry.name}' is of a kind that is not read; save it as one of "
                            f"{', '.join(PICTURE_SUFFIXES)}, or put it away"
                        )
        except OSError as error:
            raise UserError(f"the folder '{self.root / place}' cannot be read ({error.strerror})") from None
        self.files += len(pictures)
        if self.files > MOST_FILES or len(folders) > MOST_CLASSES:
            raise UserError(f"'{self.root}' has more than {MOST_FILES:,} pictures, or {MOST_CLASSES:,} folders in one")
        return sorted(folders), sorted(pictures)

    def mixed(self, stray: str) -> UserError:
        return UserError(f"the picture '{self.root / stray}' lies in no class folder; put it into one, or away")


def below(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def named_alike(held: Classes) -> Classes:
    """The same with one spelling of each name: an umlaut that a Mac wrote as two letters is the same umlaut."""
    found: Classes = {}
    for name, pictures in held.items():
        found.setdefault(normalize("NFC", name), []).extend(pictures)
    return found


def common_classes(root: Path, domains: dict[str, Classes]) -> list[str]:
    """The names of the classes, which all domains have; numbers are in the order of numbers."""
    (first, held), *others = domains.items()
    for name, other in others:
        if odd := sorted(held.keys() ^ other.keys()):
            has, lacks = (first, name) if odd[0] in held else (name, first)
            raise UserError(
                f"in '{root}' the domain {has} has a class folder {odd[0]}, but {lacks} has none; give all domains the "
                "same class folders, an empty one where there are no pictures"
            )
    blank = [label for label in held if not any(domain[label] for domain in domains.values())]
    if blank:
        allowed = ", ".join(PICTURE_SUFFIXES)
        raise UserError(f"the class folder {blank[0]} of '{root}' has no pictures to train on ({allowed})")
    if len(held) < 2:
        raise UserError(f"'{root}' has {len(held)} class folders with pictures; give two classes or more")
    return sorted(held, key=int if all(label.isdecimal() for label in held) else str)


def check_test(root: Path, train: dict[str, Classes], test: dict[str, Classes]) -> None:
    """The test part has the domains of the training part, and no other classes."""
    if odd := sorted(train.keys() ^ test.keys()):
        raise UserError(f"'{root}' has the domain {odd[0]} in one of train and test only; give both the same domains")
    for name, held in test.items():
        if odd := sorted(held.keys() - train[name].keys()):
            raise UserError(f"'{root / 'test'}' has a class {odd[0]}, which '{root / 'train'}' has not")


def usual_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """The size of images where none is set, after that of some pictures: one for which there is a net, a square."""
    if set(sizes) == {(28, 28)}:
        return 28, 28, 3
    short = median(min(size) for size in sizes)
    side = SMALL if short < 2 * SMALL else min(MIDDLE, int(short))
    return side, side, 3
