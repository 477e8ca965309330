"""What the exhibits' pictures are made of: lines in panels that share a scale, with one legend for all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from splitmix.core.width import parse_width
from splitmix.report import drawing
from splitmix.report.drawing import COLOURS, GREY, Line, NothingToDrawError, Picture, in_style, paper
from splitmix_paper.claims import Cell
from splitmix_paper.exhibit import Evidence, Printed
from splitmix_paper.studies import HETEROFL, SHETEROFL, SPLITMIX, WIDTHS, joined

HUES = {SPLITMIX: COLOURS[0], SHETEROFL: COLOURS[4], HETEROFL: COLOURS[4], "FedAvg": GREY}


@dataclass(frozen=True)
class Stroke:
    """A line of a panel."""

    label: str
    points: Line
    colour: str
    printed: bool = False  # dotted and hollow: as printed in the paper


@dataclass(frozen=True)
class Panel:
    """Its lines, under a title; those of a family have the same scale."""

    title: str
    strokes: Sequence[Stroke]
    family: str = ""


@dataclass(frozen=True)
class Sheet:
    """What the panels of a picture have in common."""

    name: str
    title: str
    subtitle: str
    x: str
    columns: int = 3


@in_style
def draw_panels(evidence: Evidence, sheet: Sheet, panels: Sequence[Panel]) -> Picture:
    """Lines in panels; below the title it says which data stands in for the paper's."""
    drawn = [panel for panel in panels if any(stroke.points for stroke in panel.strokes)]
    if not drawn:
        raise NothingToDrawError("nothing has been run that could be drawn")
    families = [panel.family for panel in drawn]
    columns = 2 if len(drawn) == 4 else min(sheet.columns, len(drawn))
    rows = -(-len(drawn) // columns)
    below = "; ".join([sheet.subtitle, *evidence.stand_ins])
    alike = {"share_x": sheet.x == "width", "share_y": not any(families)}
    figure, axes = paper(sheet.title, below, 1.5 + 2.2 * rows, rows, columns, **alike)
    for axis, panel in zip(axes, drawn, strict=False):
        _draw(axis, panel, sheet.x)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    _scale(axes[: len(drawn)], families)
    strokes = [stroke for panel in drawn for stroke in panel.strokes if stroke.points]
    looks = {stroke.label: stroke.colour for stroke in strokes if not stroke.printed}
    drawing.legend(figure, list(looks), list(looks.values()))
    return Picture(sheet.name, figure)


def _draw(axis: Any, panel: Panel, x: str) -> None:
    for stroke in panel.strokes:
        look: dict[str, Any] = {"zorder": 3}
        if stroke.printed:
            look = {"linestyle": (0, (1, 1.6)), "linewidth": 1.2, "markerfacecolor": "white", "zorder": 2}
        marker = "o" if len(stroke.points) < 9 else None
        drawing.draw_line(axis, stroke.points, stroke.colour, marker=marker, markersize=4, **look)
    axis.set_title(panel.title)
    axis.set_xlabel(x)
    axis.tick_params(labelbottom=True)
    if x == "width":
        axis.set_xscale("log", base=2)
        axis.set_xticks([float(parse_width(width)) for width in WIDTHS], WIDTHS)
        axis.minorticks_off()
    elif x == "round":
        axis.locator_params(axis="x", integer=True, min_n_ticks=1, nbins=6)


def _scale(axes: Sequence[Any], families: Sequence[str]) -> None:
    """The panels of a family get the same scale."""
    for family in set(families):
        own = [axis for axis, name in zip(axes, families, strict=True) if name == family]
        limits = [axis.get_ylim() for axis in own]
        for axis in own if family else own[:1]:
            axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
            drawing.per_cent_ticks(axis)


def width_strokes(cells: Sequence[Cell], printed: Printed | None = None) -> Iterator[Stroke]:
    """A line over the widths for each series, ours or as printed; FedAvg's nets make one."""
    lines: dict[str, Line] = {}
    for cell in cells:
        series = joined(cell.place.series)
        value = cell.mean if printed is None else printed.get(cell.place)
        if value is not None:
            lines.setdefault(series, []).append((float(parse_width(cell.place.key)), value))
    spare = [colour for colour in COLOURS if colour not in HUES.values()]
    for number, (series, line) in enumerate(lines.items()):
        colour = HUES.get(series, spare[number % len(spare)])
        yield Stroke(series, sorted(line), colour, printed is not None)
