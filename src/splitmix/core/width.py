"""Widths and dials, exactly as they are written; nothing here needs PyTorch."""

from fractions import Fraction
from typing import Any

from splitmix.core.errors import UserError

Width = Fraction


def parse_width(value: Any) -> Width:
    """Read a width, exactly: `"3/8"`, `0.375`, `1` and `Fraction(3, 8)` are all fine.

    >>> parse_width("3/8"), parse_width(0.125), parse_width(1)
    (Fraction(3, 8), Fraction(1, 8), Fraction(1, 1))
    """
    try:
        width = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise UserError(f"'{value}' is not a width; write a fraction such as 1/8 or a number in (0, 1]") from None
    if not 0 < width <= 1:
        raise UserError(f"width {value} is outside (0, 1]; 1 is the full net, 1/8 an eighth of its channels")
    return width


def parse_dial(value: Any) -> float:
    """Read a robustness dial: 0 is most accurate on clean images, 1 most robust.

    >>> parse_dial("0.2"), parse_dial("1/5"), parse_dial(1)
    (0.2, 0.2, 1.0)
    """
    try:
        dial = float(Fraction(value))
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise UserError(f"'{value}' is not a robustness dial; give a number from 0 (accurate) to 1 (robust)") from None
    if not 0 <= dial <= 1:
        raise UserError(f"robustness dial {value} is outside [0, 1]; 0 is most accurate on clean images, 1 most robust")
    return dial


def check_multiple(width: Width, atom: Width) -> None:
    """Refuse a width that cannot be mixed from whole bases."""
    if width < atom or width % atom != 0:
        choices = ", ".join(str(atom * i) for i in range(1, int(1 / atom) + 1))
        raise UserError(f"width {width} is not a multiple of the atom {atom}; choose one of {choices}")
