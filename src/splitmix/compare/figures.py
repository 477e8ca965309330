"""Pictures of a comparison along a line: accuracy against price, and how the methods learned."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from splitmix.compare.standings import MethodRuns, SeedRun, Standing, compared_widths, standings
from splitmix.compare.statistics import mean_and_spread
from splitmix.core.width import parse_width
from splitmix.report import drawing
from splitmix.report.drawing import COLOURS, GREY, INK, PALE, NothingToDrawError, Picture, in_style, paper, short
from splitmix.report.figures import width_in_words
from splitmix.report.pages import duration
from splitmix.report.tables import human
from splitmix.runs.records import MetricRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRICES = {"macs": "MACs", "parameters": "parameters"}
GREYS = (PALE, GREY, "#8b95a1")
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))


@dataclass(frozen=True)
class Look:
    """How a method is drawn: in colour, or in grey if it breaks the budgets."""

    colour: str
    dash: object = "-"
    marker: str = "o"


class Curve(NamedTuple):
    """Accuracy in per cent by round or second: the mean over seeds and its spread."""

    xs: list[float]
    means: list[float]
    spreads: list[float]


def called(label: str) -> str:
    """A method's name where there is little room."""
    return short(label, 20)


def families(entries: Sequence[MethodRuns]) -> dict[str, list[MethodRuns]]:
    """Methods that differ in nothing but their one width, such as FedAvg of 1/8 and of 1/4, make one line."""
    found: dict[str, list[MethodRuns]] = {}
    for entry in entries:
        words = entry.label.split(" ")
        own = [word for word in words if len(entry.widths) > 1 or word != entry.widths[0]]
        found.setdefault(" ".join(own), []).append(entry)
    return found


