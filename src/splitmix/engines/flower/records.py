"""Records as plain text: jobs and answers become JSON, and only records that are known are made of it again."""

import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from splitmix.core.errors import UserError

LONGEST = 1 << 20  # characters of one record


def to_text(record: Any, *, without: Collection[str] = ()) -> str:
    """A record as JSON, exact to the last bit of its numbers; fields named in `without` are left out."""
    return json.dumps(_plain(record, without))


def from_text(text: str, kinds: Collection[type], **given: Any) -> Any:
    """The record that a text describes, of one of these kinds (and, inside of it, of those); `given` fields are set.

    Whatever is wrong with the text is a ValueError: it may come from a stranger.
    """
    if len(text) > LONGEST:
        raise ValueError(f"a record of {len(text)} characters is too long")
    try:
        return _record(json.loads(text), {kind.__name__: kind for kind in kinds}, given)
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"it is no record ({type(error).__name__})") from None
    except UserError as error:  # a record that refuses its settings
        raise ValueError(str(error)) from None


def _plain(value: Any, without: Collection[str] = ()) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.name not in without]
        return {"is": type(value).__name__, **{name: _plain(getattr(value, name)) for name in names}}
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(f"{type(value).__name__} cannot be sent to a client; use records of numbers, text and widths")


def _record(said: Any, kinds: Mapping[str, type], given: Mapping[str, Any] | None = None) -> Any:
    kind = kinds[said["is"]]
    hints, read = _hints(kind), dict(given or {})
    for field in fields(kind):
        if field.name in said and field.name not in read:
            read[field.name] = _value(hints[field.name], said[field.name], kinds)
    unknown = said.keys() - hints.keys() - {"is"}
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if unknown or needed - read.keys():
        raise ValueError(f"{kind.__name__} has other fields")
    return kind(**read)


def _value(hint: Any, said: Any, kinds: Mapping[str, type]) -> Any:
    """What was said, if it is of the kind that the field asks for."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if said is None and NoneType in inner:
            return None
        return _value(next(kind for kind in inner if kind is not NoneType), said, kinds)
    if origin is tuple and isinstance(said, list):
        each = [inner[0]] * len(said) if len(inner) == 2 and inner[1] is ... else list(inner)
        return tuple(_value(kind, item, kinds) for kind, item in zip(each, said, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(said, dict):
        return {_value(inner[0], key, kinds): _value(inner[1], item, kinds) for key, item in said.items()}
    if hint is Fraction and isinstance(said, str):
        return Fraction(said)
    if hint is float and type(said) in (int, float):
        return float(said)
    if hint in (int, str, bool) and type(said) is hint:
        return said
    if isinstance(said, dict) and (kind := kinds[said["is"]]) and (not is_dataclass(hint) or kind is hint):
        return _record(said, kinds)
    raise ValueError(f"{str(said)[:40]!r} is no {getattr(hint, '__name__', hint)}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
