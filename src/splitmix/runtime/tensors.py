"""Reading files that nobody vouches for: sizes, names, shapes and types are checked before anything is made of them."""

import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from splitmix.core.errors import UserError
from splitmix.core.types import Weights
from splitmix.runtime.manifest import HEADER_BYTES, ITEM, TensorSpec, readable, strict_json


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


def parse_tensors(data: bytes, where: str, expected: Mapping[str, TensorSpec]) -> tuple[Weights, dict[str, str]]:
    """Tensors as float32 from the bytes of a safetensors file that holds exactly these, and its metadata."""
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
    return {name: value.float() for name, value in tensors.items()}, metadata


def check_numbers(tensors: Weights, where: str) -> None:
    """Refuse what would give NaN."""
    for name, value in tensors.items():
        if not torch.isfinite(value).all() or (name.endswith("running_var") and (value < 0).any()):
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
