"""Data sets that are objects: arrays, data sets of PyTorch, and those of Hugging Face and pandas by their looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError, printable
from splitmix.core.inputs import Inputs, Lazy, spread
from splitmix.core.inputs.pictures import fitted
from splitmix.data.domain import Domain, make_domain
from splitmix.data.doors.pictures import LOOKED_AT, usual_size
from splitmix.data.doors.tables import Roles, Table, domains_of_tables, numbered, roles
from splitmix.data.partition import Rows
from splitmix.data.reading import Reading

MOST_MEMORY = 8 << 30  # bytes of a data set that is read at once


@dataclass(frozen=True)
class Labelled:
    """Samples with a label each, and the names of the classes where they are known."""

    x: Inputs
    y: Rows
    class_names: tuple[str, ...] = ()
    domains: Sequence[str] = ()  # of each sample, where a column names them


def is_object(source: Any) -> bool:
    """Whether this can be looked into: something with a length and items."""
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, str | bytes)


def read_object(source: Any, how: Reading) -> tuple[Domain, ...]:
    """A data set; {"train": ..., "test": ...}; or several data sets by the names of their domains."""
    _check_arrays(source)
    source, names = _without_words(_read_words(source, how))
    domains = _read(source, how)
    return tuple(replace(domain, class_names=names) for domain in domains) if names else domains


def _check_arrays(source: Any) -> None:
    """Refuse arrays that are given in another way than as (x, y) or (x, y, x_test, y_test)."""
    given = "an array alone" if hasattr(source, "ndim") and not _is_columns(source) else ""
    if isinstance(source, tuple) and len(source) not in (2, 4) and all(hasattr(part, "ndim") for part in source):
        given = f"a tuple of {len(source)} arrays"
    if isinstance(source, Mapping) and {"x", "y"} <= source.keys():
        given = "a dict with x and y in the place of domains"
    if given:
        raise UserError(f"{given} is no data with labels; give a tuple (x, y), or (x, y, x_test, y_test)")


def _read_words(source: Any, how: Reading) -> Any:
    """The same with arrays in the place of data sets of PyTorch whose labels are words."""
    if isinstance(source, Mapping):
        return {name: _read_words(part, how) for name, part in source.items()}
    plain = _is_arrays(source) or _is_columns(source) or not is_object(source) or not len(source)
    return source if plain or not isinstance(_item(source, 0, how)[1], str) else _arrays(source, how)


def _without_words(source: Any) -> tuple[Any, tuple[str, ...]]:
    """The same with numbers where arrays have words for labels, and the names that these are, in order."""
    held = source if isinstance(source, Mapping) else {"": source}
    words = [list(map(str, y)) for part in held.values() if _is_arrays(part) for y in part[1::2] if _are_words(y)]
    if not words or not all(_is_arrays(part) and all(map(_are_words, part[1::2])) for part in held.values()):
        return source, ()
    names, places = numbered([word for labels in words for word in labels], "the data set")
    sizes = np.cumsum([len(labels) for labels in words])[:-1]
    labels = iter(np.split(places, sizes))
    made = {
        name: tuple(next(labels) if place % 2 else array for place, array in enumerate(part))
        for name, part in held.items()
    }
    return made if isinstance(source, Mapping) else made[""], names


def _are_words(labels: Any) -> bool:
    return len(labels) > 0 and all(isinstance(label, str) for label in labels)


def _read(source: Any, how: Reading) -> tuple[Domain, ...]:
    if not isinstance(source, Mapping):
        return _domains("data", [source], how)
    if not source:
        raise UserError("there are no domains; give at least one")
    if "train" in source and set(source) <= {"train", "test"}:
        return _domains("data", [source[part] for part in ("train", "test") if part in source], how)
    return tuple(domain for name, held in source.items() for domain in _domains(str(name), [held], how))


def _domains(name: str, parts: Sequence[Any], how: Reading) -> tuple[Domain, ...]:
    """The domains of a training part, and a test part if there is one."""
    if all(_is_table(part, how) for part in parts):
        names = [name] if len(parts) == 1 else ["train", "test"]
        tables = {part: _table(held, how) for part, held in zip(names, parts, strict=True)}
        return domains_of_tables(name, tables, how)
    found = [_labelled(part, how) for part in parts]
    if any(part.class_names != found[0].class_names for part in found):
        raise UserError(f"train and test of '{name}' have other names of classes; give both the same")
    made = []
    for domain in sorted(set(found[0].domains)) or [name]:
        arrays = [array for part in found for array in _only(part, domain)]
        if _is_arrays(parts[0]) and len(parts[0]) == 4:
            arrays = [_plain(array) for array in parts[0]]
        made.append(make_domain(domain, arrays, test_ratio=how.test_ratio, seed=how.seed, kind=how.kind))
    return tuple(replace(domain, class_names=found[0].class_names) for domain in made)


def _only(part: Labelled, domain: str) -> tuple[Inputs, Rows]:
    """Samples and labels of one domain, or of all where no column names them."""
    if not part.domains:
        return part.x, part.y
    rows = np.flatnonzero(np.array(part.domains) == domain)
    return part.x[rows], part.y[rows]


def _labelled(source: Any, how: Reading) -> Labelled:
    if _is_arrays(source):
        return Labelled(_plain(source[0]), _plain(source[1]))
    if not _is_columns(source):
        return _items(source, how)
    return _pictures(source, how) if _picture_column(source) else _lists(source, how)


def _is_arrays(source: Any) -> bool:
    return isinstance(source, tuple | list) and len(source) in (2, 4) and all(hasattr(x, "__len__") for x in source)


def _plain(x: Any) -> Any:
    return x.detach().cpu().numpy() if hasattr(x, "detach") else x


# --- Hugging Face and pandas: columns -----------------------------------------------------------------------------


def _is_columns(source: Any) -> bool:
    return _has_features(source) or (hasattr(source, "columns") and hasattr(source, "iloc"))


def _has_features(source: Any) -> bool:
    return isinstance(getattr(source, "features", None), Mapping) and hasattr(source, "column_names")


def _columns(source: Any) -> list[str]:
    return list(source.column_names if _has_features(source) else source.columns)


def _features(source: Any) -> Mapping[str, Any]:
    """What a data set of Hugging Face says of its columns."""
    return source.features if _has_features(source) else {}


def _picture_column(source: Any) -> str | None:
    return next((name for name, feature in _features(source).items() if type(feature).__name__ == "Image"), None)


def _is_table(source: Any, how: Reading) -> bool:
    return _is_columns(source) and _picture_column(source) is None and not _holds_lists(source, how)


def _holds_lists(source: Any, how: Reading) -> bool:
    """Whether each row is one list, of tokens or of a signal: there is no other column but its label."""
    features = roles(_columns(source), "the data set", how).features
    return len(features) == 1 and len(source) > 0 and np.ndim(_values(source, features[0])[0]) > 0


def _values(source: Any, name: str) -> list[Any]:
    return list(source[name][:])


def _table(source: Any, how: Reading) -> Table:
    """A data set of numbers; a column of other things is named."""
    where = "the data set"
    role = roles(_columns(source), where, how)
    names, labels = _labels(source, role.label)
    columns = [_numbers(_values(source, name), f"{where}: column '{name}'") for name in role.features]
    numbers = np.stack(columns, 1)
    return Table(where, role.features, numbers, [names[label] for label in labels], _domain_names(source, role))


def _lists(source: Any, how: Reading) -> Labelled:
    """A data set whose rows are lists of one shape, such as tokens."""
    role = roles(_columns(source), "the data set", how)
    names, labels = _labels(source, role.label)
    (column,) = role.features
    try:
        x = np.asarray(_values(source, column))
    except ValueError:
        raise UserError(
            f"the data set: the lists of column '{column}' are not equally long; pad or cut them to one length"
        ) from None
    return Labelled(x, labels, names, _domain_names(source, role))


def _domain_names(source: Any, role: Roles) -> list[str]:
    return [] if role.domain is None else [str(value) for value in _values(source, role.domain)]


def _numbers(values: Any, where: str) -> NDArray[np.float64]:
    """A column of numbers, or a sentence for what is none."""
    try:
        numbers = np.asarray(values, np.float64)  # None becomes NaN
    except (TypeError, ValueError):
        raise UserError(f"{where} holds what is no number; leave it out by data={{without=[...]}}") from None
    if numbers.ndim != 1:
        raise UserError(
            f"{where} holds lists; they are read where they are the only column besides the label, so leave the others "
            "out by data={without=[...]}"
        )
    odd = np.flatnonzero(~np.isfinite(numbers))
    if len(odd):
        raise UserError(f"{where} has no number in row {odd[0]}; give one, or drop the row")
    return numbers


def _labels(source: Any, column: str) -> tuple[tuple[str, ...], Rows]:
    """The names of the classes, and each row's: as the data set names them, or else as they are found."""
    values, names = _values(source, column), getattr(_features(source).get(column), "names", None)
    for row, value in enumerate(values):
        if value is None or value != value or (names and not 0 <= value < len(names)):
            raise UserError(f"the data set: row {row} has no label in column '{column}'; give it, or drop the row")
    if names:
        return tuple(printable(str(name))[:100] for name in names), np.array(values, np.int64)
    return numbered([str(value) for value in values], "the data set")


