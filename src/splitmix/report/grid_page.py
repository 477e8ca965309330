"""A grid for people: its table, its pictures, and what its numbers do not say."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from splitmix.core.width import parse_width
from splitmix.report import drawing
from splitmix.report.drawing import COLOURS, NothingToDrawError, Picture, in_style, paper, shade
from splitmix.report.figures import width_in_words
from splitmix.report.tables import Column, Table, percent
from splitmix.runs.measure.grid import GridRecord
from splitmix.runs.measure.intervals import INTERVAL
from splitmix.runs.measure.masking import MaskingRecord, MaskingRow

_dial = "{:g}".format
WEAK = (
    "Only a weak attack was run, so the true robust accuracy may be much lower; "
    "measure it with --attack pgd20 or autoattack."
)
NOT_ATTACKED = "No attack was run, so nothing is said about robustness; measure it with --attack pgd20."


@dataclass(frozen=True)
class TradeoffPoint:
    """A model, or a dial of one, and what it reaches."""

    name: str
    clean: float
    attacked: float


def grid_table(grid: GridRecord) -> Table:
    """A row for each width and dial; the attack's full name stands below."""
    columns = [
        Column("width", "width"),
        Column("robust", "dial", _dial),
        Column("clean", "clean %", percent),
        Column("clean_interval", "95 % interval", _interval, spare=True),
    ]
    if grid["attack"]:
        columns.append(Column("attacked", "under attack %", percent))
        columns.append(Column("attacked_interval", "95 % interval", _interval, spare=True))
    rows = [
        [
            *(row["width"], row["robust"], row["clean"], (row["clean_low"], row["clean_high"])),
            *((row["attacked"], (row["attacked_low"], row["attacked_high"])) if grid["attack"] else ()),
        ]
        for row in grid["rows"]
    ]
    return Table("Accuracy by width and robustness dial", columns, rows, " ".join(grid_notes(grid)))


def grid_notes(grid: GridRecord) -> Iterator[str]:
    """How the numbers were made, in sentences."""
    yield f"Means over {grid['clients']} clients, {grid['samples']:,} {grid['split']} images in all."
    if grid["attack"]:
        yield f"Attack: {grid['attack']}; white box, on the mix and at the dial that is served."
    yield f"Interval: {INTERVAL}."
    yield from order_note(grid)
    yield f"Norms use {grid['norm']} statistics."
    if grid["weak"] or not grid["attack"]:
        yield WEAK if grid["weak"] else NOT_ATTACKED


def order_note(grid: GridRecord) -> Iterator[str]:
    """Whether a grid is in the order one hopes for; nothing if it has one row."""
    steps = list(_steps(grid))
    other = [text for text, gain, _ in steps if gain < 0]
    beyond = [text for text, gain, room in steps if gain < -room]
    if not steps:
        return
    if not other:
        yield "Each step is as it should be: more robust and less accurate with the dial, better with the width."
        return
    yield f"{len(other)} of {len(steps)} steps of dial or width go the wrong way, {len(beyond)} beyond the interval" + (
        f": {'; '.join(beyond)}." if beyond else "."
    )


def _steps(grid: GridRecord) -> Iterator[tuple[str, float, float]]:
    """Steps between neighbours: what happens, how far in the hoped-for direction, and how far the interval reaches."""
    kinds = ("clean", *(["attacked"] if grid["attack"] else []))
    for width, rows in _curves(grid).items():
        for one, two in pairwise(rows):
            for kind, sign in zip(kinds, (-1, 1), strict=False):
                gain, room = sign * (two[kind] - one[kind]), one[f"{kind}_high"] - one[kind]
                yield f"{kind} at width {width}, dial {_dial(one['robust'])} to {_dial(two['robust'])}", gain, room
    for dial in dict.fromkeys(row["robust"] for row in grid["rows"]):
        column = [row for rows in _curves(grid).values() for row in rows if row["robust"] == dial]
        for one, two in pairwise(column):
            for kind in kinds:
                gain, room = two[kind] - one[kind], one[kind] - one[f"{kind}_low"]
                yield f"{kind} at dial {_dial(dial)}, width {one['width']} to {two['width']}", gain, room


def grid_pictures(grid: GridRecord) -> Iterator[Callable[[], Picture]]:
    """What can be drawn of a grid."""
    if grid["attack"]:
        yield partial(ra_sa, grid)
    yield partial(by_dial, grid)


def ra_sa(grid: GridRecord) -> Picture:
    """Clean accuracy against accuracy under attack: a curve for each width, a point for each dial."""
    if not grid["attack"]:
        raise NothingToDrawError("no attack was run, so there is no accuracy under attack to draw")
    curves = _curves(grid)
    points = {
        width_in_words(width): [TradeoffPoint(_dial(row["robust"]), row["clean"], row["attacked"]) for row in rows]
        for width, rows in curves.items()
    }
    colours = [shade(i, len(curves)) for i in range(len(curves))]
    return attack_tradeoff(
        points, grid["attack"], _price(grid), "a curve for each width, a point for each dial", colours
    )


