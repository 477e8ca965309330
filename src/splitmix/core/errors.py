"""Mistakes a user can mend: each is one sentence that says what was given, what is allowed and what to do."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, TypeVar

T = TypeVar("T")
MISTAKE = "splitmix: "  # how a line begins that tells a user's mistake, also from a server to who ordered a run


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints its sentence and exits with 2."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that is in no table, with the nearest known name.

    >>> print(unknown("task", "digts", ["mini", "digits"]))
    unknown task 'digts'; did you mean 'digits'? Known: digits, mini
    """
    names = sorted(known)
    near = get_close_matches(given[:60], names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} {shown(given)}; {hint}Known: {', '.join(names) or 'none'}")


def name_of(value: object) -> str:
    """The name in what was given as `name` or as {name=..., settings}; checked by nobody yet."""
    return str(value.get("name") if isinstance(value, Mapping) else value)


def by_name(kind: str, value: str | Mapping[str, Any], known: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The name of one in a table, and its own settings, of what was given as `name` or as {name=..., settings}.

    >>> by_name("server", {"name": "momentum", "beta": 0.5}, ["mean", "momentum"])
    ('momentum', {'beta': 0.5})
    """
    options: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
    name, names = options.pop("name", None), sorted(known)
    if not isinstance(name, str):
        article = "an" if kind[0] in "aeiou" else "a"
        raise UserError(f"{article} {kind} needs a name, got {value!r}; choose one of {', '.join(names)}")
    if name not in names:
        raise unknown(kind, name, names)
    return name, options


def make_named(kind: str, name: str, make: Callable[..., T], options: Mapping[str, Any], more: Iterable[str] = ()) -> T:
    """What a table's entry makes of its own settings, if it takes these; a sentence names `more` that it could have.

    >>> make_named("server", "half", lambda share=0.5: share, {"share": 0.1})
    0.1
    """
    taken = signature(make).parameters.values()
    known = [*(one.name for one in taken), *more]
    for key in options if all(one.kind is not Parameter.VAR_KEYWORD for one in taken) else ():
        if key not in known:
            raise unknown(f"setting of {kind} {name}", str(key), known)
    try:
        return make(**options)
    except TypeError as error:
        raise UserError(f"{kind} {name} does not take these settings, {dict(options) or 'none'}: {error}") from None


def printable(text: str) -> str:
    """Text from outside, fit for a terminal: each space is plain, what cannot be printed becomes U+FFFD.

    >>> printable("red\\n\\x1b[31m")
    'red \ufffd[31m'
    """
    if text.isprintable():  # nearly always
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def in_a_line(mistake: Exception) -> str:
    """The line that tells a mistake."""
    return MISTAKE + printable(" ".join(str(mistake).split()))


def shown(value: object, most: int = 60) -> str:
    """What someone gave, in quotes and fit for one sentence: printable, and cut where it is long.

    >>> shown("wide"), shown(10**9, most=4)
    ("'wide'", "'1000...'")
    """
    try:
        text = value if isinstance(value, str) else str(value)
    except (ValueError, RecursionError):  # an endless number or list
        text = type(value).__name__
    return f"'{printable(text[:most])}{'...' if len(text) > most else ''}'"