@dataclass(frozen=True)
class Decoded(Lazy):
    """Pictures of data sets that decode them when they are asked for."""

    sets: tuple[tuple[Any, str], ...]  # data sets, and the column of each
    rows: NDArray[np.int64]  # (n, 2): which data set, which row
    size: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.size

    def __getitem__(self, rows: Any) -> "Decoded":
        return replace(self, rows=self.rows[rows])

    def take(self, rows: Rows) -> NDArray[np.uint8]:
        return np.stack([fitted(_picture(self.sets[i], row), self.size) for i, row in self.rows[rows]])

    def joined(self, others: Sequence[Any]) -> "Decoded":
        sets, rows = list(self.sets), [self.rows]
        for other in others:
            rows.append(other.rows + np.array([len(sets), 0]))
            sets += other.sets
        return replace(self, sets=tuple(sets), rows=np.concatenate(rows))


def _pictures(source: Any, how: Reading) -> Labelled:
    column = str(_picture_column(source))
    role = roles([name for name in _columns(source) if name != column] + [column], "the data set", how)
    names, labels = _labels(source, role.label)
    some = spread(range(len(labels)), LOOKED_AT)
    size = how.size or usual_size([_picture((source, column), row).size[::-1] for row in some])
    rows = np.stack([np.zeros(len(labels), np.int64), np.arange(len(labels))], 1)
    return Labelled(Decoded(((source, column),), rows, size), labels, names, _domain_names(source, role))


