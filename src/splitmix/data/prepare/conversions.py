"""How each prepared file is made from originals: which of them it takes, and what is done to them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.data import benchmarks
from splitmix.data.prepare import cifar, digits, pictures, sources
from splitmix.data.prepare.digits import Half
from splitmix.data.prepare.sources import Original
from splitmix.data.prepare.store import write_arrays, write_pack

ReadHalves = Callable[[Sequence[Path]], Sequence[Half]]


@dataclass(frozen=True)
class Way:
    """One way to make a prepared file: all these originals, and what turns them into it."""

    originals: tuple[Original, ...]
    convert: Callable[[Path, Path], None]  # the folder of originals, the file to make
    terms: str


def stratified(labels: NDArray[np.int64], rows: int = 7438) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """FedBN's split of a whole set: a fifth of each class to test on, and the first `rows` of the rest, USPS's size."""
    try:
        from sklearn.model_selection import StratifiedShuffleSplit
    except ImportError:
        raise UserError("preparing digits needs scikit-learn; run: pip install 'splitmix[mini]'") from None
    split = StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
    train, test = next(split.split(np.zeros(len(labels)), labels))
    return train[:rows].astype(np.int64), test.astype(np.int64)


def write_digits(halves: Sequence[Half], target: Path) -> None:
    """Join the official parts, split them as FedBN does, and keep 28x28 pixels."""
    labels = np.concatenate([half.labels for half in halves])
    try:
        train, test = stratified(labels)
    except ValueError as error:
        raise UserError(f"cannot split {len(labels)} digits for {target.name} ({error}); fetch them anew") from None
    x = _gather(halves, np.concatenate([train, test]))
    cut = len(train)
    y_train, y_test = labels[train].astype(np.uint8), labels[test].astype(np.uint8)
    write_arrays(target, {"x_train": x[:cut], "y_train": y_train, "x_test": x[cut:], "y_test": y_test})


def write_fedbn(train: Half, test: Half, target: Path) -> None:
    """Keep FedBN's own split, with 28x28 pixels."""
    arrays = {}
    for part, half in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = _gather([half], np.arange(len(half.labels)))
        arrays[f"y_{part}"] = half.labels.astype(np.uint8)
    write_arrays(target, arrays)


