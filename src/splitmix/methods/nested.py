"""What the methods of one net have in common: narrow nets are leading windows of the wide one."""

from collections.abc import Sequence

from splitmix.core.errors import UserError
from splitmix.core.types import Layout, Part, Profile, Width


def nested_layout(widths: Sequence[Width]) -> Layout:
    """One net as wide as the widest, with the others nested in it."""
    return Layout(1, widths[-1], nested=tuple(widths[:-1]))


def affordable(widths: Sequence[Width], profile: Profile) -> tuple[Width, ...]:
    """The widths that fit a client's budget, ascending.

    >>> affordable((Width(1, 4), Width(1, 2), Width(1)), Profile(client=7, budget=Width(3, 4), samples=10))
    (Fraction(1, 4), Fraction(1, 2))
    """
    fitting = tuple(width for width in widths if width <= profile.budget)
    if not fitting:
        raise UserError(
            f"client {profile.client} has budget {profile.budget}, below the narrowest width {widths[0]}; "
            "give it a larger budget or the method a narrower width"
        )
    return fitting


def leading(width: Width, widths: Sequence[Width]) -> tuple[Part, ...]:
    """The leading window that serves a width."""
    if width not in widths:
        raise UserError(f"width {width} was never trained; choose one of {', '.join(map(str, widths))}")
    return (Part(0, width),)
