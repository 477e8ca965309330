"""Prepared files: written whole or not at all, each with a record of what it was made from."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from splitmix.core.files import open_atomically
from splitmix.data.prepare.pictures import PackedPicture


def whole_file(path: Path) -> AbstractContextManager[BinaryIO]:
    """A file to write that takes its place only when all is written; for what is too large for memory."""
    advice = "choose a data root where you may write, with enough space"
    return open_atomically(path, lambda error: f"'{path}' cannot be written ({error.strerror or error}); {advice}")


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An .npz file of number arrays."""
    with whole_file(path) as file, ZipFile(file, "w", ZIP_DEFLATED, compresslevel=6) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)


def write_pack(
    path: Path, domains: Sequence[str], classes: Sequence[str], pictures: Iterable[tuple[int, PackedPicture]]
) -> None:
    """An .npz file of JPEGs: all their bytes in one array, where each begins, and label, domain, part and name of each.

    Only one picture is in memory at a time.
    """
    kept: list[tuple[int, str, int, bool]] = []
    offset = [0]
    with TemporaryFile() as spool, whole_file(path) as file, ZipFile(file, "w", ZIP_STORED) as archive:
        for domain, picture in pictures:
            spool.write(picture.jpeg)
            offset.append(offset[-1] + len(picture.jpeg))
            kept.append((domain, picture.name, picture.label, picture.is_test))
        spool.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": (offset[-1],)}
        with archive.open("jpeg.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            copyfileobj(spool, member, 1 << 20)
        columns: dict[str, NDArray[Any]] = {
            "offset": np.array(offset, np.int64),
            "domain": np.array([domain for domain, *_ in kept], np.uint8),
            "name": np.array([name for _, name, *_ in kept]),
            "label": np.array([label for *_, label, _ in kept], np.uint8),
            "is_test": np.array([is_test for *_, is_test in kept], bool),
            "domains": np.array(domains),
            "classes": np.array(classes),
        }
        for name, values in columns.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def digest_of(file: Path, kind: str = "sha256") -> str:
    """The checksum of a file, as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
