"""Writing files so that a reader, a crash or a full disk never meets half of one."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from splitmix.core.errors import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, even if the power fails half way; its folder is made if need be."""
    with open_atomically(path, lambda error: _sentence(path, len(data), error)) as file:
        file.write(data)


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
