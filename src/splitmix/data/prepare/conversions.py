"""How each prepared file is made from originals: which of them it takes, and what is done to them.

Checksums are those that others publish. A file without a URL here has no address that we know to last: its page says
how to get it. What may be done with the files is in `TERMS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.data import benchmarks
from splitmix.data.prepare import originals, pictures
from splitmix.data.prepare.originals import Half
from splitmix.data.prepare.store import write_arrays, write_pack

USPS_SIZE = 7438  # training images
SIDE = 28  # pixels
ReadHalves = Callable[[Sequence[Path]], Sequence[Half]]


@dataclass(frozen=True)
class Original:
    """A file as its authors distribute it; `path` is its place below the folder `originals` of the data root."""

    path: str
    page: str
    url: str = ""
    md5: str = ""
    unpacked: str = ""  # a folder that may be there in its stead


@dataclass(frozen=True)
class Way:
    """One way to make a prepared file: all these originals, and what turns them into it."""

    originals: tuple[Original, ...]
    convert: Callable[[Path, Path], None]  # the folder of originals, the file to make
    terms: str


def stratified(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """FedBN's split of a whole set: a fifth of each class to test on, and of the rest as many as USPS has."""
    try:
        from sklearn.model_selection import StratifiedShuffleSplit
    except ImportError:
        raise UserError("preparing digits needs scikit-learn; run: pip install 'splitmix[mini]'") from None
    split = StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
    train, test = next(split.split(np.zeros(len(labels)), labels))
    return train[:USPS_SIZE].astype(np.int64), test.astype(np.int64)


def write_digits(halves: Sequence[Half], target: Path, *, split: bool = True) -> None:
    """Join two parts and split them as FedBN does, or keep them as they are; with 28x28 pixels."""
    labels = np.concatenate([half.labels for half in halves])
    try:
        rows = stratified(labels) if split else np.split(np.arange(len(labels)), [len(halves[0].labels)])
    except ValueError as error:
        raise UserError(f"cannot split {len(labels)} digits for {target.name} ({error}); fetch them anew") from None
    x_train, x_test = np.split(_gather(halves, np.concatenate(rows)), [len(rows[0])])
    y_train, y_test = (labels[part].astype(np.uint8) for part in rows)
    write_arrays(target, {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test})


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


