"""Digits and CIFAR-10 as distributed, in idx, libsvm text, MATLAB, listed PNGs and pickles, which are never unpickled.

A set of digits comes in halves, official training and official test part. A half tells its labels first and gives
images for chosen rows only, so that a large set is never held resized.
"""

import bz2
import gzip
import io
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.data.partition import Rows
from splitmix.data.prepare.pickles import read_pickled_arrays
from splitmix.data.prepare.pictures import open_picture

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Half:
    """One part of a set: the digit of every image, and the images of chosen rows, (n, h, w) or (n, h, w, 3)."""

    labels: Rows
    images: Callable[[Rows], Bytes]


def mnist(images: Path, labels: Path) -> Half:
    """Two idx files, packed by gzip."""
    x, y = read_idx(images, 3), read_idx(labels, 1)
    return _half(images, y, x)


def read_idx(file: Path, axes: int) -> Bytes:
    """Bytes in the idx format: two zeros, the type (8), the number of axes, their lengths, big-endian; the bytes."""
    try:
        with gzip.open(file, "rb") as stream:
            data = stream.read()
        sides = struct.unpack_from(f">{axes}I", data, 4)
        if data[:4] != bytes([0, 0, 8, axes]):
            raise ValueError(f"it begins with {data[:4].hex()} instead of 000008{axes:02x}")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(sides)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise damaged(file, "idx bytes packed by gzip", error) from None


def usps(file: Path) -> Half:
    """Lines of `label index:value ...` packed by bzip2: labels 1 to 10 for 0 to 9, values -1 to 1 of 16x16 pixels."""
    labels: list[int] = []
    rows: list[Bytes] = []
    try:
        with bz2.open(file, "rt", encoding="ascii") as lines:
            for line in lines:
                label, *pairs = line.split()
                pixels = np.zeros(256, np.float32)
                for pair in pairs:
                    index, _, value = pair.partition(":")
                    pixels[_between(int(index), 1, 256) - 1] = float(value)
                labels.append(_between(int(label), 1, 10) - 1)
                rows.append(((pixels.clip(-1, 1) + 1) / 2 * 255).astype(np.uint8))  # rounded down, as FedBN does
    except (OSError, EOFError, ValueError) as error:
        raise damaged(file, "libsvm lines packed by bzip2", error) from None
    return _half(file, labels, np.reshape(rows, (-1, 16, 16)))


def from_matlab(file: Path) -> Half:
    """MATLAB 5 arrays X (32, 32, 3, n) and y (n, 1), in which 10 may stand for 0."""
    labels = _matlab(file, "y").reshape(-1).astype(np.int64) % 10

    def images(rows: Rows) -> Bytes:
        x = _matlab(file, "X")
        if x.ndim != 4 or x.dtype != np.uint8 or x.shape[2:] != (3, len(labels)):
            raise damaged(file, "X of bytes (height, width, 3, n)", f"it is {x.dtype} {x.shape}")
        chosen: Bytes = x.transpose(3, 0, 1, 2)[rows]
        return chosen

    return Half(labels, images)


def mnist_m(folder: Path, part: str) -> Half:
    """Ganin's folder: `mnist_m_<part>_labels.txt` lists `name label`, and `mnist_m_<part>/name` is a PNG of 32x32.

    The frame of two pixels is cut off: what is inside lines up with MNIST.
    """
    listing = folder / f"mnist_m_{part}_labels.txt"
    try:
        pairs = [line.split() for line in listing.read_text(encoding="ascii").splitlines() if line.strip()]
        names, labels = [name for name, _ in pairs], [_between(int(label), 0, 9) for _, label in pairs]
        if any("/" in name or "\\" in name for name in names):
            raise ValueError("a name leads out of the folder")
    except (OSError, ValueError) as error:
        raise damaged(listing, "lines of a name and a digit", error) from None

    def images(rows: Rows) -> Bytes:
        found = np.empty((len(rows), 28, 28, 3), np.uint8)
        for place, row in enumerate(rows):
            file = folder / f"mnist_m_{part}" / names[row]
            whole = np.asarray(open_picture(file.read_bytes, file))
            found[place] = whole[2:-2, 2:-2] if whole.shape == (32, 32, 3) else whole
        return found

    return Half(np.array(labels, np.int64), images)


