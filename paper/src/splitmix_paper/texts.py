"""How numbers are written in tables: mean and spread, with as many digits as they deserve."""

from collections.abc import Callable

MeanAndSpread = tuple[float, float | None]


def number_text(value: float | None) -> str:
    """Three digits where there are that many.

    >>> number_text(0.224194), number_text(55.7), number_text(2048.0), number_text(None)
    ('0.22', '55.7', '2048', '-')
    """
    if value is None:
        return "-"
    if value >= 100 or value == int(value):
        return f"{value:.0f}" if value >= 100 or value < 10 else f"{value:.1f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".removesuffix("0")


def signed_text(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 1) + 0.0:+.1f}"


def spread_text(value: MeanAndSpread | None, show: Callable[[float], str] = "{:.1f}".format) -> str:
    """Mean and spread.

    >>> spread_text((85.12, 0.4)), spread_text((85.0, None)), spread_text((3.728, 0.111), number_text)
    ('85.1 ± 0.4', '85.0', '3.73 ± 0.11')
    """
    if value is None:
        return "-"
    mean, wide = value
    return show(mean) if wide is None else f"{show(mean)} ± {show(wide)}"


def whole_text(value: MeanAndSpread | None) -> str:
    return "-" if value is None else f"{value[0]:.0f}"
