"""Pictures of benchmarks: how many times as long others take, and how costs grow."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence import Row, distinct, where

from splitmix.report.drawing import COLOURS, GREY, PALE, Picture, in_style, paper, save
from splitmix.report.tables import human

GROWS = {
    "registered": "registered clients",
    "cohort": "clients a round",
    "bases": "bases",
    "hidden": "parameters of a base",
}


@in_style
def draw_ratios(rows: Sequence[Row], path: Path) -> None:
    """Of each work, how many times as long as ours a round of each peer takes: by the clock, and of processors."""
    found = [row for row in rows if row["peer"] != "splitmix" and "clock" in row]
    least = min(row["clock"]["ratio"]["middle"] for row in found if not row["peer"].startswith("splitmix"))
    title = f"A round of ours takes 1; of the others {least:.2f} and more"
    text = "by the clock (dark) and by processor time (pale), with 95 % intervals"
    works = [where(found, part=work) for work in distinct(found, "part")]
    heads = [sum(1 + len(before) for before in works[:number]) for number in range(len(works))]  # a line above each
    figure, (axes,) = paper(title, text, 0.28 * (len(works) + len(found)) + 0.6)
    places: dict[int, str] = {}
    for head, mine in zip(heads, works, strict=True):
        axes.text(0.02, head + 0.3, mine[0]["text"], fontsize=8, fontweight="bold")
        for place, row in enumerate(mine, head + 1):
            places[place] = row["peer"]
            for what, colour, shift in (("clock", COLOURS[0], -0.2), ("processor", PALE, 0.2)):
                ratio = row[what]["ratio"]
                sides = [[ratio["middle"] - ratio["low"]], [ratio["high"] - ratio["middle"]]]
                axes.barh(place + shift, ratio["middle"], 0.36, color=colour, xerr=sides, ecolor=GREY, zorder=2)
    axes.set_yticks(list(places), list(places.values()))
    axes.invert_yaxis()
    axes.axvline(1, color=GREY, linewidth=0.8, zorder=3)
    save(Picture("ratios", figure), path)


@in_style
def draw_growth(rows: Sequence[Row], path: Path) -> None:
    """Processor time of a round's server as each of four sizes grows, with the slope that fits."""
    slope = fitted(where(rows, part="registered"), "server_ms")
    title = f"Registered clients cost a round nothing: time grows by their number to the power {slope:.2f}"
    text = "processor milliseconds of the server in a round, without training; dashed: the power that fits"
    figure, panels = paper(title, text, 4.6, 2, 2, share_x=False)
    for axes, (part, name) in zip(panels, GROWS.items(), strict=True):
        mine = where(rows, part=part)
        xs, ys = [size_of(row) for row in mine], [row["server_ms"] for row in mine]
        power = fitted(mine, "server_ms")
        axes.plot(xs, ys, "o-", color=COLOURS[0])
        start = math.exp(sum(math.log(y) - power * math.log(x) for x, y in zip(xs, ys, strict=True)) / len(xs))
        axes.plot(xs, [start * x**power for x in xs], "--", color=GREY, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(xs, [human(x) for x in xs], fontsize=7)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel(f"{name}: power {power:.2f}")
    save(Picture("growth", figure), path)


def size_of(row: Row) -> int:
    return int(row["parameters"] if row["part"] == "hidden" else row["size"])


def fitted(rows: Sequence[Row], what: str) -> float:
    """The power of the size by which something grows: least squares of logarithms.

    >>> fitted([{"part": "cohort", "size": x, "ms": 3 * x**2} for x in (1, 10, 100)], "ms")
    2.0
    """
    points: list[tuple[float, Any]] = [(math.log(size_of(row)), math.log(row[what])) for row in rows]
    x0, y0 = (sum(values) / len(points) for values in zip(*points, strict=True))
    power = sum((x - x0) * (y - y0) for x, y in points) / sum((x - x0) ** 2 for x, _ in points)
    return round(power, 2) + 0.0  # no -0.0
