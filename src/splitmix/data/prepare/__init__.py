"""Preparing: original files under the data root become the compact files that tasks read, once."""

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, Field

from splitmix import __version__
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.data.prepare.conversions import NEEDS, STAND_INS, WAYS, Original, Way
from splitmix.data.prepare.store import Watch, digest_of, fetch

Tell = Callable[[str], None]


class OriginalRecord(BaseModel):
    """An original that was used: what it was, unless it was a folder."""

    path: str
    page: str
    bytes: int | None = None
    sha256: str | None = None
    published_md5: str | None = None
    as_published: bool | None = None


class PreparedRecord(BaseModel):
    """What lies beside a prepared file: what it is, and what it was made from."""

    schema_version: int = Field(alias="schema")
    file: str
    bytes: int
    sha256: str
    made_from: list[OriginalRecord]
    terms: str
    splitmix: str


def prepare(task: str, root: Path, *, download: bool = False, tell: Tell = print, watch: Watch | None = None) -> None:
    """Make the files of a task that are not there, from originals that are there or can be fetched."""
    lacking: list[str] = []
    for name in NEEDS.get(task, ()):
        if (root / name).exists():
            continue
        way = _ready(name, root, download, tell, watch)
        if way is not None:
            _make(name, way, root, tell)
        elif name not in STAND_INS or not (root / STAND_INS[name]).exists():
            lacking.append(f"{name} is made from {_wanted(name, root)}")
    if lacking:
        raise UserError(
            f"{task} data is missing under {root}: {'; '.join(lacking)}; "
            f"put these originals below {_folder(root)}{_hint(task, download)}"
        )


def _ready(name: str, root: Path, download: bool, tell: Tell, watch: Watch | None) -> Way | None:
    """The first way whose originals are there, or may and can be fetched, which is done."""
    for way in WAYS[name]:
        absent = [original for original in way.originals if not _place(original, root)]
        if all(download and original.url for original in absent):
            for original in absent:
                target = _folder(root) / original.path
                fetch(original.url, target, md5=original.md5, watch=watch)
                tell(f"fetched {original.path}, sha256 {digest_of(target)}")
            return way
    return None


def _make(name: str, way: Way, root: Path, tell: Tell) -> None:
    """Convert, and keep a record of what was made from what beside it."""
    target = root / name
    used = [_record(original, root) for original in way.originals]
    tell(f"making {name} from {', '.join(original.path for original in way.originals[:4])}{_more(way)}")
    way.convert(_folder(root), target)
    record = PreparedRecord(
        schema=1,
        file=target.name,
        bytes=target.stat().st_size,
        sha256=digest_of(target),
        made_from=used,
        terms=way.terms,
        splitmix=__version__,
    )
    said = record.model_dump(by_alias=True, exclude_unset=True)
    write_atomically(target.with_suffix(".json"), json.dumps(said, indent=1).encode())
    odd = [entry.path for entry in used if entry.as_published is False]
    if odd:
        tell(f"note: not as published, by checksum: {', '.join(odd)}; the record beside {name} has what they are")
    tell(f"made {name}; terms of use: {way.terms}")


def _record(original: Original, root: Path) -> OriginalRecord:
    place = _place(original, root)
    if place is None or place.is_dir():
        return OriginalRecord(path=original.path, page=original.page)
    return OriginalRecord(
        path=original.path,
        page=original.page,
        bytes=place.stat().st_size,
        sha256=digest_of(place),
        published_md5=original.md5 or None,
        as_published=digest_of(place, "md5") == original.md5 if original.md5 else None,
    )


def _folder(root: Path) -> Path:
    return root / "originals"


def _place(original: Original, root: Path) -> Path | None:
    """Where an original is, whole or unpacked."""
    places = [original.path, *filter(None, [original.unpacked])]
    return next((_folder(root) / place for place in places if (_folder(root) / place).exists()), None)


def _wanted(name: str, root: Path) -> str:
    """The originals of the first way that are not there, in words."""
    absent = [original for original in WAYS[name][0].originals if not _place(original, root)]
    files = ", ".join(original.path for original in absent)
    return f"{files}, see {', '.join(dict.fromkeys(original.page for original in absent))}"


def _hint(task: str, download: bool) -> str:
    can = any(original.url for name in NEEDS[task] for way in WAYS[name] for original in way.originals)
    return ", or repeat the command with --download where there is a network" if can and not download else ""


def _more(way: Way) -> str:
    return f" and {len(way.originals) - 4} more" if len(way.originals) > 4 else ""
