"""Domains from `.npz` files: a folder with one file per domain, and the data root with the benchmark's own files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.files import read_npz
from splitmix.data.domain import Domain, make_domain
from splitmix.data.reading import Reading

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
WHOLE_KEYS = ("x", "y")
SPLIT = f"an .npz with {', '.join(SPLIT_KEYS)}, pixels as uint8 (n, height, width[, 3]) and labels from 0"


def read_arrays(source: Path, how: Reading) -> tuple[Domain, ...]:
    """An `.npz` file, or a folder of them."""
    files = [source] if source.is_file() else sorted(source.glob("*.npz"))
    return tuple(_read_domain(file, how) for file in files)


def read_folder(path: str | Path, *, test_ratio: float = 0.2, seed: int = 0) -> tuple[Domain, ...]:
    """One domain per `.npz` file of a folder, named after the file, in the order of the names.

    A file holds `x_train y_train x_test y_test`, or `x y`, of which `test_ratio` is split off for testing. Images are
    (n, height, width, channels) or (n, height, width) for grey ones, as uint8 or float from 0 to 1.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"the data folder {folder} does not exist; give a folder with one .npz file per domain")
    if not any(folder.glob("*.npz")):
        raise UserError(f"the data folder {folder} has no .npz file; put one file per domain in it")
    return read_arrays(folder, Reading(test_ratio=test_ratio, seed=seed))


def read_split(file: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """x_train, y_train, x_test and y_test of one file, as stored."""
    arrays = load_arrays(file, (*SPLIT_KEYS, *WHOLE_KEYS))
    _need_keys(file, arrays, SPLIT_KEYS)
    x_train, y_train, x_test, y_test = (np.atleast_1d(arrays[key]) for key in SPLIT_KEYS)
    for part, x, y in (("training", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise UserError(f"{file}: {len(x)} {part} images but {len(y)} labels; give one label per image")
    return x_train, y_train, x_test, y_test


def require_files(root: Path, names: Sequence[str], what: str, *, format: str = SPLIT) -> list[Path]:
    """The paths of these files under the data root, or one error that lists those that are missing."""
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise UserError(
            f"{what} data is missing under {root}: {', '.join(missing)}; each file is {format}; "
            "name the folder that has them by --data-root or the environment variable SPLITMIX_DATA, "
            "or make them from the original files by: splitmix data prepare"
        )
    return [root / name for name in names]


def data_root(given: str | Path | None = None) -> Path:
    """The data root: what is given, else the environment variable SPLITMIX_DATA."""
    chosen = given or os.environ.get("SPLITMIX_DATA")
    if not chosen:
        raise UserError("no data root is set; name one by --data-root or the environment variable SPLITMIX_DATA")
    return Path(chosen).expanduser()


def _read_domain(file: Path, how: Reading) -> Domain:
    arrays = load_arrays(file, (*SPLIT_KEYS, *WHOLE_KEYS))
    keys = WHOLE_KEYS if "x" in arrays else SPLIT_KEYS
    _need_keys(file, arrays, keys)
    parts = [_with_channel(arrays[key], how) if key.startswith("x") else arrays[key] for key in keys]
    try:
        return make_domain(file.stem, parts, test_ratio=how.test_ratio, seed=how.seed, kind=how.kind)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _with_channel(x: NDArray[Any], how: Reading) -> NDArray[Any]:
    """Three axes are grey images, unless they are said to be something else, or have numbers that no pixel has."""
    if x.ndim != 3 or how.kind not in (None, "image"):
        return x
    signal = how.kind is None and x.dtype.kind == "f" and x.size and not 0 <= x.min() <= x.max() <= 1
    return x if signal else x[..., None]


def _need_keys(file: Path, arrays: dict[str, NDArray[Any]], keys: Sequence[str]) -> None:
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise UserError(
            f"{file} has no array {', '.join(missing)} (it has {', '.join(sorted(arrays)) or 'none'}); "
            f"give {', '.join(SPLIT_KEYS)}, or x and y"
        )


def load_arrays(file: Path, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Those arrays of an .npz file that are wanted."""
    return read_npz(file, lambda names: [name for name in names if name in wanted])