@in_style
def attack_tradeoff(
    curves: Mapping[str, Sequence[TradeoffPoint]], attack: str, title: str, about: str, colours: Sequence[str] = COLOURS
) -> Picture:
    """Named curves of models or dials between clean accuracy and accuracy under one and the same attack."""
    figure, (axes,) = paper(title, f"clean accuracy (%); {about}", 4.2)
    for i, (points, colour) in enumerate(zip(curves.values(), colours, strict=False)):
        line = [(100 * point.attacked, 100 * point.clean) for point in points]
        drawing.draw_line(axes, line, colour, marker="o", zorder=3 + i, clip_on=False)
        for point, place in zip(points, line, strict=True) if len(curves) < 5 or i in (0, len(curves) - 1) else ():
            axes.annotate(point.name, place, (4, 4), textcoords="offset points", fontsize=7, color=drawing.GREY)
    axes.set_xlabel(f"accuracy under attack (%)\n{_wrapped(attack, 76)}")
    axes.margins(x=0.08, y=0.12)
    drawing.legend(figure, list(curves), colours[: len(curves)])
    drawing.per_cent_ticks(axes)
    return Picture("ra-sa", figure)


@in_style
def by_dial(grid: GridRecord) -> Picture:
    """Accuracy by dial, clean and under attack side by side: a line for each width, its interval as a band."""
    curves, kinds = _curves(grid), ["clean", *(["attacked"] if grid["attack"] else [])]
    if len({row["robust"] for row in grid["rows"]}) < 2:
        raise NothingToDrawError("a single dial makes no line")
    colours = [shade(i, len(curves)) for i in range(len(curves))]
    title = "Turning the dial" + (" trades clean accuracy for robustness" if _trades(grid) else "")
    figure, panels = paper(title, "accuracy (%) by robustness dial, with 95 % intervals", 3.8, 1, len(kinds))
    titles = ("clean images", f"under attack\n{_wrapped(grid['attack'] or '', 40)}")
    for panel, kind, above in zip(panels, kinds, titles, strict=False):
        panel.set_title(above, fontsize=8)
        for colour, rows in zip(colours, curves.values(), strict=True):
            dials = [row["robust"] for row in rows]
            low, middle, high = ([100 * row[f"{kind}{end}"] for row in rows] for end in ("_low", "", "_high"))
            panel.plot(dials, middle, color=colour, marker="o", markersize=3)
            panel.fill_between(dials, low, high, color=colour, alpha=0.12, linewidth=0)
        panel.set_xlabel("dial")
    drawing.legend(figure, [width_in_words(width) for width in curves], colours)
    drawing.per_cent_ticks(panels[0])
    return Picture("by-dial", figure)


def masking_table(findings: MaskingRecord) -> Table:
    """A row for each check, with its verdict."""
    columns = [
        Column("law", "what must hold", number=False),
        Column("width", "width"),
        Column("robust", "dial", _dial),
        Column("found", "accuracy %", number=False),
        Column("holds", "verdict", lambda holds: "holds" if holds else "BROKEN", number=False),
    ]
    rows = [[row["law"], row["width"], row["robust"], _found(row), row["holds"]] for row in findings["rows"]]
    broken = sum(not row["holds"] for row in findings["rows"])
    verdict = f"{broken} of {len(rows)} are broken: do not trust the robust accuracies." if broken else "All hold."
    caption = (
        f"{verdict} Means over {findings['clients']} clients, {findings['samples']:,} {findings['split']} images; "
        f"a difference of up to {100 * findings['slack']:g} point counts as chance. Transfer: {findings['attack']}; "
        "steps likewise, from the image. Such checks can find hidden gradients, but not prove that there are none."
    )
    return Table("Checks for hidden gradients", columns, rows, caption)


def _curves(grid: GridRecord) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of each width, by dial; narrow widths first."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(grid["rows"], key=lambda row: (parse_width(row["width"]), row["robust"])):
        curves.setdefault(row["width"], []).append(row)
    return curves


def _price(grid: GridRecord) -> str:
    """What the dial buys at the widest width, as a fact."""
    rows = list(_curves(grid).values())[-1]
    first, last = rows[0], rows[-1]
    if first is last:
        return f"{percent(first['clean'])} % clean, {percent(first['attacked'])} % under attack"
    gain, loss = (100 * (last[key] - first[key]) for key in ("attacked", "clean"))
    ends = f"from dial {_dial(first['robust'])} to {_dial(last['robust'])}"
    return f"{gain:+.1f} points under attack, {loss:+.1f} on clean images {ends} at {width_in_words(last['width'])}"


def _trades(grid: GridRecord) -> bool:
    ends = [(rows[0], rows[-1]) for rows in _curves(grid).values()]
    return bool(grid["attack"]) and all(a["clean"] > b["clean"] and a["attacked"] < b["attacked"] for a, b in ends)


def _wrapped(text: str, letters: int) -> str:
    """Lines that fit a picture."""
    return "\n".join(textwrap.wrap(text, letters))


def _interval(ends: tuple[float | None, float | None]) -> str:
    return "-" if None in ends else f"{percent(ends[0])} to {percent(ends[1])}"


def _found(row: MaskingRow) -> str:
    pairs = zip(row["labels"], row["accuracies"], strict=True)
    return "; ".join(f"{label} {percent(value)}" for label, value in pairs)
