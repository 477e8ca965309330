"""CIFAR-10 as distributed: the binary version, or the python batches, which are read as data and never unpickled."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.data.prepare.pickles import read_pickled_arrays

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
    held = {str(key, "ascii", "replace") if isinstance(key, bytes) else key: item for key, item in value.items()}
    labels, data = held.get("labels"), held.get("data")
    if not isinstance(data, np.ndarray) or not isinstance(labels, list) or not all(type(y) is int for y in labels):
        raise UserError(f"{name} has no list of labels and array of data; fetch the archive anew")
    return np.array(labels, np.int64), data