def looks(entries: Sequence[MethodRuns]) -> dict[str, Look]:
    """A look for each family, the same in every picture."""
    groups = families(entries)
    over = [name for name, members in groups.items() if any(entry.over_budget for entry in members)]
    within = [name for name in groups if name not in over]
    grey = {name: Look(GREYS[i % len(GREYS)], DASHES[1 + i % 2], "s") for i, name in enumerate(over)}
    coloured = {
        name: Look(COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % 3], "oD^v"[i // len(COLOURS) % 4])
        for i, name in enumerate(within)
    }
    return {name: grey.get(name) or coloured[name] for name in groups}


def colours_of(entries: Sequence[MethodRuns]) -> dict[str, str]:
    """The colour of each method, by its label."""
    style = looks(entries)
    return {entry.label: style[name].colour for name, group in families(entries).items() for entry in group}


def undominated(points: Sequence[Standing], price: str) -> list[Standing]:
    """The points for which nobody offers as much for less, or more for as little."""
    offers = {(price_of(point, price), point.mean) for point in points}
    beaten = {(x, y) for x, y in offers for other, mean in offers - {(x, y)} if other <= x and mean >= y}
    return [point for point in points if (price_of(point, price), point.mean) not in beaten]


def price_of(standing: Standing, price: str) -> int:
    return getattr(standing, price) or 0


@in_style
def price_tradeoff(entries: Sequence[MethodRuns], price: str = "macs") -> Picture:
    """Accuracy against MACs or parameters, a line for each method; what nobody beats at its price is ringed."""
    widths = sorted({width for entry in entries for width in entry.widths}, key=parse_width)
    found = [s for width in widths for s in standings(entries, width) if price_of(s, price)]
    if not found:
        raise NothingToDrawError(f"the results have no {PRICES[price]} to draw")
    front = undominated([standing for standing in found if not standing.over_budget], price)
    groups, style = families(entries), looks(entries)
    counts = {name: sum(s.label in {e.label for e in group} for s in front) for name, group in groups.items()}
    told = ", ".join(f"{called(name)} at {n} width{'s' * (n > 1)}" for name, n in counts.items() if n)
    figure, (axes,) = paper(
        f"Unbeaten at its price in {PRICES[price]}: {told or 'nobody'}",
        "test accuracy (%), mean over clients and seeds; ringed: unbeaten at its price",
        4.0,
    )
    for name, group in groups.items():
        points = sorted((s for s in found if s.label in {e.label for e in group}), key=lambda s: price_of(s, price))
        _price_line(axes, points, price, style[name])
    _name_widths(axes, [s for s in found if s.width in compared_widths(entries)], price, colours_of(entries))
    for standing in front:
        axes.plot(price_of(standing, price), 100 * standing.mean, "o", mfc="none", mec=INK, ms=11, mew=0.9, zorder=5)
    count_axis(axes)
    axes.set_xlabel("MACs per image" if price == "macs" else "parameters")
    axes.margins(x=0.06, y=0.1)
    drawing.per_cent_ticks(axes)
    drawing.legend(figure, [called(name) for name in groups], [style[name].colour for name in groups])
    return Picture(f"tradeoff-{price}", figure)


def _name_widths(axes: "Axes", points: Sequence[Standing], price: str, colours: Mapping[str, str]) -> None:
    """Write each width above its point; where methods share its price, above the best of them."""
    best: dict[tuple[str, int], Standing] = {}
    for point in sorted(points, key=lambda point: point.mean):
        best[point.width, price_of(point, price)] = point
    for (width, x), point in best.items():
        place = (x, 100 * (point.mean + (point.spread or 0)))
        colour = GREY if point.over_budget else colours[point.label]
        axes.annotate(width, place, (0, 8), textcoords="offset points", ha="center", color=colour, fontsize=8)


def count_axis(axes: "Axes") -> None:
    """Counts from left to right, each tick about twice the one before."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(lambda value, _: re.sub(r"\.0+(?=\D|$)", "", human(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", size=0)


def _price_line(axes: "Axes", points: Sequence[Standing], price: str, look: Look) -> None:
    """One method, with the spread over seeds at each point."""
    line = [(float(price_of(s, price)), 100 * s.mean) for s in points]
    drawing.draw_line(axes, line, look.colour, linestyle=look.dash, marker=look.marker, zorder=3)
    for (x, y), standing in zip(line, points, strict=True):
        if standing.spread:
            axes.errorbar(x, y, 100 * standing.spread, color=look.colour, linewidth=0.9, capsize=2, zorder=2)


@in_style
def learning_race(entries: Sequence[MethodRuns], by: str = "round") -> Picture:
    """Validation accuracy at the narrowest and the widest width, by round or by measured seconds of training."""
    widths = compared_widths(entries)
    ends = list(dict.fromkeys((widths[0], widths[-1])))
    curves = {width: _curves(entries, width, by) for width in ends}
    ends = [width for width in ends if curves[width]]
    if not ends:
        raise NothingToDrawError("the runs have no validation scores to draw")
    unit, scale = _time_unit(curves) if by == "seconds" else ("round", 1.0)
    text = "validation accuracy (%), mean over clients and seeds; shaded: spread of seeds"
    figure, panels = paper(_race(curves[ends[-1]], ends[-1], by), text, 3.7, columns=len(ends))
    style = looks(entries)
    for width, panel in zip(ends, panels, strict=True):
        for name, curve in curves[width].items():
            _draw_curve(panel, curve, style[name], scale)
        panel.set_title(width_in_words(width))
        panel.set_xlabel(unit)
        panel.margins(x=0.02)
        panel.locator_params(axis="x", integer=by == "round", min_n_ticks=1, nbins=6)
    drawing.per_cent_ticks(panels[0])
    shown = [name for name in style if any(name in curves[width] for width in ends)]
    drawing.legend(figure, [called(name) for name in shown], [style[name].colour for name in shown])
    return Picture(f"convergence-{by}", figure)


def _draw_curve(axes: "Axes", curve: Curve, look: Look, scale: float) -> None:
    xs = [x / scale for x in curve.xs]
    marker = look.marker if len(xs) < 3 else None
    drawing.draw_line(axes, list(zip(xs, curve.means, strict=True)), look.colour, linestyle=look.dash, marker=marker)
    low, high = ([m + sign * s for m, s in zip(curve.means, curve.spreads, strict=True)] for sign in (-1, 1))
    axes.fill_between(xs, low, high, color=look.colour, alpha=0.15, linewidth=0)


def _curves(entries: Sequence[MethodRuns], width: str, by: str) -> dict[str, Curve]:
    """The curve of each family at a width; of two members the first that serves it."""
    found = {}
    for name, members in families(entries).items():
        curve = next((_curve(entry, width, by) for entry in members if width in entry.widths), None)
        if curve is not None and curve.xs:
            found[name] = curve
    return found


def _curve(entry: MethodRuns, width: str, by: str) -> Curve:
    runs = [_accuracies(run, width) for run in entry.runs]
    rounds = sorted(set.intersection(*map(set, runs)))
    clocks = [_clock(run.metrics) for run in entry.runs]
    if by == "seconds":
        rounds = [r for r in rounds if all(r in clock for clock in clocks)]
    xs = [fmean(clock[r] for clock in clocks) if by == "seconds" else float(r + 1) for r in rounds]
    values = [mean_and_spread([run[r] for run in runs]) or (0.0, None) for r in rounds]
    return Curve(xs, [mean for mean, _ in values], [spread or 0.0 for _, spread in values])


def _accuracies(run: SeedRun, width: str) -> dict[int, float]:
    """Validation accuracy in per cent by round."""
    return {
        row["round"]: 100 * row["accuracy"]
        for row in run.metrics
        if row["kind"] == "score" and row.get("split", "val") == "val" and row["width"] == width
        if math.isfinite(row["accuracy"])
    }


def _clock(metrics: Sequence[MetricRow]) -> dict[int, float]:
    """Seconds of training up to the end of each round."""
    rows = [row for row in metrics if row["kind"] == "round"]
    return dict(zip((row["round"] for row in rows), accumulate(row.get("seconds", 0.0) for row in rows), strict=True))


def _race(curves: Mapping[str, Curve], width: str, by: str) -> str:
    """Who is first, and who last, at an accuracy that all reach."""
    if not curves:
        return "How the methods learned"
    level = math.floor(min(max(curve.means) for curve in curves.values()))
    first = {
        name: next(x for x, mean in zip(curve.xs, curve.means, strict=True) if mean >= level)
        for name, curve in curves.items()
    }
    order = sorted(first, key=lambda name: first[name])
    when = {name: f"after {duration(x)}" if by == "seconds" else f"in round {x:.0f}" for name, x in first.items()}
    told = f"At {width_in_words(width)} {called(order[0])} reaches {level} % {when[order[0]]}"
    return told if len(order) == 1 else f"{told}, {called(order[-1])} {when[order[-1]]}"


def _time_unit(curves: Mapping[str, Mapping[str, Curve]]) -> tuple[str, float]:
    longest = max(curve.xs[-1] for group in curves.values() for curve in group.values())
    units = ((7200, "hours of training", 3600.0), (180, "minutes of training", 60.0), (0, "seconds of training", 1.0))
    return next((unit, scale) for least, unit, scale in units if longest >= least)
