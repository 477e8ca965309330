"""Tables with a label column, CSV or Parquet: rows of numbers, standardised by the statistics of the training rows."""

import csv
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError, printable, shown
from splitmix.core.inputs import Scaling
from splitmix.data.domain import Domain, held_out
from splitmix.data.reading import Reading

TABLES = (".csv", ".tsv", ".parquet")
LABELS = ("label", "class", "target", "y")  # how a label column may be called
MOST_BYTES = 2 << 30  # of a CSV file
MOST_CELLS = 1 << 28  # of a table
MOST_CLASSES = 10_000
FRACTION = re.compile(r"[+-]?\d*\.0*[1-9]\d*")


@dataclass(frozen=True)
class Roles:
    """Which columns of a table are what."""

    label: str
    domain: str | None
    features: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows of numbers with a label each, and a domain each where there is a column for it."""

    where: str
    features: tuple[str, ...]
    numbers: NDArray[np.float64]  # (rows, features)
    labels: Sequence[str]
    domains: Sequence[str] = ()


def read_tables(source: Path, how: Reading) -> tuple[Domain, ...]:
    """A table, or a folder of them: `train` and `test`, or one for each domain."""
    files = [source] if source.is_file() else sorted(f for f in source.iterdir() if f.suffix.lower() in TABLES)
    stems = [file.stem for file in files]
    if len(set(stems)) < len(stems):
        raise UserError(f"'{source}' has two tables of one name; give each its own")
    readers = {".parquet": read_parquet, ".csv": read_csv, ".tsv": read_csv}
    tables = {file.stem: readers[file.suffix.lower()](file, how) for file in files}
    return domains_of_tables(source.resolve().name, tables, how)


def domains_of_tables(whole: str, tables: Mapping[str, Table], how: Reading) -> tuple[Domain, ...]:
    """All rows by their domains, with features scaled alike; rows of a table named `test` are for testing.

    Where no column names the domain, it is the table, or the `whole` of training and test tables.
    """
    first, *others = tables.values()
    for other in others:
        if other.features != first.features:
            raise UserError(f"{other.where} has other columns than {first.where}; give both the same, in one order")
    split = "train" in tables and tables.keys() <= {"train", "test"}
    names, labels = numbered([label for table in tables.values() for label in table.labels], first.where)
    numbers = np.concatenate([table.numbers for table in tables.values()])
    is_test = np.concatenate([np.full(len(t.labels), split and name == "test") for name, t in tables.items()])
    origin: list[str] = []
    for name, table in tables.items():
        named = [printable(domain[:100]) for domain in table.domains]
        origin += named or [whole if split else name] * len(table.labels)
    groups = {name: np.flatnonzero(np.array(origin) == name) for name in dict.fromkeys(sorted(origin))}
    parts = {}
    for name, rows in groups.items():
        if is_test.any():
            parts[name] = rows[~is_test[rows]], rows[is_test[rows]]
        else:
            kept, out = held_out(name, labels[rows], how.test_ratio, how.seed)
            parts[name] = rows[kept], rows[out]
    scaling = scaling_of(numbers[np.concatenate([train for train, _ in parts.values()])], first.features)
    x = scaling(numbers)
    return tuple(
        Domain(name, x[train], labels[train], x[test], labels[test], names, "features", scaling)
        for name, (train, test) in parts.items()
    )


def scaling_of(numbers: NDArray[np.float64], columns: tuple[str, ...]) -> Scaling:
    """Mean and deviation of each column; a column that never changes is only moved."""
    deviation = numbers.std(0)
    deviation[~(deviation > 1e-12 * np.abs(numbers).max(0, initial=0))] = 1
    return Scaling(tuple(numbers.mean(0).tolist()), tuple(deviation.tolist()), columns)


def numbered(labels: Sequence[str], where: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes in order, and the number of each row's class."""
    spelled = {label: normalize("NFC", label) for label in set(labels)}  # one spelling of each umlaut
    found = set(spelled.values())
    if odd := next((label for label in sorted(found) if FRACTION.fullmatch(label)), None):
        raise UserError(
            f"{where}: the label {shown(odd)} is a fraction; only classes can be learnt, so name the column of those"
        )
    if not 2 <= len(found) <= MOST_CLASSES:
        raise UserError(f"{where} has {len(found)} different labels; give 2 to {MOST_CLASSES:,} classes")
    whole = all(re.fullmatch(r"[+-]?[0-9]{1,15}", label) for label in found)
    names = sorted(found, key=lambda label: (int(label) if whole else 0, label))
    place = {name: number for number, name in enumerate(names)}
    shown_names = tuple(printable(name)[:100] for name in names)
    return shown_names, np.array([place[spelled[label]] for label in labels], np.int64)


def roles(columns: Sequence[str], where: str, how: Reading) -> Roles:
    """Which column is the label, which the domain, and which are features."""
    for name in columns:
        if columns.count(name) > 1 or not name:
            raise UserError(f"{where} has the column '{printable(name)[:60]}' twice, or one without a name")
    for given in (how.label, how.domain, *how.without):
        if given is not None and given not in columns:
            raise UserError(f"{where} has no column {shown(given)}; it has {_listed(columns)}")
    found = [name for known in LABELS for name in columns if name.lower() == known]
    if how.label is None and len(found) != 1:
        many = f"columns {' and '.join(found)}, of which one may be the label" if found else "no label column"
        raise UserError(
            f'{where} has {many}; name it, as by data={{label="{printable(columns[-1])[:60]}"}}, or call it one of '
            f"{', '.join(LABELS)}; there are {_listed(columns)}"
        )
    label = how.label or found[0]
    domain = how.domain or next((name for name in columns if name.lower() == "domain" and name != label), None)
    features = tuple(name for name in columns if name not in (label, domain, *how.without))
    if not features:
        raise UserError(f"{where} has no column of numbers besides the label; it has {_listed(columns)}")
    return Roles(label, domain, features)


