"""Pictures of a run, from its metrics and its result; each title is a fact read from the numbers."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from splitmix.core.width import parse_width
from splitmix.report import drawing
from splitmix.report.drawing import (
    INK,
    PALE,
    Line,
    NothingToDrawError,
    Picture,
    hue,
    in_style,
    known_line,
    paper,
    shade,
    short,
)
from splitmix.report.tables import human, percent
from splitmix.runs.records import (
    MetricRow,
    Result,
    StoredClient,
    StoredScore,
    domain_names,
    main_scores,
    score_groups,
    scored_clients,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@in_style
def convergence(metrics: Sequence[MetricRow], *, best_round: int | None) -> Picture:
    """Validation accuracy by round, one line per width, light to dark; `best_round` is marked.

    Files count rounds from 0, people from 1.
    """
    lines: dict[str, Line] = {}
    for row in metrics:
        if row["kind"] == "score" and row.get("split", "val") == "val" and math.isfinite(row["accuracy"]):
            lines.setdefault(row["width"], []).append((row["round"] + 1, 100 * row["accuracy"]))
    if not lines:
        raise NothingToDrawError("the run has no val scores to draw")
    widths = sorted(lines, key=parse_width)
    top, when = max((accuracy, -round) for round, accuracy in lines[widths[-1]])
    title = f"{width_in_words(widths[-1]).capitalize()} reaches {top:.1f} % on validation images in round {-when}"
    figure, (axes,) = paper(title, "validation accuracy (%), mean over clients, one line per width", 3.6)
    colours = [shade(i, len(widths)) for i in range(len(widths))]
    for i, width in enumerate(widths):
        marker = "o" if len(lines[width]) < 3 else None
        drawing.draw_line(axes, lines[width], colours[i], marker=marker, zorder=2 + i)
    if best_round is not None:
        drawing.mark_round(axes, best_round + 1, lines[widths[-1]])
    axes.set_xlabel("round")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    drawing.label_ends(axes, [(width, lines[width]) for width in widths], colours)
    drawing.per_cent_ticks(axes)
    return Picture("convergence", figure)


@in_style
def by_domain(result: Result) -> Picture:
    """Accuracy by width, one line per domain, labelled at its end."""
    scores, names = main_scores(result), domain_names(result)
    widths = {_place(score): score["width"] for score in scores}
    found = {name: known_line([*widths], [s.get("domains", {}).get(name) for s in scores]) for name in names}
    lines = {name: line for name, line in found.items() if line}
    if not lines:
        raise NothingToDrawError("the result has no accuracy by domain to draw")
    worst = min(lines, key=lambda name: lines[name][-1][1])
    ends = dict([lines[worst][0], lines[worst][-1]])
    title = " to ".join(f"{accuracy:.1f} % at {width_in_words(widths[x])}" for x, accuracy in ends.items())
    title = f"{'Hardest: ' if len(lines) > 1 else ''}{short(worst)}, {title}"
    figure, (axes,) = paper(title, f"{_split(scores)} accuracy (%), mean over the clients of each domain", 3.6)
    for name, line in lines.items():
        drawing.draw_line(axes, line, hue(names, name), marker="o")
    axes.set_xlabel("width (share of the channels)")
    drawing.width_ticks(axes, [*widths.values()])
    labels = [(f"{short(name)}  {line[-1][1]:.1f}", line) for name, line in lines.items()]
    drawing.label_ends(axes, labels, [hue(names, name) for name in lines])
    drawing.per_cent_ticks(axes)
    return Picture("domains", figure)


@in_style
def tradeoff(result: Result) -> Picture:
    """Accuracy against the work for one image; scores with other norm statistics are grey."""
    groups = [(key, [s for s in group if _drawable(s)]) for key, group in score_groups(result).items()]
    (_, split), scores = groups[0]
    if not scores:
        raise NothingToDrawError("the result has no MACs to draw")
    scale, unit = _unit(max(map(_macs, scores)))
    lines = [
        (f"{norm} norms", known_line([_macs(s) / scale for s in group], [s["accuracy"] for s in group]))
        for (norm, other), group in groups
        if other == split and group
    ]
    figure, (axes,) = paper(_price(scores), f"{split} accuracy (%), mean over clients, each point one width", 3.6)
    for _, line in lines[1:]:
        drawing.draw_line(axes, line, PALE, marker="o", markersize=3, linewidth=1.2)
    drawing.draw_line(axes, lines[0][1], PALE, zorder=3)
    for i, (point, score) in enumerate(zip(lines[0][1], scores, strict=True)):
        axes.plot(*point, "o", color=shade(i, len(scores)), markersize=7, zorder=4, clip_on=False)
        above = i == 0 or point[1] >= lines[0][1][i - 1][1]
        axes.annotate(score["width"], point, (-3, 6 if above else -14), textcoords="offset points", ha="right")
    axes.set_xlabel(f"MACs per image{unit}")
    axes.margins(y=0.12)
    axes.set_xlim(left=0)
    if len(lines) > 1:
        drawing.label_ends(axes, lines, [PALE] * len(lines))
    drawing.per_cent_ticks(axes)
    return Picture("tradeoff", figure)


@in_style
def budgets(clients: Sequence[StoredClient], names: Sequence[str]) -> Picture:
    """The budget of each client: one bar each, by domain in the order of these names, and then by size."""
    if not clients:
        raise NothingToDrawError("the result has no clients to draw")
    rich = sum(parse_width(client["budget"]) == 1 for client in clients)
    title = f"{rich} of {len(clients)} clients can afford the full net"
    figure, (axes,) = paper(title, f"budget of each client (width){', by domain' if len(names) > 1 else ''}", 2.9)
    start, ticks, labels = 0, [], []
    for name in names:
        heights = sorted(float(parse_width(client["budget"])) for client in clients if client["domain"] == name)
        if heights:
            axes.bar([start + i for i in range(len(heights))], heights, width=0.8, color=hue(names, name))
            ticks.append(start + (len(heights) - 1) / 2)
            labels.append(short(name))
            start += len(heights) + 1
    tight = max(map(len, labels)) * len(labels) > 60
    slant: dict[str, Any] = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if tight else {}
    axes.set_xticks(ticks, labels, color=INK, **slant)
    drawing.width_ticks(axes, sorted({*(client["budget"] for client in clients), "1"}), axis="y")
    spare = max(0, 20 - start) / 2  # a few clients make slim bars, too
    axes.set(ylim=(0, 1.04), xlim=(-0.9 - spare, start - 1.1 + spare))
    return Picture("budgets", figure)


@in_style
def per_client(result: Result) -> Picture:
    """Accuracy of every client by width: a panel per budget, a thin line per client, the mean in black."""
    scores, clients, names = main_scores(result), scored_clients(result), domain_names(result)
    ends = [accuracy for _, accuracy in known_line([0] * len(clients), scores[-1].get("clients", [])[: len(clients)])]
    if not ends:
        raise NothingToDrawError("the result has no accuracy for each of its clients to draw")
    order = sorted(range(len(clients)), key=lambda i: parse_width(clients[i]["budget"]))
    groups = [(budget, list(members)) for budget, members in groupby(order, lambda i: clients[i]["budget"])]
    title = f"At {width_in_words(scores[-1]['width'])} clients range from {min(ends):.1f} % to {max(ends):.1f} %"
    text = f"{_split(scores)} accuracy (%) by width: a thin line per client, their mean in black"
    rows = math.ceil(len(groups) / 4)
    figure, panels = paper(title, text, 1.8 + 1.8 * rows, rows, min(4, len(groups)))
    for panel, (budget, members) in zip(panels, groups, strict=False):
        colours = [hue(names, clients[i]["domain"]) for i in members]
        _client_lines(panel, scores, members, colours)
        panel.set_title(f"budget {budget}\n{len(members)} client{'s' * (len(members) > 1)}")
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    drawing.per_cent_ticks(panels[0])
    shown = [name for name in names if any(client["domain"] == name for client in clients)]
    if len(shown) > 1:
        drawing.legend(figure, [short(name) for name in shown], [hue(names, name) for name in shown])
    return Picture("clients", figure)


def _client_lines(axes: "Axes", scores: Sequence[StoredScore], members: Sequence[int], colours: Sequence[str]) -> None:
    """One panel: the clients with one budget."""
    places, widths = [_place(score) for score in scores], [score["width"] for score in scores]
    lines = [known_line(places, [score["clients"][i] for score in scores]) for i in members]
    marker = "o" if len(scores) == 1 else None
    for line, colour in zip(lines, colours, strict=True):
        drawing.draw_line(axes, line, colour, alpha=0.55, linewidth=0.9, marker=marker)
    columns = [[y for line in lines for x, y in line if x == place] for place in places]
    mean = [(place, sum(ys) / len(ys)) for place, ys in zip(places, columns, strict=True) if ys]
    drawing.draw_line(axes, mean, INK, linewidth=2.2, marker=marker)
    drawing.width_ticks(axes, [width for width in widths if width in (widths[0], "1/2", widths[-1])])


def _price(scores: Sequence[StoredScore]) -> str:
    """What more work buys."""
    first, last = scores[0], scores[-1]
    if len(scores) == 1:
        return f"{percent(last['accuracy'])} % for {human(_macs(last))} multiply-adds per image"
    gain = 100 * (last["accuracy"] - first["accuracy"])
    return f"{_macs(last) / _macs(first):.2g} times the work for {gain:+.1f} points of accuracy"


def _macs(score: StoredScore) -> int:
    return score.get("macs") or 0


def _drawable(score: StoredScore) -> bool:
    return _macs(score) > 0 and math.isfinite(score["accuracy"])


def _unit(largest: float) -> tuple[float, str]:
    units = ((1e9, " (billions)"), (1e6, " (millions)"), (1e3, " (thousands)"))
    return next(((scale, name) for scale, name in units if largest >= scale), (1.0, ""))


def _place(score: StoredScore) -> float:
    return float(parse_width(score["width"]))


def _split(scores: Sequence[StoredScore]) -> str:
    return scores[0].get("split", "test")


def width_in_words(width: str) -> str:
    """A width in words."""
    return "full width" if width == "1" else f"width {width}"
