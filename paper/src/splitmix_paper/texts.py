"""How numbers are written in tables, with as many digits as they deserve."""

from splitmix.report.pages import duration


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


def time_text(seconds: float | None) -> str:
    """Minutes are enough.

    >>> time_text(0), time_text(100), time_text(4000), time_text(None)
    ('-', '2 min', '1 h 7 min', '?')
    """
    if seconds is None:
        return "?"
    return "-" if not seconds else duration(max(60, 60 * round(seconds / 60))).removesuffix(" 0 s")