def _picture(place: tuple[Any, str], row: int) -> Any:
    source, column = place
    try:
        picture = source[int(row)][column]
    except Exception as error:  # whatever the data set raises
        raise UserError(f"row {row} of the data set cannot be had ({printable(str(error))[:200]})") from None
    if not hasattr(picture, "convert"):
        raise UserError(f"row {row} of the data set has no picture in column '{column}'; give one, or drop the row")
    return picture


# --- PyTorch: (x, y) items ----------------------------------------------------------------------------------------


def _items(source: Any, how: Reading) -> Labelled:
    x, y = _arrays(source, how)
    names = getattr(source, "classes", getattr(getattr(source, "dataset", None), "classes", None))  # also of a subset
    known = isinstance(names, list | tuple) and len(set(names)) == len(names) > max(y)
    numbers = np.array(y, np.int64)
    return Labelled(x, numbers, tuple(printable(str(name))[:100] for name in names) if known and names else ())


def _arrays(source: Any, how: Reading) -> tuple[NDArray[Any], list[Any]]:
    """A map-style data set, read once: its items may be made anew, and otherwise, each time they are asked for."""
    if not len(source):
        raise UserError("the data set has no items")
    first, label = _item(source, 0, how)
    if len(source) * first.nbytes > MOST_MEMORY:
        raise UserError(
            f"the data set takes more than {MOST_MEMORY:,} bytes; give a folder of pictures, which are read in batches"
        )
    x, y = np.empty((len(source), *first.shape), first.dtype), []
    for row in range(len(source)):
        sample, found = _item(source, row, how)
        if sample.shape != first.shape:
            raise UserError(
                f"item {row} of the data set has shape {sample.shape}, the first {first.shape}; give all the same, for "
                "pictures by data={size=...}"
            )
        if isinstance(found, str) != isinstance(label, str):
            raise UserError(f"item {row} of the data set has the label {found!r}, the first {label!r}; give one kind")
        x[row] = sample
        y.append(found)
    return x, y


def _item(source: Any, row: int, how: Reading) -> tuple[NDArray[Any], int | str]:
    try:
        item = source[row]
        if isinstance(item, Mapping):
            raise TypeError(f"it has the names {', '.join(map(str, item))}")
        x, y = item
        label = str(y) if isinstance(y, str) else int(y)
        if label != y:
            raise ValueError(f"{float(y):g} is a fraction")
    except Exception as error:  # whatever the data set raises
        why = printable(str(error) or type(error).__name__)[:200]
        raise UserError(f"item {row} of the data set is no (x, y) with a whole number or a word y ({why})") from None
    if hasattr(x, "convert"):  # a picture of Pillow's
        return (np.asarray(x) if how.size is None else fitted(x, how.size)), label
    sample = np.asarray(_plain(x))
    if hasattr(x, "detach") and sample.ndim == 3 and len(sample) in (1, 3) and how.kind in (None, "image"):
        sample = np.moveaxis(sample, 0, -1)  # tensors of images have their channels first
    return sample, label
