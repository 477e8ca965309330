"""Pictures of a comparison by client and by domain: boxes and maps."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from splitmix.compare.coverage import ReachedShares
from splitmix.compare.figures import called, colours_of, count_axis
from splitmix.compare.standings import MethodRuns
from splitmix.report import drawing
from splitmix.report.drawing import GREY, INK, NothingToDrawError, Picture, in_style, paper, short
from splitmix.report.figures import width_in_words
from splitmix.runs.records import domain_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Grid = list[list[float | None]]  # (domain, column)
Boxes = Mapping[str, Sequence[float]]  # by method the value of each client

LOSS = ("#b5480a", "#ffffff", "#0b5c94")  # worse, equal, better
SHARE = ("#ffffff", "#7ac7be", "#0c5c94")


def client_boxes(entries: Sequence[MethodRuns]) -> Picture:
    """How clients fare under each method: accuracy, traffic and work."""
    accuracy = {entry.label: _client_accuracies(entry) for entry in entries}
    traffic = {entry.label: _per_round(entry, "down") for entry in entries}
    work = {entry.label: _per_round(entry, "macs") for entry in entries}
    rivals = [entry.label for entry in entries if not entry.over_budget and accuracy[entry.label]] or [*accuracy]
    return draw_boxes(accuracy, traffic, work, colours_of(entries), rivals)


@in_style
def draw_boxes(
    accuracy: Boxes, traffic: Boxes, work: Boxes, colours: Mapping[str, str], rivals: Sequence[str]
) -> Picture:
    """What each client has under each method; a box holds the middle half of them. Rivals may fare best."""
    if not any(accuracy.values()):
        raise NothingToDrawError("the results have no accuracy for each client to draw")
    columns = [("accuracy (%)\nat its widest", accuracy, False)]
    counts = (("download\n(bytes per round)", traffic), ("training\n(MACs per round)", work))
    columns += [(heading, found, True) for heading, found in counts if any(found.values())]
    worst = {label: min(accuracy[label], default=0.0) for label in rivals}
    best = max(worst, key=lambda label: worst[label])
    title = f"The worst-off client fares best under {called(best)}: {worst[best]:.1f} %"
    text = "box: the middle half of the clients of all seeds; whiskers: all of them"
    figure, panels = paper(title, text, 1.6 + 0.3 * len(accuracy), columns=len(columns), share_x=False)
    for panel, (heading, values, steep) in zip(panels, columns, strict=True):
        _boxes(panel, values, colours, steep)
        panel.set_title(heading)
    panels[0].set_yticks(range(len(accuracy)), [called(label) for label in accuracy], color=INK)
    panels[0].invert_yaxis()
    return Picture("client-boxes", figure)


def _boxes(axes: "Axes", values: Boxes, colours: Mapping[str, str], steep: bool) -> None:
    """One panel: a lying box for each method."""
    from matplotlib.ticker import LogLocator

    for place, (label, each) in enumerate(values.items()):
        if not each:
            continue
        colour = colours[label]
        thin = {"color": colour, "linewidth": 1.1}
        axes.boxplot(
            each,
            positions=[place],
            orientation="horizontal",
            widths=0.55,
            whis=(0, 100),
            patch_artist=True,
            boxprops={"facecolor": f"{colour}33", "edgecolor": colour, "linewidth": 1.1},
            medianprops={"color": INK, "linewidth": 2.2},
            whiskerprops=thin,
            capprops=thin,
        )
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")
    if steep:
        count_axis(axes)
        axes.xaxis.set_major_locator(LogLocator(numticks=5))


def domain_losses(entries: Sequence[MethodRuns]) -> Picture:
    """Points of accuracy against FedAvg of the same width, for each domain; a panel for each method."""
    base = fedavg_domains(entries)
    rivals = [entry for entry in entries if not _is_fedavg(entry) and set(entry.widths) & set(base)]
    domains = domain_names(entries[0].runs[0].result)
    widths = [width for width in base if any(width in entry.widths for entry in rivals)]

    def loss(entry: MethodRuns, width: str, domain: str) -> float | None:
        mine, theirs = _domain_accuracy(entry, width, domain), base[width].get(domain)
        return None if mine is None or theirs is None else 100 * (mine - theirs)

    grids = {rival.label: [[loss(rival, width, name) for width in widths] for name in domains] for rival in rivals}
    return draw_losses(grids, domains, widths)


@in_style
def draw_losses(grids: Mapping[str, Grid], domains: Sequence[str], widths: Sequence[str]) -> Picture:
    """Points more or less than FedAvg of the same width, by method, domain and width."""
    flat = [
        (value, label, domains[i], widths[j])
        for label, grid in grids.items()
        for i, row in enumerate(grid)
        for j, value in enumerate(row)
        if value is not None
    ]
    if not flat:
        raise NothingToDrawError("there is no FedAvg of the same width to compare the domains with")
    value, label, domain, width = min(flat)
    where = f"{called(label)} on {short(domain)}, {width_in_words(width)}"
    title = f"Worst against FedAvg of the same width: {where}: {value:+.1f}"
    limit = max(1.0, *(abs(value) for value, *_ in flat))
    text = "points of test accuracy more (blue) or less (brown) than FedAvg, by domain and width"
    return Picture("domain-losses", _maps(title, text, grids, domains, dict.fromkeys(grids, widths), LOSS, limit))


def coverage_map(entries: Sequence[MethodRuns]) -> Picture:
    """Which data reached which parameters, as far as it was counted."""
    return draw_coverage({e.label: costs["coverage"] for e in entries if (costs := e.runs[0].costs) is not None})


@in_style
def draw_coverage(known: Mapping[str, ReachedShares]) -> Picture:
    """The share of each slice of the net that a domain's clients ever trained; a panel for each method."""
    counted = {
        label: found  # one net that everybody trains is no picture
        for label, found in known.items()
        if len(found["slices"]) > 1 or min(found["domains"].values(), default=1) < 1
    }
    if not counted:
        raise NothingToDrawError("the coverage of these runs was not counted, or is full")
    domains = list(dict.fromkeys(name for found in counted.values() for name in found["domains"]))
    grids: dict[str, Grid] = {
        label: [[100 * share for share in found["reached"].get(name, [])] for name in domains]
        for label, found in counted.items()
    }
    shares = [(share, label, name) for label, found in counted.items() for name, share in found["domains"].items()]
    share, label, name = min(shares, key=lambda found: found[0])
    much = f"Only {100 * share:.0f} %" if share else "Nothing"
    title = f"{much} of the net ever met the data of {short(name)} under {called(label)}"
    if share == 1:
        title = "Every parameter met the data of every domain"
    columns = {label: [text.removeprefix("base ") for text in found["slices"]] for label, found in counted.items()}
    text = "share (%) of each slice of the net, or of each base, that a domain's clients trained"
    return Picture("coverage", _maps(title, text, grids, domains, columns, SHARE, None))


