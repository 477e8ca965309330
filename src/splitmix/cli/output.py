"""How commands print: sentences, tables and JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from splitmix.report.tables import Column, Table, show


def say(text: str) -> None:
    """Print a sentence as it is: no wrapping, no markup."""
    Console().print(text, highlight=False, soft_wrap=True, markup=False)


def note(text: str, style: str | None = None) -> None:
    """Say something beside the results, on standard error."""
    Console(stderr=True).print(text, style=style, highlight=False, soft_wrap=True, markup=False)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=1))


def show_table(table: Table) -> None:
    """Print a table."""
    show(table, Console())


def show_rows(
    title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], as_json: bool, caption: str = ""
) -> None:
    """Print rows as a table, or as a JSON list."""
    if as_json:
        show_json(list(rows))
    else:
        show_table(Table(title, columns, [[row[column.key] for column in columns] for row in rows], caption))
