"""A domain: labelled samples of one origin, checked before anything is made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splitmix.core.errors import UserError
from splitmix.core.inputs import Inputs, Kind, Lazy, Scaling
from splitmix.core.reproducible import rng_for
from splitmix.data.partition import Rows, hold_out

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Domain:
    """Labelled samples of one origin, and labels (n,).

    Images are (n, height, width, channels) as uint8 or float in [0, 1]; others are features (n, features), signals of
    any rank, or tokens, which are whole numbers.
    """

    name: str
    x_train: Inputs
    y_train: Rows
    x_test: Inputs
    y_test: Rows
    class_names: tuple[str, ...] = ()  # of the labels 0, 1, ..., where they are known
    kind: Kind | None = None  # None: as the arrays look
    scaling: Scaling | None = None  # that its features went through


def make_domain(
    name: str, arrays: Sequence[Any], *, test_ratio: float = 0.2, seed: int = 0, kind: Kind | None = None
) -> Domain:
    """A checked domain from (x, y, x_test, y_test), or from (x, y), of which a test part is split off."""
    if len(arrays) not in (2, 4):
        raise UserError(f"domain '{name}' has {len(arrays)} arrays; give (x, y) or (x, y, x_test, y_test)")
    x, y, kind = _checked_part(name, "training", arrays[0], arrays[1], kind)
    if len(arrays) == 4:
        x_test, y_test, test_kind = _checked_part(name, "test", arrays[2], arrays[3], kind)
        kind = "signal" if "signal" in (kind, test_kind) else kind
        return Domain(name, x, y, x_test, y_test, kind=kind)
    kept, out = held_out(name, y, test_ratio, seed)
    return Domain(name, x[kept], y[kept], x[out], y[out], kind=kind)


def held_out(name: str, y: Rows, test_ratio: float, seed: int) -> tuple[Rows, Rows]:
    """The rows of a domain to train on, and those that are split off for testing."""
    kept, out = hold_out(y, test_ratio, rng_for(seed, "held-out test rows", name))
    if not len(out):
        raise UserError(f"domain '{name}' has too few rows ({len(y)}) to split off a test part; give x_test and y_test")
    return kept, out


def checked_domains(domains: Sequence[Domain], augment: bool | str) -> tuple[Domain, ...]:
    """The domains with plain numbers and labels, all of one kind; an error for the first thing that does not fit."""
    if not domains:
        raise UserError("there are no domains; give at least one")
    names = [domain.name for domain in domains]
    for name in names:
        if names.count(name) > 1 or name in ("", "mixed"):
            raise UserError(
                f"the domain name '{name}' is taken twice, empty or reserved; "
                "give each domain, or its file or folder, a name of its own"
            )
    whole = [_checked(domain) for domain in domains]
    shape, first = whole[0].x_train.shape[1:], whole[0]
    for domain in whole:
        for part, x in (("training", domain.x_train), ("test", domain.x_test)):
            if x.shape[1:] != shape:
                raise UserError(
                    f"{part} images of domain '{domain.name}' have shape {x.shape[1:]}, those of '{names[0]}' {shape}; "
                    "all images must have the same height, width and channels"
                )
        if (domain.class_names, domain.scaling) != (first.class_names, first.scaling):
            raise UserError(f"domain '{domain.name}' has other classes or another scaling than '{first.name}'")
    if augment and len(shape) != 3:
        raise UserError(f"vectors of shape {shape} cannot be cropped and flipped or turned; set augment to false")
    kinds = {domain.kind for domain in whole}
    return tuple(replace(domain, kind="signal") for domain in whole) if "signal" in kinds else tuple(whole)


def _checked(domain: Domain) -> Domain:
    arrays = (domain.x_train, domain.y_train, domain.x_test, domain.y_test)
    made = make_domain(domain.name, arrays, kind=domain.kind)
    return replace(made, class_names=domain.class_names, scaling=domain.scaling)


def _checked_part(name: str, part: str, x: Any, y: ArrayLike, kind: Kind | None) -> tuple[Inputs, Rows, Kind]:
    where = f"{part} data of domain '{name}'"
    inputs, labels = x if isinstance(x, Lazy) else _array(x, where), np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{where}: labels are {labels.dtype} of shape {labels.shape}; give whole numbers of shape (n,)")
    if not len(labels):
        raise UserError(f"{where}: there are no rows; every domain needs training and test rows")
    if len(inputs.shape) < 2:
        raise UserError(
            f"{where}: images have shape {inputs.shape}; give (n, height, width, channels), (n, features) or more axes"
        )
    if len(inputs) != len(labels):
        raise UserError(f"{where}: {len(inputs)} images but {len(labels)} labels; give one label per image")
    if isinstance(inputs, Lazy):
        return inputs, labels.astype(np.int64), kind or "image"
    if inputs.dtype.kind not in "iuf" or inputs.size == 0:
        raise UserError(f"{where}: images are {inputs.dtype} of shape {inputs.shape}; give uint8, or float from 0 to 1")
    made, kind = _numbers(inputs, where, kind)
    return made, labels.astype(np.int64), kind


def _array(x: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(x)
    except ValueError:
        raise UserError(f"{where}: the samples do not form an array; give all of them the same shape") from None


def _numbers(x: NDArray[Any], where: str, kind: Kind | None) -> tuple[NDArray[np.generic], Kind]:
    """Pixels and features of bytes as they are, tokens as int64, all else as float32, after a look at the values."""
    low, high = (0.0, 255.0) if x.dtype == np.uint8 else (float(x.min()), float(x.max()))
    if not -LARGEST <= low <= high <= LARGEST:  # NaN passes through min and max
        raise UserError(f"{where}: there are NaN or infinite pixels; remove or replace them")
    kind = kind or _kind(x, where, low)
    if kind == "tokens":
        if x.dtype.kind == "f" or low < 0:
            raise UserError(f"{where}: tokens are {x.dtype} from {low:g} on; give whole numbers from 0 on")
        return x.astype(np.int64), kind
    if kind == "image":
        return _pixels(x, where, low, high), kind
    if kind == "features" and x.ndim != 2:
        raise UserError(f"{where}: features have shape {x.shape}; give (n, features)")
    return x if x.dtype == np.uint8 and kind == "features" else x.astype(np.float32), kind


def _kind(x: NDArray[Any], where: str, low: float) -> Kind:
    """What an array looks like; floats below zero are no pixels, but may be standardised ones."""
    if x.ndim == 2:
        return "features"
    if x.ndim == 3 and x.dtype.kind in "iu":
        raise UserError(
            f"{where}: images have shape {x.shape}; give (n, height, width, channels) or (n, features), "
            "so write x[..., None] for grey images; say kind='signal' or kind='tokens' if they are no images"
        )
    return "image" if x.ndim == 4 and not (x.dtype.kind == "f" and low < 0) else "signal"


def _pixels(x: NDArray[Any], where: str, low: float, high: float) -> NDArray[np.generic]:
    if x.ndim != 4:
        raise UserError(f"{where}: images have shape {x.shape}; give (n, height, width, channels)")
    if x.shape[1] in (1, 3) and x.shape[3] > 4:
        raise UserError(f"{where}: images have shape {x.shape}; put the channels last, (n, height, width, channels)")
    if x.dtype.kind == "f":
        if low < 0 or high > 1:
            raise UserError(
                f"{where}: float pixels run from {low} to {high}; scale them to [0, 1], give uint8, "
                "or say kind='signal' if they were standardised"
            )
        return x.astype(np.float32)
    if low < 0 or high > 255:
        raise UserError(f"{where}: whole-number pixels run from {low} to {high}; give 0 to 255")
    return x.astype(np.uint8, copy=False)