def _maps(
    title: str,
    text: str,
    grids: Mapping[str, Grid],
    rows: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    colours: Sequence[str],
    limit: float | None,
) -> "drawing.Figure":
    """A panel for each method; numbers from -limit to limit, or from 0 to 100."""
    wide = min(3, len(grids))
    high = math.ceil(len(grids) / wide)
    figure, panels = paper(title, text, 0.8 + high * (0.55 + 0.2 * len(rows)), high, wide, share_x=False)
    span = (0.0, 100.0) if limit is None else (-limit, limit)
    for panel, (label, grid) in zip(panels, grids.items(), strict=False):
        _map(panel, grid, colours, span)
        panel.set_title(called(label))
        panel.set_xticks(range(len(columns[label])), columns[label])
        panel.tick_params(axis="y", labelcolor=INK)
    for panel in panels[len(grids) :]:
        panel.set_visible(False)
    panels[0].set_yticks(range(len(rows)), [short(name) for name in rows])
    return figure


def _map(axes: "Axes", grid: Grid, colours: Sequence[str], span: tuple[float, float]) -> None:
    """One panel: a coloured cell with its number for each row and column."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    scale = LinearSegmentedColormap.from_list("ours", list(colours))
    axes.grid(visible=False)
    axes.set(xlim=(-0.5, len(grid[0]) - 0.5), ylim=(len(grid) - 0.5, -0.5))
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            if value is not None:
                colour = scale((value - span[0]) / (span[1] - span[0]))
                axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
                dark = sum(colour[:3]) < 1.7
                text = f"{round(value, 1) + 0.0:+.1f}" if span[0] < 0 else f"{value:.0f}"
                size = 7 if len(row) < 6 else 5.5
                axes.text(j, i, text, ha="center", va="center", fontsize=size, color="white" if dark else INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(axis="x", labelsize=8, colors=GREY)


def fedavg_domains(entries: Sequence[MethodRuns]) -> dict[str, dict[str, float]]:
    """FedAvg's accuracy by width and domain; where there are two, the one that all clients train counts."""
    found: dict[str, dict[str, float]] = {}
    for entry in sorted((e for e in entries if _is_fedavg(e)), key=lambda e: "strict" in e.label.split()):
        for width in entry.widths:
            names = domain_names(entry.runs[0].result)
            values = {name: _domain_accuracy(entry, width, name) for name in names}
            found.setdefault(width, {name: value for name, value in values.items() if value is not None})
    return found


def _is_fedavg(entry: MethodRuns) -> bool:
    return entry.runs[0].result.get("method") == "fedavg"


def _domain_accuracy(entry: MethodRuns, width: str, domain: str) -> float | None:
    if width not in entry.widths:
        return None
    values = [run.scores[width].get("domains", {}).get(domain) for run in entry.runs]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _client_accuracies(entry: MethodRuns) -> list[float]:
    """In per cent, of all clients and seeds, at the widest width."""
    shares = [share for run in entry.runs for share in run.scores[entry.widths[-1]].get("clients", [])]
    return [100 * share for share in shares if share is not None]


def _per_round(entry: MethodRuns, key: Literal["down", "macs"]) -> list[float]:
    """What each client spent in a round on average, in all seeds; those that spent nothing cannot be drawn."""
    return [
        spent / run.result["rounds"]
        for run in entry.runs
        if run.costs and run.result.get("rounds")
        for spent in run.costs[key]
        if spent
    ]
