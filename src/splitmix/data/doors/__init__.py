"""Data of one's own, whatever it is: `read` finds the door that takes it, and makes domains of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitmix.core.errors import UserError
from splitmix.data.domain import Domain
from splitmix.data.doors.objects import is_object, read_object
from splitmix.data.doors.pictures import read_pictures
from splitmix.data.doors.tables import TABLES, read_tables
from splitmix.data.folder import read_arrays
from splitmix.data.reading import Reading, parse_reading

PLAIN = Reading()


@dataclass(frozen=True)
class Door:
    """A kind of data: what it is, how it is known, and how domains are made of it."""

    about: str
    takes: Callable[[Any], bool]
    read: Callable[[Any, Reading], tuple[Domain, ...]]


def read(source: Any, how: Reading | Mapping[str, Any] = PLAIN) -> tuple[Domain, ...]:
    """The domains of a file, a folder, a data set or arrays; the first door that takes it reads it."""
    how = how if isinstance(how, Reading) else parse_reading(how)
    source = Path(source) if isinstance(source, str) else source
    if isinstance(source, Path) and not source.exists():
        raise UserError(f"there is no file or folder '{source}' to read data from")
    empty = isinstance(source, Path) and source.is_dir() and not any(source.iterdir())
    for door in () if empty else DOORS:
        if door.takes(source):
            return door.read(source, how)
    what = f"'{source}'" if isinstance(source, Path) else f"a {type(source).__name__}"
    fault = "is an empty folder" if empty else "is no data that can be read"
    raise UserError(f"{what} {fault}; give {'; '.join(door.about for door in DOORS)}")


def _holds(*suffixes: str) -> Callable[[Any], bool]:
    """Whether a path is a file with one of these endings, or a folder with such files right in it."""

    def takes(source: Any) -> bool:
        if not isinstance(source, Path):
            return False
        files = [source] if source.is_file() else source.iterdir()
        return any(file.suffix.lower() in suffixes and file.is_file() for file in files)

    return takes


def is_table(path: str) -> bool:
    """Whether this is a table, or a folder of them."""
    return Path(path).exists() and _holds(*TABLES)(Path(path))


DOORS = (
    Door(".npz files, one domain each", _holds(".npz"), read_arrays),
    Door("a CSV or Parquet table with a label column", _holds(*TABLES), read_tables),
    Door(
        "a folder of class folders with pictures",
        lambda source: isinstance(source, Path) and source.is_dir(),
        read_pictures,
    ),
    Door("arrays (x, y), a torch or Hugging Face data set, or a dict of these", is_object, read_object),
)
