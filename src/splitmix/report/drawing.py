"""What our pictures are made of: paper, lines, labels, colours; calm, and safe for all eyes."""

import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.width import Width, parse_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = list[tuple[float, float]]
P = ParamSpec("P")
T = TypeVar("T")

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6d31", "#666666")  # safe for all eyes
INK, GREY, LINE = "#1b1f24", "#5c6570", "#e4e7eb"
PALE = "#b4bbc4"
_RAMP = ((122, 199, 190), (34, 128, 184), (12, 29, 92))  # light green, blue, dark blue: narrow to wide
_INCHES = 5.6  # wide: letters of 9 points become 16 px high at 700 px, and 8 px on a phone
_STYLE = {
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.labelcolor": GREY,
    "axes.edgecolor": PALE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titlecolor": GREY,
    "grid.color": LINE,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
    "svg.hashsalt": "splitmix",  # the same ids each time
}


class NothingToDrawError(UserError):
    """The run did not record what a picture needs."""


@dataclass(frozen=True)
class Picture:
    """A drawn figure and its short name."""

    name: str
    figure: "Figure"

    def _repr_html_(self) -> str:
        return f'<div style="max-width: 44em">{self.svg()}</div>'

    @property
    def alt(self) -> str:
        """What it shows, in words: its title and the line below it."""
        return "; ".join(" ".join(text.get_text().split()) for text in self.figure.texts[:2])

    @cached_property
    def drawn(self) -> bytes:
        """The file, as Matplotlib writes it."""
        with _style():
            return rendered(self.figure, "svg")

    def svg(self) -> str:
        """An `<svg>` element to put into a page; ids begin with the picture's name, so that pictures do not mix."""
        drawn = self.drawn.decode()
        drawn = drawn[drawn.index("<svg") :]
        drawn = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", drawn, flags=re.DOTALL)
        box = re.search(r'viewBox="[^"]*"', drawn)
        head = f'<svg {box.group() if box else ""} role="img" aria-label="{escape(self.alt)}" stroke-linejoin="round">'
        body = drawn[drawn.index(">") + 1 :].replace("xlink:href", "href")
        return head + re.sub("<[^>]*>", self._own_ids, body)

    def _own_ids(self, tag: re.Match[str]) -> str:
        return re.sub(r'( id="| href="#|url\(#)', rf"\g<1>{self.name}-", tag.group())


def save(picture: Picture, path: Path) -> None:
    """Write a picture whole or not at all, as .png (1120 pixels wide), .svg or .pdf."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise UserError(f"cannot draw into '{path}'; choose a name that ends in .png, .svg or .pdf")
    with _style():
        write_atomically(path, picture.drawn if kind == "svg" else rendered(picture.figure, kind))


def drawn_pictures(draws: Iterable[Callable[[], Picture]]) -> list[Picture]:
    """The pictures for which there is enough to draw."""
    pictures = []
    for draw in draws:
        with suppress(NothingToDrawError):
            pictures.append(draw())
    return pictures


@contextmanager
def _style() -> Iterator[None]:
    """Our style alone, whatever the user's own matplotlib settings are."""
    try:
        from matplotlib import style
    except ImportError as missing:
        raise UserError('pictures need matplotlib; run: pip install "splitmix[plots]"') from missing
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a browser has more fonts
        yield


def in_style(draw: Callable[P, T]) -> Callable[P, T]:
    """A function that draws in our style."""

    @wraps(draw)
    def styled(*args: P.args, **settings: P.kwargs) -> T:
        with _style():
            return draw(*args, **settings)

    return styled


def rendered(figure: "Figure", kind: str) -> bytes:
    """The bytes of a file of this kind; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def paper(
    title: str,
    subtitle: str,
    inches: float,
    rows: int = 1,
    columns: int = 1,
    *,
    share_x: bool = True,
    share_y: bool = True,
) -> tuple["Figure", list["Axes"]]:
    """A white sheet with a bold title, a grey text below it, and panels that share their scales."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines, below = textwrap.wrap(title, 60), textwrap.wrap(subtitle, 84, break_on_hyphens=False)
    more = 0.16 * max(0, len(below) - 1)
    inches += more
    head = (0.36 + 0.19 * len(lines) + more) / inches
    engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06, rect=(0, 0, 1, 1 - head))
    figure = Figure(figsize=(_INCHES, inches), layout=engine)
    figure.text(0.018, 1 - 0.1 / inches, "\n".join(lines), va="top", fontsize=10.5, fontweight="bold")
    figure.text(0.018, 1 - (0.13 + 0.19 * len(lines)) / inches, "\n".join(below), va="top", color=GREY)
    panels = list(figure.subplots(rows, columns, sharex=share_x, sharey=share_y, squeeze=False).flat)
    return figure, panels


