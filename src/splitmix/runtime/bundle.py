"""A bundle: a trained model as a folder, a manifest and one file for each base; any first few of them will do."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.types import Weights
from splitmix.runtime.manifest import MOST_MANIFEST, Manifest, from_bytes, to_bytes
from splitmix.runtime.tensors import check_numbers, parse_tensors, read_regular

MANIFEST = "manifest.json"

MODELS = Path(__file__).parents[1] / "models"  # trained bundles that come with the package


def file_name(base: int) -> str:
    """The file of a base, counted in the order in which bases are mixed.

    >>> file_name(0)
    'base-0.safetensors'
    """
    return f"base-{base}.safetensors"


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk; its manifest has been checked, its bases are checked when they are read."""

    path: Path
    manifest: Manifest

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

    def read(self, bases: Sequence[int]) -> Weights:
        """These bases, stacked, as float32."""
        rows = [self._read(base) for base in bases]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _read(self, base: int) -> Weights:
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


def base_bytes(weights: Weights, row: int, norms: set[str], storage: str) -> bytes:
    """The file of one base: its norms in full, the rest as `storage` says."""
    dtype = {"float32": torch.float32, "float16": torch.float16}[storage]
    stored = {name: value[row].to(torch.float32 if name in norms else dtype) for name, value in weights.items()}
    check_numbers(stored, f"base {row} of the run")
    return save({name: value.contiguous() for name, value in stored.items()})


def write_bundle(path: Path, manifest: Manifest, files: Sequence[bytes]) -> Bundle:
    """Write the files of the bases, then the manifest that makes them a bundle."""
    if path.exists() and any(path.iterdir()):
        raise UserError(f"'{path}' is not empty; choose another --out, or remove it first")
    for base, data in enumerate(files):
        write_atomically(path / file_name(base), data)
    write_atomically(path / MANIFEST, to_bytes(manifest))
    return Bundle.open(path)


def packaged(name: str = "mini-digits") -> Path:
    """The folder of a bundle that comes with the package."""
    return MODELS / name