def _gather(halves: Sequence[Half], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The images of rows of all halves in one, in this order, resized to 28x28; one half in memory at a time."""
    images: NDArray[np.uint8] | None = None
    start = 0
    for half in halves:
        end = start + len(half.labels)
        mine = np.flatnonzero((rows >= start) & (rows < end))
        found = _small(half.images(rows[mine] - start))
        images = np.empty((len(rows), *found.shape[1:]), np.uint8) if images is None else images
        images[mine] = found
        start = end
    if images is None:
        raise UserError("there are no images to prepare")
    return images


def _small(images: NDArray[np.uint8], size: int = 28) -> NDArray[np.uint8]:
    if images.shape[1:3] == (size, size):
        return images
    try:
        from PIL import Image
    except ImportError:
        raise UserError("resizing digits needs Pillow; run: pip install 'splitmix[mini]'") from None
    made = np.empty((len(images), size, size, *images.shape[3:]), np.uint8)
    for place, image in enumerate(images):
        made[place] = np.asarray(pictures.resized(Image.fromarray(image), size))
    return made


def _digits_ways(terms: str, fedbn: str, originals: tuple[Original, ...], read: ReadHalves) -> tuple[Way, ...]:
    """A domain of digits from its own originals, or from FedBN's."""
    theirs = sources.fedbn_originals(fedbn)

    def convert(folder: Path, target: Path) -> None:
        write_digits(read([folder / original.path for original in originals]), target)

    def convert_fedbn(folder: Path, target: Path) -> None:
        *parts, test = (folder / original.path for original in theirs)
        write_fedbn(digits.read_fedbn(parts), digits.read_fedbn([test]), target)

    return (Way(originals, convert, sources.TERMS[terms]), Way(theirs, convert_fedbn, sources.TERMS[terms]))


def _mnist(files: Sequence[Path]) -> list[Half]:
    return [digits.mnist(*files[:2]), digits.mnist(*files[2:])]


def _mnist_m(files: Sequence[Path]) -> list[Half]:
    return [digits.mnist_m(file.parent, part) for file, part in zip(files, ("train", "test"), strict=True)]


def _each(read: Callable[[Path], Half]) -> ReadHalves:
    return lambda files: [read(file) for file in files]


def write_cifar10(place: Path, target: Path, *, small: bool = False) -> None:
    """All of CIFAR-10, or the first 1000 training and 200 test images of each class."""
    batches = cifar.read_cifar10(place)
    arrays: dict[str, NDArray[Any]] = {}
    for part, names, most in (("train", cifar.BATCHES[:5], 1000), ("test", cifar.BATCHES[5:], 200)):
        labels = np.concatenate([batches[name][1] for name in names])
        rows = np.arange(len(labels))
        if small:
            rows = np.sort(np.concatenate([np.flatnonzero(labels == label)[:most] for label in range(10)]))
        arrays[f"x_{part}"] = np.concatenate([batches.pop(name)[0] for name in names])[rows]
        arrays[f"y_{part}"] = labels[rows].astype(np.uint8)
    write_arrays(target, arrays)


def _cifar_ways(small: bool) -> tuple[Way, ...]:
    def way(original: Original) -> Way:
        def convert(folder: Path, target: Path) -> None:
            places = [folder / original.path, folder / original.unpacked]
            write_cifar10(next(place for place in places if place.exists()), target, small=small)

        return Way((original,), convert, sources.TERMS["cifar10"])

    return (way(sources.CIFAR_BINARY), way(sources.CIFAR_PYTHON))


def write_pictures(known: benchmarks.PackedSet, size: int, folder: Path, target: Path) -> None:
    """A pack of all pictures of the classes, split by the authors' lists where there are any, else by lot."""
    write_pack(target, [names[0] for names in known.domains], known.class_names, _pictures(known, size, folder))


def _pictures(known: benchmarks.PackedSet, size: int, folder: Path) -> Iterator[tuple[int, pictures.PackedPicture]]:
    base = folder / known.name
    listed = known is benchmarks.DOMAINNET
    places = [] if listed else pictures.find_domains(base, known.domains)
    for number, (domain, *_) in enumerate(known.domains):
        if listed:
            unpacked = base / domain
            tree = pictures.open_tree(unpacked if unpacked.is_dir() else base / f"{domain}.zip")
            lists = (base / f"{domain}_train.txt", base / f"{domain}_test.txt")
            split = pictures.listed_split(tree, known.classes, *lists)
        else:
            tree = pictures.open_tree(places[number])
            split = pictures.drawn_split(tree, known.classes, domain)
        for picture in pictures.read_pictures(tree, known.classes, size, split):
            yield number, picture


WAYS: dict[str, tuple[Way, ...]] = {  # how each prepared file can be made; the first way is the preferred one
    "digits/mnist.npz": _digits_ways("mnist", "MNIST", sources.MNIST, _mnist),
    "digits/svhn.npz": _digits_ways("svhn", "SVHN", sources.SVHN, _each(digits.from_matlab)),
    "digits/usps.npz": _digits_ways("usps", "USPS", sources.USPS, _each(digits.usps)),
    "digits/synthdigits.npz": _digits_ways("synthdigits", "SynthDigits", sources.SYNTH, _each(digits.from_matlab)),
    "digits/mnist_m.npz": _digits_ways("mnist_m", "MNIST_M", sources.MNIST_M, _mnist_m),
    "cifar10.npz": _cifar_ways(small=False),
    "cifar10_small.npz": _cifar_ways(small=True),
    **{
        known.file(size): (
            Way(sources.PICTURES[known.name], partial(write_pictures, known, size), sources.TERMS[known.name]),
        )
        for known in benchmarks.SETS.values()
        for size in benchmarks.SIZES
    },
}
NEEDS: dict[str, tuple[str, ...]] = {  # the files of each task
    "digits": tuple(name for name in WAYS if name.startswith("digits/")),
    "cifar10": ("cifar10.npz",),
    "cifar10-half": ("cifar10.npz",),
    "cifar10-small": ("cifar10_small.npz",),
    **{known.task(size): (known.file(size),) for known in benchmarks.SETS.values() for size in benchmarks.SIZES},
}
STAND_INS = {"digits/synthdigits.npz": "digits/synthdigits_substitute.npz", "cifar10.npz": "cifar10_small.npz"}
