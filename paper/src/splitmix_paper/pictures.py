"""Pictures of the entries: lines by width, by round, by time and by dial; sample images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from splitmix.compare import maps as compare_maps
from splitmix.core.errors import UserError
from splitmix.core.width import parse_width
from splitmix.data.tasks import find_task
from splitmix.report import drawing
from splitmix.report.drawing import COLOURS, GREY, Line, NothingToDrawError, Picture, in_style, paper, shade, short
from splitmix_paper.found import Found, Row, learning_curve
from splitmix_paper.printed import SCALINGS, WIDTHS
from splitmix_paper.rows import turned
from splitmix_paper.sets import COHORTS, FEDAVG, SHETEROFL, SPLITMIX

Draw = Callable[[], Picture]
HUES = {SPLITMIX: COLOURS[0], SHETEROFL: COLOURS[4], "HeteroFL": COLOURS[4], "FedAvg": GREY}
SHOWN = 8  # sample images of a domain


@dataclass(frozen=True)
class Stroke:
    """A line of a panel."""

    label: str
    points: Line
    colour: str
    paper: bool = False  # dashed and hollow: printed in the paper


@dataclass(frozen=True)
class Sheet:
    """What the panels of a picture have in common."""

    name: str
    title: str
    subtitle: str
    x: str
    widths: bool = False  # the x axis has widths
    columns: int = 3
    studies: bool = False  # titles begin with a data set, each with a scale of its own


@in_style
def panels(found: Found, sheet: Sheet, lines: Mapping[str, Sequence[Stroke]]) -> Picture:
    """Lines in panels with the same scale, or one for each data set; one legend for all, and what data stands in."""
    drawn = {title: [stroke for stroke in strokes if stroke.points] for title, strokes in lines.items()}
    drawn = {title: strokes for title, strokes in drawn.items() if strokes}
    if not drawn:
        raise NothingToDrawError("nothing has been run that could be drawn")
    columns = 2 if len(drawn) == 4 else min(sheet.columns, len(drawn))
    rows = -(-len(drawn) // columns)
    below = "; ".join([sheet.subtitle, *found.stand_ins])
    alike = {"share_x": sheet.widths, "share_y": not sheet.studies}
    figure, axes = paper(sheet.title, below, 1.5 + 2.2 * rows, rows, columns, **alike)
    for panel, (title, strokes) in zip(axes, drawn.items(), strict=False):
        for stroke in strokes:
            _draw(panel, stroke)
        panel.set_title(title if len(drawn) > 1 or sheet.studies else "")
        panel.set_xlabel(sheet.x)
        panel.tick_params(labelbottom=True)
        if sheet.widths:
            panel.set_xscale("log", base=2)
            panel.set_xticks([float(parse_width(width)) for width in WIDTHS], WIDTHS)
            panel.minorticks_off()
        elif sheet.x == "round":
            panel.locator_params(axis="x", integer=True, min_n_ticks=1, nbins=6)
    for panel in axes[len(drawn) :]:
        panel.set_visible(False)
    if sheet.studies:
        _scale(axes, [title.partition(": ")[0] for title in drawn])
    else:
        drawing.per_cent_ticks(axes[0])
    looks = {stroke.label: stroke.colour for strokes in drawn.values() for stroke in strokes if not stroke.paper}
    drawing.legend(figure, list(looks), list(looks.values()))
    return Picture(sheet.name, figure)


def _scale(axes: Sequence[Any], studies: Sequence[str]) -> None:
    """The panels of a data set get the same scale."""
    for study in set(studies):
        own = [panel for panel, name in zip(axes, studies, strict=False) if name == study]
        limits = [panel.get_ylim() for panel in own]
        for panel in own:
            panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
            drawing.per_cent_ticks(panel)


def _draw(axes: Any, stroke: Stroke) -> None:
    few = len(stroke.points) < 9
    if stroke.paper:
        look: dict[str, Any] = {"linestyle": (0, (1, 1.6)), "linewidth": 1.2, "markerfacecolor": "white", "zorder": 2}
    else:
        look = {"zorder": 3}
    drawing.draw_line(axes, stroke.points, stroke.colour, marker="o" if few else None, markersize=4, **look)


def by_width(found: Found, rows: Sequence[Row]) -> Picture:
    """Ours as lines, the paper's as dotted ones with hollow points."""
    return panels(
        found,
        Sheet(
            "widths",
            _lead(rows),
            "test accuracy (%), mean over clients"
            + ("; dotted: as printed in the paper" if found.entry.printed else ""),
            "width",
            widths=True,
        ),
        {"": [*_strokes(rows, printed=True), *_strokes(rows)]},
    )


