"""Options that several commands share, and how they print."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from splitmix.core.errors import UserError, unknown
from splitmix.report.tables import Column, Table, show
from splitmix.runs.progress import tell

Json = Annotated[bool, Parameter(name="--json", negative="")]
Flag = Annotated[bool, Parameter(negative="")]
Option = Annotated[list[str] | None, Parameter(name=["-o", "--option"], negative="")]
Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")]
Rates = Annotated[list[float] | None, Parameter(consume_multiple=True, negative="")]


@Parameter(name="*")
@dataclass(frozen=True)
class Machine:
    """Where clients are simulated.

    Parameters
    ----------
    workers
        Client processes; default: one per core.
    device
        cpu or cuda.
    data_root
        Folder of data sets; default: the variable SPLITMIX_DATA.
    """

    workers: int | None = None
    device: str = "cpu"
    data_root: Path | None = None

    def processes(self) -> int:
        """How many client processes to start."""
        return checked_workers(self.workers)

    def checked_device(self) -> str:
        """The device, if it is here."""
        if self.device not in ("cpu", "cuda"):
            raise unknown("device", self.device, ("cpu", "cuda"))
        import torch  # only here: commands on bundles do without it

        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda was asked for, but PyTorch sees no GPU here; use --device cpu")
        return self.device


HERE = Machine()


def checked_workers(workers: int | None) -> int:
    """How many client processes to start: as given, or one per core."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers} is too few; give 1 or more")
    from splitmix.engines.simulator import default_workers

    return workers or default_workers()


def parse_image(text: str, most: float = float("inf")) -> tuple[int, ...]:
    """HEIGHTxWIDTHxCHANNELS as numbers.

    >>> parse_image("32x32x3")
    (32, 32, 3)
    """
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdecimal() and 0 < int(part) <= most for part in parts):
        raise UserError(f"'{text}' is not the size of an image; write HEIGHTxWIDTHxCHANNELS, such as 32x32x3")
    return tuple(map(int, parts))


def say(text: str) -> None:
    """Print a sentence as it is: no wrapping, no markup."""
    tell(Console(), text, soft_wrap=True)


def note(text: str, style: str | None = None) -> None:
    """Say something beside the results, on standard error."""
    tell(Console(stderr=True), text, style=style, soft_wrap=True)


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
