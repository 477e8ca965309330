"""Files: written so that a crash or a full disk never leaves half of one, and arrays of strangers read in bounds."""

import errno
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence, ValuesView
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError, printable

EXPANDED = 100  # times its size that the arrays of a packed file may take
SMALL_ARRAYS = 64 << 20  # bytes that arrays may take, however small their file is
LONGEST_HEADER = 10_000  # bytes that describe an array
PLAIN_TYPE = re.compile(r"'([<>|=]?[biufcUS][1-9][0-9]{0,5})'")  # numbers and text
ENTRY = r"'(descr|fortran_order|shape)'\s*+:\s*+('[^']*+'|True|False|\([0-9L,\s]*+\))\s*+,?\s*+"  # takes no way back
HEADER = re.compile(rf"\{{\s*(?:{ENTRY}){{3}}\}}\s*")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, even if the power fails half way; its folder is made if need be."""
    with open_atomically(path, lambda error: _sentence(path, len(data), error)) as file:
        file.write(data)


def cache_folder(kind: str) -> Path:
    """Where this machine remembers what it found or made."""
    homes = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  (never an error)
    return Path(os.environ.get("SPLITMIX_CACHE") or Path(homes) / "splitmix") / kind


@contextmanager
def open_atomically(path: Path, sentence: Callable[[OSError], str]) -> Iterator[BinaryIO]:
    """A file to write that takes its place only when all is written; `sentence` says why it could not."""
    part = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _keep_names(path.parent)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise UserError(sentence(error)) from error
        raise


def _keep_names(folder: Path) -> None:
    """Bring the folder's list of names to the disk as well, where the system can."""
    with suppress(OSError):  # Windows and some network disks refuse
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sentence(path: Path, size: int, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: '{path}' ({size:,} bytes) was not written; free some space and try again"
    return f"'{path}' cannot be written ({error.strerror or error}); choose a place where you may write"


def read_npz(file: Path, choose: Callable[[list[str]], Iterable[str]]) -> dict[str, NDArray[Any]]:
    """Those arrays of an .npz file that are chosen from the names of all; nothing is made before its size is known.

    Headers are matched rather than evaluated, and nothing is ever unpickled, as a pickle can run code.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            stored = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
            chosen = {name: archive.getinfo(stored[name]) for name in choose(list(stored))}
            most = max(SMALL_ARRAYS, EXPANDED * file.stat().st_size)
            if sum(info.file_size for info in chosen.values()) > most:
                raise ValueError(f"its arrays take more than {most:,} bytes, far more than the file itself")
            return {name: _read_member(archive, info) for name, info in chosen.items()}
    except Exception as error:  # a damaged zip file can raise nearly anything
        why = printable(str(error)[:200]) or type(error).__name__
        raise UserError(
            f"cannot read {file} ({why}); give an .npz file of plain number arrays, as numpy.savez writes it"
        ) from None


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename[:60]} is packed in a way that numpy does not write")
    with archive.open(info) as member:
        dtype, shape, order, before = _read_header(member)
        if math.prod(shape) * dtype.itemsize != info.file_size - before:
            raise ValueError(f"{info.filename[:60]} has not the numbers that fill its shape {shape[:8]}")
        flat = np.empty(math.prod(shape), dtype)
        room = flat.view(np.uint8).data
        for start in range(0, len(room), 1 << 20):
            piece = room[start : start + (1 << 20)]
            piece[:] = member.read(len(piece))
    return flat.reshape(shape, order=order)


def _read_header(member: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...], Any, int]:
    """Type, shape and order of an array, and how many bytes came before its numbers."""
    magic, version = member.read(6), member.read(2)
    size = "<H" if version[:1] == b"\x01" else "<I"
    (length,) = struct.unpack(size, member.read(struct.calcsize(size)))
    if magic != b"\x93NUMPY" or version[0] not in (1, 2, 3) or length > LONGEST_HEADER:
        raise ValueError("it holds what is no array")
    text = member.read(length).decode("latin-1")
    said = dict(re.findall(ENTRY, text)) if HEADER.fullmatch(text) else {}
    kind = PLAIN_TYPE.fullmatch(said.get("descr", ""))
    if not kind or set(said) != {"descr", "fortran_order", "shape"}:
        raise ValueError("it holds an array of objects or records, not of plain numbers")
    shape = tuple(int(side) for side in re.findall("[0-9]+", said["shape"]))
    if not fits_memory(shape):
        raise ValueError("it holds an array of too many dimensions, or too large ones")
    return np.dtype(kind[1]), shape, "F" if said["fortran_order"] == "True" else "C", 8 + struct.calcsize(size) + length


def fits_memory(shape: Sequence[Any]) -> bool:
    """Whether an array may have this shape: a few whole numbers that make up no absurd size, also beside a zero."""
    return (
        len(shape) <= 16
        and all(type(side) is int and 0 <= side <= 1 << 48 for side in shape)
        and math.prod(max(1, side) for side in shape) <= 1 << 48
    )


def layers(value: object) -> Iterator[list[Any]]:
    """What lies in a value, one depth after another, without recursion: it may be deep.

    >>> list(layers([1, {"a": (2, 3)}]))
    [[[1, {'a': (2, 3)}]], [1, {'a': (2, 3)}], [(2, 3)], [2, 3]]
    """
    layer = [value]
    while layer:
        yield layer
        opened = [held.values() if isinstance(held, dict) else held for held in layer]
        layer = [item for held in opened if isinstance(held, list | tuple | ValuesView) for item in held]
