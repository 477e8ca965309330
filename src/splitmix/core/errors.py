"""Mistakes a user can mend: each is one sentence that says what was given, what is allowed and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints its sentence and exits with 2."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that is in no table, with the nearest known name.

    >>> print(unknown("task", "digts", ["mini", "digits"]))
    unknown task 'digts'; did you mean 'digits'? Known: digits, mini
    """
    names = sorted(known)
    near = get_close_matches(given, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} '{given}'; {hint}Known: {', '.join(names)}")