def _small(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if images.shape[1:3] == (SIDE, SIDE):
        return images
    try:
        from PIL import Image
    except ImportError:
        raise UserError("resizing digits needs Pillow; run: pip install 'splitmix[mini]'") from None
    made = np.empty((len(images), SIDE, SIDE, *images.shape[3:]), np.uint8)
    for place, image in enumerate(images):
        made[place] = np.asarray(pictures.resized(Image.fromarray(image), SIDE))
    return made


def _digits_ways(terms: str, fedbn: str, own: tuple[Original, ...], read: ReadHalves) -> tuple[Way, ...]:
    """A domain of digits from its own originals, or from FedBN's."""
    theirs = fedbn_originals(fedbn)

    def convert(folder: Path, target: Path) -> None:
        write_digits(read([folder / original.path for original in own]), target)

    def convert_fedbn(folder: Path, target: Path) -> None:
        *parts, test = (folder / original.path for original in theirs)
        write_digits([originals.read_fedbn(parts), originals.read_fedbn([test])], target, split=False)

    return (Way(own, convert, TERMS[terms]), Way(theirs, convert_fedbn, TERMS[terms]))


def _mnist(files: Sequence[Path]) -> list[Half]:
    return [originals.mnist(*files[:2]), originals.mnist(*files[2:])]


def _mnist_m(files: Sequence[Path]) -> list[Half]:
    return [originals.mnist_m(file.parent, part) for file, part in zip(files, ("train", "test"), strict=True)]


def _each(read: Callable[[Path], Half]) -> ReadHalves:
    return lambda files: [read(file) for file in files]


def write_cifar10(place: Path, target: Path, *, small: bool = False) -> None:
    """All of CIFAR-10, or the first 1000 training and 200 test images of each class."""
    batches = originals.read_cifar10(place)
    arrays: dict[str, NDArray[Any]] = {}
    for part, names, most in (("train", originals.BATCHES[:5], 1000), ("test", originals.BATCHES[5:], 200)):
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

        return Way((original,), convert, TERMS["cifar10"])

    return (way(CIFAR_BINARY), way(CIFAR_PYTHON))


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


def _offered(folder: str, page: str, address: str, md5: dict[str, str]) -> tuple[Original, ...]:
    """Files that lie side by side at one address."""
    return tuple(Original(f"{folder}/{name}", page, f"{address}/{name}", known) for name, known in md5.items())


MNIST = _offered(
    "mnist",
    "http://yann.lecun.com/exdb/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
USPS = _offered(
    "usps",
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass",
    {"usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197", "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118"},
)
SVHN = _offered(
    "svhn",
    "http://ufldl.stanford.edu/housenumbers/",
    "http://ufldl.stanford.edu/housenumbers",
    {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"},
)
GANIN_PAGE = "http://yaroslav.ganin.net/"
SYNTH = tuple(
    Original(f"synthdigits/synth_{part}_32x32.mat", f"{GANIN_PAGE} (SynthDigits.zip, unpacked)")
    for part in ("train", "test")
)
MNIST_M = tuple(
    Original(f"mnist_m/mnist_m_{part}_labels.txt", f"{GANIN_PAGE} (mnist_m.tar.gz, unpacked)")
    for part in ("train", "test")
)


def fedbn_originals(folder: str) -> tuple[Original, ...]:
    """One domain of FedBN's prepared digits: ten parts to train on, and a test part."""
    page = "https://github.com/med-air/FedBN (digit_dataset.zip, unpacked)"
    parts = [f"partitions/train_part{number}.pkl" for number in range(10)]
    return tuple(Original(f"fedbn/{folder}/{name}", page) for name in (*parts, "test.pkl"))


def _cifar(version: str, unpacked: str, md5: str) -> Original:
    home, name = "https://www.cs.toronto.edu/~kriz", f"cifar-10-{version}.tar.gz"
    return Original(f"cifar10/{name}", f"{home}/cifar.html", f"{home}/{name}", md5, f"cifar10/{unpacked}")


CIFAR_BINARY = _cifar("binary", "cifar-10-batches-bin", "c32a1d4ab5d03f1284b67883e8d87530")
CIFAR_PYTHON = _cifar("python", "cifar-10-batches-py", "c58f30108f718f92721af3b95e74349a")

_DOMAINNET_MD5 = """
real dcc47055e8935767784b7162e7c7cca6 8ebf02c2075fadd564705f0dc7cd6291 6098816791c3ebed543c71ffa11b9054
clipart cd0d8f2d77a4e181449b78ed62bccf1e b4349693a7f9c05c53955725c47ed6cb f5ddbcfd657a3acf9d0f7da10db22565
infograph 720380b86f9e6ab4805bb38b6bd135f8 379b50054f4ac2018dca4f89421b92d9 779626b50869edffe8ea6941c3755c71
painting 1ae32cdb4f98fe7ab5eb0a351768abfd 7db0e7ca73ad9982f6e1f7f3ef372c0a 232b35dc53f26d414686ae579e38d9b5
quickdraw bdc1b6f09f277da1a263389efe0c7a66 b732ced3939ac8efdd8c0a889dca56cc c1a828fdfe216fb109f1c0083a252c6f
sketch 658d8009644040ff7ce30bb2e820850f 1233bd18aa9a8a200bf4cecf1c34ef3e d8a222e4672cfd585298aa14d02ea441
"""  # of the pictures, of the list to train on, of the list to test on


def _domainnet(domain: str, pictures: str, train: str, test: str) -> tuple[Original, ...]:
    page, home = "http://ai.bu.edu/M3SDA/ (the cleaned version)", "http://csr.bu.edu/ftp/visda/2019/multi-source"
    cleaned = "/groundtruth" if domain in ("clipart", "painting") else ""  # these were cleaned again later
    lists = _offered(
        "domainnet", page, f"{home}/domainnet/txt", {f"{domain}_train.txt": train, f"{domain}_test.txt": test}
    )
    packed = f"{home}{cleaned}/{domain}.zip"
    return (Original(f"domainnet/{domain}.zip", page, packed, pictures, f"domainnet/{domain}"), *lists)


PICTURES = {  # by the name of the set
    "domainnet": tuple(file for line in _DOMAINNET_MD5.split("\n")[1:-1] for file in _domainnet(*line.split())),
    "office-caltech10": (
        Original("office-caltech10", "https://github.com/med-air/FedBN (office_caltech_10_dataset.zip, unpacked)"),
    ),
    "pacs": (Original("pacs", "https://dali-dl.github.io/project_iccv2017.html (unpacked)"),),
}

TERMS = {
    "mnist": "no licence stated by the authors; often cited as CC BY-SA 3.0",
    "usps": "no licence stated",
    "svhn": "for non-commercial use only (its authors' page)",
    "synthdigits": "no licence on the author's page; a public copy says CC BY 4.0",
    "mnist_m": "no licence stated; made from MNIST and photographs of BSDS500 (research use)",
    "cifar10": "no licence stated; its author asks for a citation (Krizhevsky 2009)",
    "domainnet": "a fair-use notice: for non-commercial research and education; the pictures belong to their makers",
    "office-caltech10": "no licence stated; pictures of Office-31 and Caltech-256, for research",
    "pacs": "no licence stated; pictures of Caltech-256, Sketchy, TU-Berlin and Google Images, for research",
}

WAYS: dict[str, tuple[Way, ...]] = {  # how each prepared file can be made; the first way is the preferred one
    "digits/mnist.npz": _digits_ways("mnist", "MNIST", MNIST, _mnist),
    "digits/svhn.npz": _digits_ways("svhn", "SVHN", SVHN, _each(originals.from_matlab)),
    "digits/usps.npz": _digits_ways("usps", "USPS", USPS, _each(originals.usps)),
    "digits/synthdigits.npz": _digits_ways("synthdigits", "SynthDigits", SYNTH, _each(originals.from_matlab)),
    "digits/mnist_m.npz": _digits_ways("mnist_m", "MNIST_M", MNIST_M, _mnist_m),
    "cifar10.npz": _cifar_ways(small=False),
    "cifar10_small.npz": _cifar_ways(small=True),
    **{
        known.file(size): (Way(PICTURES[known.name], partial(write_pictures, known, size), TERMS[known.name]),)
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
