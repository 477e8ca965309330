"""Files of data: originals are downloaded once and checked, prepared ones written whole, with a record."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from shutil import copyfileobj
from ssl import SSLError
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.files import open_atomically, write_atomically
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


Watch = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if the server tells
CHUNK = 1 << 18


def fetch(url: str, target: Path, *, md5: str = "", watch: Watch | None = None) -> None:
    """Bring a file here, unless it is here; with a checksum it is checked before it takes its name."""
    if target.exists():
        return
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(url, part, watch or (lambda *_: None))
    except HTTPError as error:
        raise UserError(f"{url} answers {error.code} {error.reason}; {_by_hand(target)}") from None
    except (URLError, HTTPException, TimeoutError, ConnectionError, SSLError) as error:
        reason = getattr(error, "reason", None) or error
        again = "repeat the command to go on, or " if part.exists() else ""
        raise UserError(f"{url} cannot be reached ({reason}); {again}{_by_hand(target)}") from None
    except OSError as error:
        raise UserError(f"'{part}' cannot be written ({error.strerror or error}); free some space") from None
    if md5 and digest_of(part, "md5") != md5:
        part.unlink()
        raise UserError(f"{url} has not the published checksum (md5 {md5}); {_by_hand(target)}")
    part.replace(target)
    _mark(part).unlink(missing_ok=True)


def _download(url: str, part: Path, watch: Watch) -> None:
    done = max(0, part.stat().st_size - 1) if part.exists() else 0  # one byte less: a range must not be empty
    headers = {"User-Agent": "splitmix", "Accept-Encoding": "identity"}
    if done and (version := _version(part)):
        headers |= {"Range": f"bytes={done}-", "If-Range": version}  # go on only if it is still the same file
    with urlopen(Request(url, headers=headers), timeout=60) as answer, part.open("ab") as file:
        if answer.status != 206:
            done = 0
        file.truncate(done)
        _remember(part, answer)
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            watch(part.name.removesuffix(".part"), done, total)
    if total is not None and done < total:
        raise URLError(f"the connection broke at {done:,} of {total:,} bytes")


def _version(part: Path) -> str:
    """What the server called the version of which a part is here."""
    with suppress(OSError, ValueError):
        return str(json.loads(_mark(part).read_text(encoding="utf-8")))
    return ""


def _remember(part: Path, answer: HTTPResponse) -> None:
    tag = answer.headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")
    write_atomically(_mark(part), json.dumps(version).encode())


def _mark(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _by_hand(target: Path) -> str:
    return f"fetch it by other means and put it at {target}"