def _strokes(rows: Sequence[Row], *, printed: bool = False) -> Iterator[Stroke]:
    """A line for each series; FedAvg's nets make one."""
    lines: dict[str, Line] = {}
    for row in rows:
        series = "FedAvg" if row.series in FEDAVG else row.series
        value = row.printed if printed else row.mean
        if value is not None:
            lines.setdefault(series, []).append((float(parse_width(row.key)), value))
    for number, (series, line) in enumerate(lines.items()):
        spare = [colour for colour in COLOURS if colour not in HUES.values()]
        colour = HUES.get(series, spare[number % len(spare)])
        yield Stroke(series, sorted(line), colour, printed)


def _lead(rows: Sequence[Row]) -> str:
    """Split-Mix against SHeteroFL at the ends, as a fact."""
    at = {(row.series, row.key): row.mean for row in rows}
    told = []
    for width in (WIDTHS[0], WIDTHS[-1]):
        ours, theirs = at.get((SPLITMIX, width)), at.get((SHETEROFL, width))
        if ours is not None and theirs is not None:
            told.append(f"{ours - theirs:+.1f} points at width {width}")
    return f"Split-Mix against SHeteroFL: {', '.join(told)}" if told else "Accuracy by width"


def grouped(found: Found, rows: Sequence[Row], *, order: Sequence[str] = ()) -> Picture:
    """A panel for each part of the labels before the colon; series without one are in all of them."""
    groups = list(dict.fromkeys(row.series.partition(": ")[0] for row in rows if ": " in row.series))
    shared = [row for row in rows if ": " not in row.series]
    sheets = {}
    for group in sorted(groups, key=list(order).index) if order else groups:
        own = [
            Row(row.series.partition(": ")[2], row.key, row.values)
            for row in rows
            if row.series.startswith(f"{group}: ")
        ]
        sheets[group] = list(_strokes([*shared, *own]))
    what = Sheet(
        "groups",
        found.entry.title,
        "test accuracy (%) by width, mean over clients",
        "width",
        widths=True,
    )
    return panels(found, what, sheets)


def budgets(found: Found) -> Picture:
    """The budget of each client under each distribution, from the smallest up."""
    sheets: dict[str, list[Stroke]] = {}
    for label, runs in found.runs.items():
        group, colon, _ = label.partition(": ")
        if colon and group not in sheets:
            sizes = sorted(100 * float(parse_width(client["budget"])) for client in runs.runs[0].result["clients"])
            steps = [(x, size) for i, size in enumerate(sizes) for x in (i, i + 1)]
            sheets[group] = [Stroke("budget of each client", [(float(x), y) for x, y in steps], COLOURS[2])]
    what = Sheet(
        "budgets", "Who can afford how much", "budget (% of the full width), clients from weak to strong", "client"
    )
    return panels(found, what, sheets)


def ablation(found: Found, rows: Sequence[Row]) -> Picture:
    """A panel for each kind of norm statistics, a line for what is rescaled."""
    sheets = {}
    for norm in dict.fromkeys(row.series.rpartition(", ")[0] for row in rows):
        strokes = []
        for place, scaling in enumerate(SCALINGS):
            own = [row for row in rows if row.series == f"{norm}, {scaling}"]
            line = sorted((float(parse_width(row.key)), row.mean) for row in own if row.mean is not None)
            strokes.append(Stroke(f"rescaled: {scaling}", line, COLOURS[place]))
        sheets[norm] = strokes
    what = Sheet(
        "ablation", "Accuracy by norm statistics and rescaling", "test accuracy (%) by width", "width", True, 2
    )
    return panels(found, what, sheets)


def convergence(found: Found) -> Picture:
    """FedAvg without budgets and SHeteroFL with them, a line for each width."""
    sheets: dict[str, list[Stroke]] = {}
    for label, runs in found.runs.items():
        study, _, method = label.partition(": ")
        panel = sheets.setdefault(f"{study}: {'FedAvg' if method in FEDAVG else method}", [])
        for width in (width for width in WIDTHS if width in runs.widths):
            colour = shade(WIDTHS.index(width), len(WIDTHS))
            panel.append(Stroke(f"width {width}", learning_curve(runs.runs[0], width), colour))
    what = Sheet(
        "curves",
        "How nets of each width learn",
        "validation accuracy (%) by round",
        "round",
        columns=2,
        studies=True,
    )
    return panels(found, what, dict(sorted(sheets.items())))


def full_width(found: Found) -> Picture:
    sheets: dict[str, list[Stroke]] = {}
    for label, runs in found.runs.items():
        study, _, method = label.partition(": ")
        line = learning_curve(runs.runs[0], runs.widths[-1])
        sheets.setdefault(study, []).append(Stroke(method, line, HUES.get(method, GREY)))
    what = Sheet(
        "curves",
        "How the widest affordable nets learn",
        "validation accuracy (%) by round: FedAvg at width 1/8, the others at 1",
        "round",
        studies=True,
    )
    return panels(found, what, sheets)


