"""How data of one's own is read: the few things that cannot be told by looking at it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from splitmix.core.errors import UserError, shown, unknown
from splitmix.core.inputs import Kind

LARGEST_SIDE = 2048  # of an image that a net takes
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Reading:
    """Settings of `data`; what is not given is found by looking."""

    label: str | None = None  # column that names the class
    domain: str | None = None  # column that names the domain
    without: tuple[str, ...] = ()  # columns to leave out
    size: tuple[int, int, int] | None = None  # height, width and channels of pictures
    kind: Kind | None = None  # what arrays are
    test_ratio: float = 0.2  # split off for testing, where there is no test part
    seed: int = 0  # by which that is drawn


def parse_reading(given: Mapping[str, Any]) -> Reading:
    """The settings as a user writes them, such as {size=64} or {label="species", without=["id"]}.

    >>> parse_reading({"size": 64}).size, parse_reading({"size": "28x28x1"}).size
    ((64, 64, 3), (28, 28, 1))
    """
    known = {field.name for field in fields(Reading)} - {"seed"}
    for key in given:
        if key not in known:
            raise unknown("setting of data", str(key), known)
    for key in ("label", "domain"):
        if not isinstance(given.get(key, ""), str):
            raise UserError(f"{key} of data is {shown(given[key])}; give the name of a column")
    kind, ratio, without = given.get("kind"), given.get("test_ratio", 0.2), given.get("without", ())
    if kind not in (None, *KINDS):
        raise unknown("kind of data", str(kind), KINDS)
    if not isinstance(ratio, float) or not 0 < ratio < 1:
        raise UserError(f"test_ratio of data is {shown(ratio)}; give a share such as 0.2")
    if isinstance(without, str) or not all(isinstance(name, str) for name in without):
        raise UserError(f'without of data is {shown(without)}; give a list of columns, such as ["id"]')
    size = None if "size" not in given else parse_size(given["size"])
    return Reading(given.get("label"), given.get("domain"), tuple(without), size, kind, ratio)


def parse_size(given: Any) -> tuple[int, int, int]:
    """Pixels of a side, or HEIGHTxWIDTHxCHANNELS."""
    sides = re.fullmatch(r"(\d{1,4})x(\d{1,4})x([13])", f"{given}x{given}x3" if type(given) is int else str(given))
    found = tuple(map(int, sides.groups())) if sides else ()
    if len(found) != 3 or not all(0 < side <= LARGEST_SIDE for side in found):
        raise UserError(
            f"size of data is {shown(given)}; give the pixels of a side, up to {LARGEST_SIDE}, or "
            "HEIGHTxWIDTHxCHANNELS with 1 or 3 channels, such as 28x28x1"
        )
    return found[0], found[1], found[2]
