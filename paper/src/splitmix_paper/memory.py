"""What the last report knew of each entry, so that its numbers outlive the folders of the runs."""

import json
from pathlib import Path
from typing import NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.core.errors import UserError
from splitmix.runs.records import printable

SCHEMA = 1


class KnownRow(TypedDict):
    """One number for each seed."""

    series: str
    key: str
    seeds: dict[int, float]


class KnownRun(TypedDict):
    """A finished run, by the hash of its config."""

    label: str
    seed: int
    folder: str
    config: str


class Known(TypedDict):
    """An entry of a report, as far as it cannot be told without the runs."""

    name: str
    rows: list[KnownRow]
    runs: list[KnownRun]
    substitutes: list[str]
    seconds: float  # of all its runs
    attack: NotRequired[str]


class _Report(TypedDict):
    schema: int
    entries: list[Known]


_REPORT: TypeAdapter[_Report] = TypeAdapter(_Report)


def read_known(file: Path) -> dict[str, Known]:
    """The entries of a report by name; none if there is no report yet."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        report = _REPORT.validate_python(printable(json.loads(text)))
    except (ValueError, RecursionError, ValidationError):
        raise UserError(f"'{file}' is not the report of an earlier time; move it away to write one anew") from None
    if report["schema"] != SCHEMA:
        raise UserError(
            f"'{file}' has the schema {report['schema']}, but this version reads {SCHEMA}; move it away to write anew"
        )
    return {entry["name"]: entry for entry in report["entries"]}