def read_fedbn(files: list[Path]) -> Half:
    """FedBN's pickles of (images, labels), one after the other; read as data, never unpickled."""
    parts: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for file in files:
        try:
            stream = file.open("rb")
        except OSError as error:
            raise damaged(file, "a pickle of arrays", error) from None
        with stream:
            value = read_pickled_arrays(file, stream)
        if not (isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, np.ndarray) for part in value)):
            raise damaged(file, "a pair of arrays, images and labels", f"it holds a {type(value).__name__}")
        if value[0].shape[1:] != (parts or [value])[0][0].shape[1:] or not value[0].ndim:
            raise damaged(file, "images of one size", f"{value[0].shape}")
        parts.append(value)
    x = np.concatenate([images for images, _ in parts])
    return _half(files[0], np.concatenate([labels.reshape(-1) for _, labels in parts]), x)


def damaged(file: Path, wanted: str, found: object) -> UserError:
    return UserError(f"cannot read {file} as {wanted} ({found}); fetch the file anew")


def _half(file: Path, labels: Any, images: NDArray[Any]) -> Half:
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu" or len(labels) != len(images) or not len(labels):
        raise damaged(file, "images with a label each", f"{len(images)} images, {len(labels)} labels")
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not 0 <= labels.min() <= labels.max() <= 9:
        raise damaged(file, "images of bytes with digits 0 to 9", f"{images.dtype} {images.shape}")
    return Half(labels.astype(np.int64), lambda rows: images[rows])


def _matlab(file: Path, name: str) -> NDArray[Any]:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError(f"{file.name} needs SciPy to be read; run: pip install 'splitmix[mini]'") from None
    try:
        found: NDArray[Any] = loadmat(file, variable_names=[name])[name]
        return found
    except Exception as error:  # SciPy raises what it likes on a damaged file
        raise damaged(file, "a MATLAB 5 file with X and y", f"{type(error).__name__}: {error}") from None


def _between(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"{value} is not from {low} to {high}")
    return value


Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (n, 32, 32, 3), labels
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def read_cifar10(place: Path) -> dict[str, Batch]:
    """The batches by name, from either version: a .tar.gz as it was fetched, or the folder that was in it."""
    found = {Path(name).stem: _batch(f"{place}: {name}", stream) for name, stream in _members(place)}
    missing = [name for name in BATCHES if name not in found]
    if missing:
        raise UserError(f"{place} has no {', '.join(missing)}; fetch cifar-10-binary.tar.gz anew")
    return found


def _members(place: Path) -> Iterator[tuple[str, BinaryIO]]:
    """The batches in a folder or an archive, which is read from front to back; nothing is unpacked to the disk."""
    wanted = {*BATCHES, *(f"{name}.bin" for name in BATCHES)}
    try:
        if place.is_dir():
            for file in sorted(place.iterdir()):
                if file.name in wanted:
                    yield file.name, io.BytesIO(file.read_bytes())
            return
        with tarfile.open(place, "r|gz") as archive:
            for member in archive:
                stream = archive.extractfile(member) if Path(member.name).name in wanted else None
                if stream is not None:
                    yield Path(member.name).name, io.BytesIO(stream.read())
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"cannot read {place} ({error}); fetch cifar-10-binary.tar.gz anew") from None


def _batch(name: str, stream: BinaryIO) -> Batch:
    labels, pixels = _records(stream) if name.endswith(".bin") else _pickled(name, stream)
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072 or len(pixels) != len(labels):
        raise UserError(f"{name} does not hold images of 3072 bytes with a label each; fetch the archive anew")
    if not len(labels) or not 0 <= labels.min() <= labels.max() <= 9:
        raise UserError(f"{name} does not hold labels from 0 to 9; fetch the archive anew")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # stored as red, green and blue planes
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _records(stream: BinaryIO) -> tuple[NDArray[Any], NDArray[Any]]:
    """The binary version: records of a label and 3072 pixels."""
    data = np.frombuffer(stream.read(), np.uint8)
    records = data[: len(data) // 3073 * 3073].reshape(-1, 3073)
    return records[:, 0] if records.size == data.size else records[:0, 0], records[:, 1:]


def _pickled(name: str, stream: BinaryIO) -> tuple[NDArray[Any], NDArray[Any]]:
    """A python batch: a dict with `data` (n, 3072) and a list of `labels`."""
    value = read_pickled_arrays(name, stream)
    items = value.items() if isinstance(value, dict) else ()
    held = {str(key, "ascii", "replace") if isinstance(key, bytes) else key: item for key, item in items}
    labels, data = held.get("labels"), held.get("data")
    if not isinstance(data, np.ndarray) or not isinstance(labels, list) or not all(map(_is_digit, labels)):
        raise UserError(f"{name} has no list of labels from 0 to 9 and array of data; fetch the archive anew")
    return np.array(labels, np.int64), data


def _is_digit(label: Any) -> bool:
    return type(label) is int and 0 <= label <= 9
