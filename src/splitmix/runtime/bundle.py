"""A bundle: a trained model as a folder, a manifest and one file for each base; any first few of them will do."""

import hashlib
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.runtime.about.card import CARD, card
from splitmix.runtime.manifest import HEADER_BYTES, ITEM, MOST_MANIFEST, Manifest, TensorSpec, from_bytes, to_bytes
from splitmix.runtime.norms import Arrays
from splitmix.runtime.strict import readable, strict_json


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a plain file of at most so many; links, pipes and devices are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UserError(f"there is no file '{path}'") from None
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise UserError(f"'{path}' cannot be read ({why}); put the file itself there") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"'{path}' is not a plain file; put the file itself there")
        if found.st_size > most:
            raise UserError(f"'{path}' has {found.st_size:,} bytes, more than the {most:,} it may have; fetch it again")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(most)
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}); put it there again") from None
    finally:
        os.close(descriptor)


def parse_tensors(data: bytes, where: str, expected: Mapping[str, TensorSpec]) -> tuple[Arrays, dict[str, str]]:
    """Arrays of float32 from the bytes of a safetensors file that holds exactly these, and its metadata."""
    header, metadata = parse_header(data, where)
    if header.keys() != expected.keys():
        odd = readable(sorted(header.keys() ^ expected.keys())[0])
        raise UserError(f"{where} is of another model: its entries differ in '{odd}'; fetch the one of this bundle")
    for name, entry in header.items():
        shape, dtype = expected[name]
        if not _as_expected(entry, shape, dtype):
            raise UserError(f"{where}: '{name}' is not {dtype} of shape {shape}; fetch the one of this bundle")
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{where} cannot be read ({readable(error)}); fetch it again") from None
    return {name: value.astype(np.float32, copy=False) for name, value in tensors.items()}, metadata


def check_numbers(tensors: Mapping[str, NDArray[Any]], where: str) -> None:
    """Refuse what would give NaN."""
    for name, value in tensors.items():
        if not np.isfinite(value).all() or (name.endswith("running_var") and (value < 0).any()):
            raise UserError(
                f"{where} has NaN, infinite or impossible numbers in '{name}' and cannot be served; make it anew"
            )


def parse_header(data: bytes, where: str) -> tuple[dict[str, object], dict[str, str]]:
    """What a safetensors file says of its entries, not yet checked, and its metadata."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(HEADER_BYTES, len(data) - 8):
        raise UserError(f"{where} is truncated, or no safetensors file; fetch it again")
    header = strict_json(data[8 : 8 + size], where)
    if not isinstance(header, dict):
        raise UserError(f"{where} is no safetensors file; fetch it again")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError(f"{where} has metadata that is not text; fetch it again")
    return header, metadata


def _as_expected(entry: object, shape: tuple[int, ...], dtype: str) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return False
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(o) is int for o in offsets):
        return False
    fits = offsets[1] - offsets[0] == ITEM[dtype] * math.prod(shape)
    return fits and entry["dtype"] == dtype and entry["shape"] == list(shape)


MANIFEST = "manifest.json"


def file_name(base: int) -> str:
    """The file of a base, counted in the order in which bases are mixed.

    >>> file_name(0)
    'base-0.safetensors'
    """
    return f"base-{base}.safetensors"


@dataclass(frozen=True, repr=False)
class Bundle:
    """A bundle on disk; its manifest has been checked, its bases are checked when they are read."""

    path: Path
    manifest: Manifest

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}: {len(self.manifest.bases)} bases of {self.manifest.net.name})"

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        folder = Path(path)
        if not os.path.isdir(folder):  # noqa: PTH112  (whatever is wrong with it, no error)
            raise UserError(f"there is no bundle '{folder}'; make one from a run with: splitmix bundle RUN")
        if not os.path.lexists(folder / MANIFEST):
            raise UserError(f"'{folder}' is no bundle: it has no {MANIFEST}; make one with: splitmix bundle RUN")
        where = folder / MANIFEST
        return cls(folder, from_bytes(read_regular(where, MOST_MANIFEST), f"'{where}'"))

    def arrived(self) -> int:
        """How many bases are there, from the first on without a gap."""
        there = [os.path.lexists(self.path / file_name(base)) for base in range(len(self.manifest.bases))]
        count = there.index(False) if False in there else len(there)
        if any(there[count:]):
            later = file_name(there.index(True, count))
            raise UserError(f"'{self.path / file_name(count)}' is missing, though {later} is there; fetch it")
        return count

    def read_base(self, base: int) -> Arrays:
        """The entries of one base, as float32."""
        path, said = self.path / file_name(base), self.manifest.bases[base]
        where = f"'{path}'"
        data = read_regular(path, said.bytes)
        if len(data) != said.bytes:
            raise UserError(f"{where} has {len(data):,} bytes, but the manifest says {said.bytes:,}; fetch it again")
        if hashlib.sha256(data).hexdigest() != said.sha256:
            raise UserError(f"{where} is damaged or of another bundle: its hash is not the manifest's; fetch it again")
        tensors, _ = parse_tensors(data, where, self.manifest.entries())
        check_numbers(tensors, where)
        return tensors


def base_bytes(entries: Mapping[str, NDArray[Any]], norms: set[str], storage: str, where: str) -> bytes:
    """The file of one base: its norms in full, the rest as `storage` says."""
    stored = {name: value.astype(np.float32 if name in norms else storage) for name, value in entries.items()}
    check_numbers(stored, where)
    return save({name: np.asarray(value, order="C") for name, value in stored.items()})  # also of no axes


def write_bundle(path: Path, manifest: Manifest, files: Sequence[bytes]) -> Bundle:
    """Write the files of the bases and a card, then the manifest that makes them a bundle."""
    if path.exists() and not path.is_dir():
        raise UserError(f"'{path}' is a file; give the bundle a folder of its own")
    if path.exists() and any(path.iterdir()):
        raise UserError(f"'{path}' is not empty; choose another --out, or remove it first")
    for base, data in enumerate(files):
        write_atomically(path / file_name(base), data)
    write_atomically(path / CARD, card(manifest).encode())
    write_atomically(path / MANIFEST, to_bytes(manifest))
    return Bundle.open(path)


def packaged() -> Path:
    """The folder of the bundle that comes with the package."""
    return Path(__file__).parents[1] / "models" / "mini-digits"
