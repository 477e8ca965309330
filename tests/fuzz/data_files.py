"""Readers of data files of one's own and of original distributions, for mutants of them."""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pyarrow
from PIL import Image
from pyarrow.parquet import write_table

from fuzz.mutators import Mutate, blind, forge_array, forge_pickle, forge_zip
from helpers.originals import cifar_python
from helpers.picture_folders import write_tree
from splitmix.core.errors import UserError
from splitmix.data.doors import read as read_data
from splitmix.data.folder import read_folder
from splitmix.data.prepare.originals import BATCHES, read_cifar10
from splitmix.runtime.images import read_images


@dataclass(frozen=True)
class Reader:
    """What is read as it should be, what does the reading, and how mutants are made."""

    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    mutate: tuple[Mutate, ...] = (blind,)
    refuses: tuple[type[Exception], ...] = (UserError,)

    def mutant(self, number: int) -> bytes:
        """The same bytes for the same number."""
        rng = Random(number)
        return rng.choice(self.mutate)(rng.choice(self.seeds), rng)

    def accepts(self, data: bytes) -> bool:
        """Whether it was read rather than refused in a short sentence."""
        try:
            self.read(data)
        except self.refuses as error:
            if len(str(error)) > 1000:
                raise AssertionError(f"it is refused in {len(str(error))} characters") from error
            return False
        return True


def npz(folder: Path) -> Reader:
    x, y = np.zeros((20, 4, 4), np.uint8), np.arange(20) % 2
    plain, packed, file = io.BytesIO(), io.BytesIO(), folder / "a.npz"
    np.savez(plain, x=x, y=y)
    np.savez_compressed(packed, x_train=x, y_train=y, x_test=x, y_test=y)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        try:
            read_folder(folder)
        finally:
            read_images(folder, (4, 4), 10)

    return Reader((plain.getvalue(), packed.getvalue()), read, (blind, forge_zip, forge_zip, forge_array))


def table(folder: Path) -> Reader:
    file = folder / "a.csv"
    rows = "".join(f"{i},{i / 7:.3f},{'ab'[i % 2]},{'xy'[i // 10]}\n" for i in range(20))

    def read(data: bytes) -> None:
        file.write_bytes(data)
        read_data(file)

    seeds = (f"size,weight,label,domain\n{rows}", f"size;weight;class;domain\n{rows}".replace(",", ";"))
    return Reader(tuple(seed.encode() for seed in seeds), read)


def parquet(folder: Path) -> Reader:
    file, packed = folder / "a.parquet", io.BytesIO()
    rows = {"size": range(20), "weight": np.arange(20) / 7, "label": ["a", "b"] * 10, "domain": ["x"] * 10 + ["y"] * 10}
    write_table(pyarrow.table({name: list(column) for name, column in rows.items()}), packed)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        read_data(file)

    return Reader((packed.getvalue(),), read)


def pictures(folder: Path) -> Reader:
    write_tree(folder / "pets", count=4)
    file = folder / "pets" / "cat" / "0.png"
    seeds = [file.read_bytes()]
    for kind in ("JPEG", "GIF", "BMP", "WEBP"):
        Image.open(folder / "pets" / "dog" / "0.png").save(packed := io.BytesIO(), kind)
        seeds.append(packed.getvalue())

    def read(data: bytes) -> None:
        file.write_bytes(data)
        (domain,) = read_data(folder / "pets", {"size": 8})
        for x in (domain.x_train, domain.x_test):
            x.take(np.arange(len(x)))

    return Reader(tuple(seeds), read)


def old_pickle(folder: Path) -> Reader:
    x, y = np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, int)
    now = {"labels": [0, 1], "data": np.zeros((2, 3072), np.uint8)}

    def read(data: bytes) -> None:
        for name in BATCHES:
            (folder / name).write_bytes(data)
        read_cifar10(folder)

    seeds = (cifar_python(x, y), *(pickle.dumps(now, protocol) for protocol in (3, 4, 5)))
    return Reader(seeds, read, (blind, forge_pickle, forge_pickle))
