"""Every exhibit of `exhibits.toml`: the paper's tables and figures, and a few that it does not have."""

import tomllib
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any

from splitmix.core.errors import UserError, unknown
from splitmix_paper.exhibit import Exhibit


def _exhibit(name: str, kind: str, printed: Any = None, **entry: Any) -> Exhibit:
    """An exhibit as `exhibits.toml` lists it, of a class in this folder."""
    module, _, called = kind.partition(".")
    made: type[Exhibit] = getattr(import_module(f"{__name__}.{module}"), called)
    return made(name, **entry, printed=made.read_printed(printed) if printed else {})


_FILE = files("splitmix_paper") / "exhibits.toml"
EXHIBITS = {name: _exhibit(name, **entry) for name, entry in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}


def in_order_of_the_paper() -> list[Exhibit]:
    """Tables by number, then figures, then what the paper does not have."""
    kinds = ("Table", "Figure", "Beyond")

    def order(exhibit: Exhibit) -> tuple[int, int, str]:
        kind, number, *_ = exhibit.place.split()
        return kinds.index(kind), int("".join(filter(str.isdigit, number)) or 0), exhibit.name

    return sorted(EXHIBITS.values(), key=order)


def find_exhibits(names: Sequence[str]) -> list[Exhibit]:
    """The exhibits of these names, or all of them for `all`, in the order in which they are run."""
    for name in names:
        if name != "all" and name not in EXHIBITS:
            raise unknown("entry", name, (*EXHIBITS, "all"))
    if not names:
        raise UserError("no entry is named; give some names of `splitmix paper list`, or all")
    return [exhibit for name, exhibit in EXHIBITS.items() if name in names or "all" in names]