def _listed(columns: Sequence[str]) -> str:
    some = ", ".join(printable(name)[:40] for name in columns[:12])
    return f"{some}, ..." if len(columns) > 12 else some


def read_csv(file: Path, how: Reading) -> Table:
    """A table of text: the names of the columns in the first line, then a row a line."""
    if file.stat().st_size > MOST_BYTES:
        raise UserError(f"'{file}' has more than {MOST_BYTES:,} bytes; give a Parquet table, or several smaller tables")
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            return _parsed(text, file, how)
    except OSError as error:
        raise UserError(f"'{file}' cannot be read ({error.strerror}); check who may read it") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"'{file}' is no CSV text ({error}); save it as CSV in UTF-8") from None


def _parsed(text: Iterable[str], file: Path, how: Reading) -> Table:
    lines = iter(text)
    first = next(lines, "")
    mark = "\t" if file.suffix.lower() == ".tsv" else ";" if ";" in first and "," not in first else ","
    columns = [name.strip() for name in next(csv.reader([first], delimiter=mark), [])]
    if all(_number(name) is not None for name in columns):
        raise UserError(f"'{file}' has no names of columns in its first line; give them")
    role = roles(columns, f"'{file}'", how)
    where = {name: columns.index(name) for name in columns}
    places = [where[name] for name in role.features]
    numbers, labels, domains = array("d"), list[str](), list[str]()
    known: dict[str, str] = {}  # one text for each name, however many rows have it
    for line, row in _rows(lines, mark, len(columns), file):
        texts = [row[where[name]].strip() for name in (role.label, role.domain) if name is not None]
        if not all(texts):
            empty = role.label if not texts[0] else role.domain
            raise UserError(f"'{file}', line {line}: column '{empty}' is empty; give a value, or drop the row")
        labels.append(known.setdefault(texts[0], texts[0]))
        if role.domain is not None:
            domains.append(known.setdefault(texts[1], texts[1]))
        try:
            values = [float(row[place]) for place in places]
        except ValueError:
            values = [math.nan]
        if not all(map(math.isfinite, values)):
            raise _no_number(file, f"line {line}", {name: row[where[name]] for name in role.features})
        numbers.extend(values)
        if len(numbers) > MOST_CELLS:
            raise UserError(f"'{file}' has more than {MOST_CELLS:,} cells; give fewer rows or columns")
    if not labels:
        raise UserError(f"'{file}' has no rows")
    return Table(f"'{file}'", role.features, np.array(numbers).reshape(len(labels), -1), labels, domains)


def _rows(lines: Iterator[str], mark: str, count: int, file: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=mark)
    for row in reader:
        if row and len(row) != count:
            raise UserError(
                f"'{file}', line {reader.line_num + 1}: {len(row)} cells, but there are {count} columns; mend the "
                "row, or drop it"
            )
        if row:
            yield reader.line_num + 1, row


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _no_number(file: Path, line: str, cells: Mapping[str, str]) -> UserError:
    name, text = next((name, text) for name, text in cells.items() if _number(text) is None)
    what = shown(text) if text.strip() else "an empty cell"
    hint = "write decimals with a point" if _number(text.replace(",", ".")) is not None else "give one, drop the row"
    return UserError(
        f"'{file}', {line}, column '{printable(name)[:60]}': {what} is no number; {hint}, or leave the column out by "
        f"data={{without=[...]}}"
    )


def read_parquet(file: Path, how: Reading) -> Table:
    """A Parquet table, column by column."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Parquet tables need pyarrow; run: pip install 'splitmix[tables]', or give a CSV table"
        ) from None
    try:
        table = parquet.ParquetFile(file)
        if table.metadata.num_rows * table.metadata.num_columns > MOST_CELLS:
            raise UserError(f"'{file}' has more than {MOST_CELLS:,} cells; give fewer rows or columns")
        role = roles(table.schema_arrow.names, f"'{file}'", how)

        def column(name: str) -> Any:
            return table.read(columns=[name]).column(0).combine_chunks()

        numbers = [_column(column(name), name, file) for name in role.features]
        labels = _texts(column(role.label), role.label, file)
        domains = [] if role.domain is None else _texts(column(role.domain), role.domain, file)
    except UserError:
        raise
    except (OSError, ValueError, LookupError, MemoryError, ArithmeticError, arrow.ArrowException) as error:
        why = printable(str(error))[:200]
        raise UserError(f"'{file}' cannot be read as Parquet ({why}); save it anew") from None
    if not labels:
        raise UserError(f"'{file}' has no rows")
    return Table(f"'{file}'", role.features, np.stack(numbers, 1), labels, domains)


def _column(values: Any, name: str, file: Path) -> NDArray[np.float64]:
    from pyarrow import types

    kind = values.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        first = next((str(value) for value in values.to_pylist() if value is not None), "")
        raise _no_number(file, f"row {1}", {name: f"{first[:40]} ({kind})"})
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)  # a null becomes NaN
    odd = np.flatnonzero(~np.isfinite(numbers))
    if len(odd):
        raise _no_number(file, f"row {odd[0] + 1}", {name: str(values[int(odd[0])].as_py() or "")})
    return numbers


def _texts(values: Any, name: str, file: Path) -> list[str]:
    found = values.to_pylist()
    if None in found:
        row = found.index(None) + 1
        raise UserError(f"'{file}', row {row}: column '{name}' is empty; give a value, or drop the row")
    return [str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in found]
