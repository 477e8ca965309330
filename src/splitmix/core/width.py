"""Widths and dials, exactly as they are written; nothing here needs PyTorch."""

import math
import re
from fractions import Fraction
from typing import Any, TypeGuard

from splitmix.core.errors import UserError, shown

Width = Fraction
NARROWEST = Fraction(1, 1000)  # of no net has an even narrower one a channel
LONGEST = 20  # characters of a number, so that no text takes long to read
PLAIN = re.compile(r"[+-]?([0-9]+(/[0-9]+)?|[0-9]*\.[0-9]+|[0-9]+\.)")


def parse_number(value: Any) -> Fraction:
    """Read a number, exactly: a plain fraction or decimal of at most 20 characters, or a number as short as that.

    >>> parse_number("8/255"), parse_number(" 0.30 "), parse_number(1e-3)
    (Fraction(8, 255), Fraction(3, 10), Fraction(1, 1000))
    """
    if isinstance(value, str):
        text = value.strip() if len(value) <= 2 * LONGEST else value
        if len(text) > LONGEST or not PLAIN.fullmatch(text):
            raise ValueError(f"{shown(value)} is not a plain number of at most {LONGEST} characters")
        return Fraction(text)
    number = Fraction(str(float(value))) if not isinstance(value, int | Fraction) else Fraction(value)
    if max(abs(number.numerator), number.denominator) >= 10**LONGEST:
        raise ValueError(f"{shown(value)} has more than {LONGEST} digits")
    return number


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a setting is a number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_width(value: Any) -> Width:
    """Read a width, exactly: `"3/8"`, `0.375`, `1` and `Fraction(3, 8)` are all fine.

    >>> parse_width("3/8"), parse_width(0.125), parse_width(1)
    (Fraction(3, 8), Fraction(1, 8), Fraction(1, 1))
    """
    try:
        width = parse_number(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise UserError(
            f"{shown(value)} is not a width; write a fraction such as 1/8 or a plain number in (0, 1]"
        ) from None
    if not 0 < width <= 1:
        raise UserError(f"width {value} is outside (0, 1]; 1 is the full net, 1/8 an eighth of its channels")
    if width < NARROWEST or len(str(width)) > LONGEST:  # what is accepted can be written and read again
        raise UserError(f"width {value} is too narrow or too fine; give {NARROWEST} or more, such as 1/8")
    return width


def parse_dial(value: Any, *, there: bool = True) -> float:
    """Read a robustness dial: 0 is most accurate on clean images, 1 most robust; only 0 where a model has none.

    >>> parse_dial("0.2"), parse_dial("1/5"), parse_dial(1)
    (0.2, 0.2, 1.0)
    """
    try:
        dial = float(parse_number(value) if isinstance(value, str) else value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        dial = math.nan
    if math.isnan(dial):
        raise UserError(f"{shown(value)} is not a robustness dial; give a plain number from 0 (accurate) to 1 (robust)")
    if not 0 <= dial <= 1:
        raise UserError(
            f"robustness dial {dial:.6g} is outside [0, 1]; 0 is most accurate on clean images, 1 most robust"
        )
    if dial and not there:
        raise UserError(
            f"robust {value} was asked for, but this model has no robustness dial; "
            "give 0, or train with an adversarial objective"
        )
    return dial


def check_multiple(width: Width, atom: Width) -> None:
    """Refuse a width that cannot be mixed from whole bases."""
    if width < atom or width % atom != 0:
        choices = ", ".join(str(atom * i) for i in range(1, int(1 / atom) + 1))
        raise UserError(f"width {width} is not a multiple of the atom {atom}; choose one of {choices}")