def clock(found: Found, rows: Sequence[Row]) -> Picture:
    """The curves of full runs over the seconds that a round takes when the methods are measured in turn."""
    seconds = {row.series: row.mean for row in rows if row.mean is not None}
    if not seconds.keys() <= found.runs.keys():
        raise NothingToDrawError("some of the methods that were timed have no curve")
    strokes = []
    for label, second in seconds.items():
        run = found.runs[label]
        line = learning_curve(run.runs[0], run.widths[-1])
        strokes.append(Stroke(label, [(x * second / 60, y) for x, y in line], HUES.get(label, GREY)))
    told = ", ".join(f"{label} {value:.2g} s" for label, value in seconds.items())
    what = Sheet(
        "clock", f"A round takes {told}", "validation accuracy (%), widest affordable net", "minutes of training"
    )
    return panels(found, what, {"": strokes})


def dials(found: Found, rows: Sequence[Row]) -> Picture:
    """Clean accuracy against accuracy under attack; a line for each width, or for each way to train."""
    at = {(row.series, row.key): row.mean for row in rows}
    lines: dict[str, Line] = {}
    for series in dict.fromkeys(row.series for row in rows):
        clean, attacked, where = at.get((series, "clean")), at.get((series, "attacked")), turned(series)
        if clean is not None and attacked is not None:
            label = where.label if where.dial else "FedAvg + AT, a training for each point"
            label += f", width {where.width}" if where.width else ""
            lines.setdefault(label, []).append((attacked, clean))
    colours = {f"Split-Mix + DAT, width {width}": shade(place, len(WIDTHS)) for place, width in enumerate(WIDTHS)}
    colours |= {"Split-Mix + DAT": HUES[SPLITMIX], "FedAvg + OAT": COLOURS[4]}
    strokes = [
        Stroke(label, line if label in colours else sorted(line), colours.get(label, GREY))
        for label, line in lines.items()
    ]
    what = Sheet(
        "dials",
        found.entry.title,
        "accuracy on clean images (%); each point one dial or one training",
        "accuracy under attack (%)",
    )
    return panels(found, what, {"": strokes})


@in_style
def samples(task: str, root: Any) -> Picture:
    """The first test images of each domain."""
    try:
        made = find_task(task, root=root)
    except UserError as missing:
        raise NothingToDrawError(str(missing)) from None
    columns, rows = SHOWN, len(made.domains)
    figure, axes = paper(
        f"Images of {made.name}", "test images, a row for each domain", 0.8 + 0.62 * rows, rows, columns
    )
    for number, name in enumerate(made.domains):
        chosen = np.flatnonzero(made.test.domain == number)[:: max(1, int((made.test.domain == number).sum() // SHOWN))]
        for place in range(columns):
            panel = axes[number * columns + place]
            panel.set_axis_off()
            if place < len(chosen):
                panel.imshow(made.test.images[chosen[place]].squeeze(), cmap="gray", interpolation="nearest")
            if place == 0:
                panel.text(-0.1, 0.5, short(name), transform=panel.transAxes, ha="right", va="center")
    return Picture(f"samples-{made.name.replace('/', '-')}", figure)


def pictures_of(found: Found, rows: Sequence[Row], root: Any) -> Iterator[Draw]:
    """What is drawn for an entry; names begin with the entry's, so that no two are the same."""
    for draw in _draws(found, rows, root):
        yield partial(_named, found.entry.name, draw)


def _named(name: str, draw: Draw) -> Picture:
    picture = draw()
    return Picture(f"{name}-{picture.name}", picture.figure)


def _draws(found: Found, rows: Sequence[Row], root: Any) -> Iterator[Draw]:
    shown, whole = found.entry.shown, bool(found.runs) and not found.remembered  # to hold runs against each other
    if shown == "widths":
        yield partial(by_width, found, rows)
    elif shown == "ablation":
        yield partial(ablation, found, rows)
    elif shown == "budgets":
        yield partial(budgets, found)
        yield partial(grouped, found, rows)
    elif shown == "contact":
        yield partial(grouped, found, rows, order=[f"{n} clients" for n in COHORTS])
    elif shown == "convergence":
        yield partial(convergence, found)
    elif shown == "full-width":
        yield partial(full_width, found)
    elif shown == "clock":
        yield partial(clock, found, rows)
    elif shown == "dials":
        yield partial(dials, found, rows)
    elif shown == "clients" and whole:
        yield partial(compare_maps.client_boxes, list(found.runs.values()))
    elif shown == "domains" and whole:
        yield partial(compare_maps.coverage_map, found.picked(SPLITMIX, SHETEROFL))
        yield partial(compare_maps.domain_losses, list(found.runs.values()))
    elif shown == "samples":
        for task in _sampled(found):
            yield partial(samples, task, root)


def _sampled(found: Found) -> Sequence[str]:
    tiny = str(found.store.out.resolve() / "tiny")
    return {"smoke": [tiny], "cpu": ["digits", "office-caltech10"], "paper": ["digits", "domainnet-256"]}[found.scale]