def known_line(xs: Sequence[float], shares: Sequence[float | None]) -> Line:
    """A line through the points that are known, in per cent."""
    points = zip(xs, shares, strict=True)
    return [(x, 100 * share) for x, share in points if share is not None and math.isfinite(share)]


def draw_line(axes: "Axes", line: Line, colour: str, **settings: Any) -> None:
    """Draw a line, or nothing if it has no points."""
    axes.plot([x for x, _ in line], [y for _, y in line], color=colour, **settings)


def mark_round(axes: "Axes", best: int, line: Line) -> None:
    """A thin line at the round whose weights were kept, if it is one of those drawn."""
    first, last = line[0][0], line[-1][0]
    if first <= best <= last:
        axes.axvline(best, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        left = 2 * best > first + last
        axes.annotate(
            f"round {best} was kept",
            (best, 0.02),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4 if left else 4, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            color=GREY,
        )


def label_ends(axes: "Axes", lines: Sequence[tuple[str, Line]], colours: Sequence[str]) -> None:
    """Write at the right end of each line what it is, moved apart where labels would touch."""
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    inches = 0.66 * cast("Figure", axes.figure).get_figheight()  # not of a SubFigure: we make none
    places = _apart([line[-1][1] for _, line in lines], gap=(high - low) * 11.5 / 72 / inches)
    axes.set_ylim(min(low, *places), max(high, *places))
    end, step = max(line[-1][0] for _, line in lines), (right - left) * 0.02
    axes.set_xlim(left, end + step if any(len(line) > 1 for _, line in lines) else right)
    for (text, line), place, colour in zip(lines, places, colours, strict=True):
        x, y = line[-1]
        axes.plot([x, end + step, end + 2.5 * step], [y, y, place], color=colour, linewidth=0.8, clip_on=False)
        axes.text(end + 3 * step, place, text, va="center")


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """The same values, moved as little as possible so that any two differ by `gap`; their order is kept.

    >>> _apart([5.0, 1.0, 1.0], gap=2)
    [5.0, 0.0, 2.0]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    blocks: list[tuple[float, int]] = []  # middle and number of members
    for i in order:
        middle, count = values[i], 1
        while blocks and middle - blocks[-1][0] < gap * (count + blocks[-1][1]) / 2:
            below, members = blocks.pop()
            middle, count = (middle * count + below * members) / (count + members), count + members
        blocks.append((middle, count))
    places = [middle + gap * (i - (count - 1) / 2) for middle, count in blocks for i in range(count)]
    return [place for _, place in sorted(zip(order, places, strict=True))]


def width_ticks(axes: "Axes", widths: Sequence[str], axis: str = "x") -> None:
    """Mark the widths, from the largest down, where there is room."""
    kept: list[str] = []
    for width in sorted(widths, key=parse_width, reverse=True):
        if not kept or parse_width(kept[-1]) - parse_width(width) >= Width(1, 12):
            kept.append(width)
    axes.set(**{f"{axis}ticks": [float(parse_width(w)) for w in kept], f"{axis}ticklabels": kept})


def per_cent_ticks(axes: "Axes") -> None:
    """Round numbers on the y axis, none of them above 100 %."""
    axes.locator_params(axis="y", steps=[1, 2, 5, 10], nbins=8)
    low, high = axes.get_ylim()
    ticks = [float(tick) for tick in axes.get_yticks() if low <= tick <= min(high, 100)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(low, high)


def legend(figure: "Figure", names: Sequence[str], colours: Sequence[str]) -> None:
    """Say below the panels what the colours mean."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour) for colour in colours]
    columns = max(1, 66 // (max(map(len, names)) + 6))
    figure.legend(handles, names, loc="outside lower left", ncols=columns, frameon=False, handlelength=1.2)


def shade(i: int, count: int) -> str:
    """Colour i of `count` from light to dark."""
    place = 2 * (i / (count - 1) if count > 1 else 1.0)
    low = min(int(place), 1)
    mixed = (a + (b - a) * (place - low) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True))
    return "#" + "".join(f"{round(value):02x}" for value in mixed)


def hue(names: Sequence[str], name: str) -> str:
    """The colour of one name among all."""
    return COLOURS[names.index(name) % len(COLOURS)]


def short(name: str, most: int = 16) -> str:
    """A name that fits beside a line."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
