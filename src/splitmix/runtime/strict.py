"""How files of a bundle are read: records without other keys or types, and JSON without what parsers disagree on."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from splitmix.core.errors import UserError, printable

PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"  # texts of a bundle may be shown in a terminal

LONGEST_NAME = 100
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=PRINTABLE)]
Text = Annotated[str, Field(max_length=2000, pattern=PRINTABLE)]


class ManifestRecord(BaseModel):
    """Part of a manifest: no other keys, no other types, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)

    def __str__(self) -> str:
        return repr(self)


def strict_json(data: bytes | str, where: str) -> Any:
    """JSON without what parsers disagree on: keys given twice, NaN, endless nesting."""
    try:
        return json.loads(
            data.decode() if isinstance(data, bytes) else data, object_pairs_hook=_unique, parse_constant=_refuse
        )
    except RecursionError:
        raise UserError(f"{where} is nested too deeply; fetch it again") from None
    except ValueError as error:  # no UTF-8, no JSON, a key twice
        raise UserError(f"{where} cannot be read ({readable(error)}); fetch it again") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def readable(said: object) -> str:
    """What a file from outside says, fit for one sentence."""
    return printable(str(said)[:200])


def what_is_wrong(error: ValidationError) -> str:
    """The first thing that does not fit, in a few words."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = readable(".".join(map(str, first["loc"])))
    said = readable(first["msg"].removeprefix("Value error, "))
    return f"{place}: {said[0].lower()}{said[1:]}" if place else said
