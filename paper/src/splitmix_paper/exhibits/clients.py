"""Figures 5 and 6: what single clients reach and spend, and which domain trains what and what it loses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from splitmix.compare.figures import count_axis
from splitmix.compare.maps import LOSS, SHARE, Grid, draw_maps
from splitmix.report.drawing import GREY, INK, NothingToDrawError, Picture, in_style, paper, short
from splitmix_paper.claims import Cell, Claim, Place, alike, higher, less
from splitmix_paper.exhibit import Draw, Evidence, Exhibit, Need, Runs
from splitmix_paper.exhibits.widths import single_runs
from splitmix_paper.panels import HUES
from splitmix_paper.rows import BUDGET, DOWNLOAD, REACHED, WORK, WORST, Measured
from splitmix_paper.studies import FEDAVG, SHETEROFL, SPLITMIX

BYTES = 4  # of a parameter


@dataclass(frozen=True)
class Clients(Exhibit):
    """Accuracy at full width, download and work of each client."""

    def needs(self, scale: str) -> Sequence[Need]:
        return single_runs("digits", scale, (SPLITMIX, SHETEROFL, FEDAVG[0]), priced=True)

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        for runs in evidence.runs.values():
            widest = runs.first.widths[-1]
            accuracy = runs.cell("accuracy", lambda run, at=widest: run.score(at))  # type: ignore[misc]
            if accuracy is None or not accuracy.clients:
                continue
            yield accuracy
            yield _spread(runs.need.series, accuracy)
            yield from _spent(runs)

    def claims(self) -> Sequence[Claim]:
        def both(key: str) -> tuple[Place, Place]:
            return Place(SPLITMIX, key), Place(SHETEROFL, key)

        return (
            higher("Full-width accuracy of the clients is above SHeteroFL's", both("accuracy")),
            higher("It varies less from client to client than SHeteroFL's", (both("spread")[1], both("spread")[0])),
            less("A client loads fewer parameters in a round than under SHeteroFL", *both("download")),
            less("A client computes less for a batch than under SHeteroFL", *both("work")),
            less("FedAvg of width 1/8 needs least", Place(FEDAVG[0], "work"), Place(SPLITMIX, "work")),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell], root: Path | None) -> Iterator[Draw]:
        yield partial(draw_boxes, {label: runs.first for label, runs in evidence.runs.items()})


def _spread(series: str, accuracy: Cell) -> Cell:
    """The standard deviation over clients; for each of them how far it is from the mean, which tells of the noise."""
    values, away = {}, {}
    for seed, clients in accuracy.clients.items():
        known = [value for value in clients if value is not None]
        mean, spread = fmean(known), pstdev(known)
        values[seed] = spread
        # the derivative of the spread by a client's weight: resampling it resamples the spread
        away[seed] = [spread if not spread else (spread + (value - mean) ** 2 / spread) / 2 for value in known]
    return Cell(Place(series, "spread"), values, away)


def _spent(runs: Runs) -> Iterator[Cell]:
    for key, measure, unit in (("download", DOWNLOAD, BYTES * 1e6), ("work", WORK, 1e9)):
        found = {seed: row.value / unit for seed, run in runs.seeds.items() if (row := run.find(measure)) is not None}
        if found:
            yield Cell(Place(runs.need.series, key), found, kind="counted")


@in_style
def draw_boxes(runs: Mapping[str, Measured]) -> Picture:
    """How clients fare under each method: accuracy, traffic and work; a box holds the middle half of them."""
    from matplotlib.ticker import LogLocator

    columns = {"accuracy (%)\nat its widest": {label: _accuracies(run) for label, run in runs.items()}}
    for heading, measure in (("download\n(bytes per round)", DOWNLOAD), ("training\n(MACs per round)", WORK)):
        columns[heading] = {label: _each(run, measure) for label, run in runs.items()}
    drawn = {heading: values for heading, values in columns.items() if any(values.values())}
    worst = {label: min(values) for label, values in next(iter(columns.values())).items() if values}
    if not worst:
        raise NothingToDrawError("the accuracy of single clients is not known")
    best = max(worst, key=lambda label: worst[label])
    title = f"The worst-off client fares best under {best}: {worst[best]:.1f} %"
    text = "box: the middle half of the clients; whiskers: all of them"
    figure, axes = paper(title, text, 1.6 + 0.3 * len(runs), columns=len(drawn), share_x=False)
    for axis, (heading, values) in zip(axes, drawn.items(), strict=True):
        for place, (label, each) in enumerate(values.items()):
            _box(axis, place, each, HUES.get(label, GREY))
        axis.set_title(heading)
        axis.grid(axis="y", visible=False)
        axis.grid(axis="x")
        if "per round" in heading:
            count_axis(axis)
            axis.xaxis.set_major_locator(LogLocator(numticks=5))
    axes[0].set_yticks(range(len(runs)), list(runs), color=INK)
    axes[0].invert_yaxis()
    return Picture("client-boxes", figure)


def _box(axis: Any, place: int, values: Sequence[float], colour: str) -> None:
    thin = {"color": colour, "linewidth": 1.1}
    look = {"facecolor": f"{colour}33", "edgecolor": colour, "linewidth": 1.1}
    style = {"boxprops": look, "medianprops": {"color": INK, "linewidth": 2.2}, "whiskerprops": thin, "capprops": thin}
    box = {"orientation": "horizontal", "widths": 0.55, "whis": (0, 100), "patch_artist": True}
    axis.boxplot(values, positions=[place], **box, **style)


def _accuracies(run: Measured) -> list[float]:
    row = run.score(run.widths[-1])
    return [100 * value for value in (row and row.clients) or () if value is not None]


def _each(run: Measured, measure: str) -> list[float]:
    row = run.find(measure)
    return [value for value in (row and row.clients) or () if value]


@dataclass(frozen=True)
class Domains(Exhibit):
    """The share of the net that each domain's data trains, and its worst loss against FedAvg of the same width."""

    study: str = ""

    def needs(self, scale: str) -> Sequence[Need]:
        priced = single_runs(self.study, scale, (SPLITMIX, SHETEROFL), priced=True)
        return [*priced, *single_runs(self.study, scale, FEDAVG)]

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        base = fedavg_of(evidence)
        for runs in (evidence.runs[label] for label in (SPLITMIX, SHETEROFL) if label in evidence.runs):
            seed, run = next(iter(runs.seeds.items()))
            reached = run.find(REACHED)
            for name, share in (reached.domains or {}).items() if reached else ():
                yield Cell(Place(runs.need.series, f"{name}: trained"), {seed: 100 * (share or 0)}, kind="counted")
            for name in _homes(run):
                if (worst := _worst(run, base, name)) is not None:
                    value, clients = worst
                    each = {seed: clients} if clients else {}
                    yield Cell(Place(runs.need.series, f"{name}: worst"), {seed: value}, each)

    def derived(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Cell]:
        """The lowest of all domains."""
        for label in (SPLITMIX, SHETEROFL):
            own = [cell for cell in cells if cell.place.series == label]
            for ending, key in ((": trained", "least trained"), (": worst", "worst domain")):
                found = [cell for cell in own if cell.place.key.endswith(ending)]
                if found:
                    lowest = min(found, key=lambda cell: cell.mean)
                    yield Cell(Place(label, key), lowest.values, lowest.clients, lowest.kind)
            yield Cell(Place(label, "all"), {1: 100.0}, kind="counted")

    def claims(self) -> Sequence[Claim]:
        return (
            alike(
                "Every domain trains all parameters of Split-Mix",
                (Place(SPLITMIX, "least trained"), Place(SPLITMIX, "all")),
            ),
            higher(
                "Under SHeteroFL some domains train only a part",
                (Place(SHETEROFL, "all"), Place(SHETEROFL, "least trained")),
            ),
            higher(
                "SHeteroFL's worst loss against FedAvg, of all domains and widths, is larger",
                (Place(SPLITMIX, "worst domain"), Place(SHETEROFL, "worst domain")),
            ),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell], root: Path | None) -> Iterator[Draw]:
        runs = {label: evidence.runs[label].first for label in (SPLITMIX, SHETEROFL) if label in evidence.runs}
        yield partial(draw_reached, runs)
        yield partial(draw_losses, runs, fedavg_of(evidence))


def fedavg_of(evidence: Evidence) -> dict[str, Measured]:
    """FedAvg by its width."""
    known = (evidence.runs.get(label) for label in FEDAVG)
    return {runs.first.widths[-1]: runs.first for runs in known if runs is not None}


def _homes(run: Measured) -> list[str]:
    row = run.find(BUDGET)
    return list(dict.fromkeys((row and row.homes) or ()))


def _loss(run: Measured, fedavg: Measured, width: str, domain: str) -> tuple[float, list[float]] | None:
    """Points of a domain above FedAvg of the same width, in the mean and for each of its clients."""
    mine, theirs, home = run.score(width), fedavg.score(width), run.find(BUDGET)
    if not (mine and theirs and mine.domains and theirs.domains):
        return None
    ours, other = mine.domains.get(domain), theirs.domains.get(domain)
    if ours is None or other is None:
        return None
    trios = zip((home and home.homes) or (), mine.clients or (), theirs.clients or (), strict=True)
    each = [100 * (a - b) for at, a, b in trios if at == domain and a is not None and b is not None]
    return 100 * (ours - other), each


def _worst(run: Measured, base: Mapping[str, Measured], domain: str) -> tuple[float, list[float]] | None:
    """Of all widths; what an earlier report knew of runs that are gone counts, too."""
    losses = [found for width, fedavg in base.items() if (found := _loss(run, fedavg, width, domain)) is not None]
    earlier = run.find(WORST)
    if earlier and earlier.domains and (value := earlier.domains.get(domain)) is not None:
        losses.append((100 * value, []))
    return min(losses, key=lambda loss: loss[0], default=None)


@in_style
def draw_reached(runs: Mapping[str, Measured]) -> Picture:
    """Which data reached which parameters: the share of each slice of the net that a domain's clients ever trained."""
    found = {label: row.reached for label, run in runs.items() if (row := run.find(REACHED)) and row.reached}
    if not found:
        raise NothingToDrawError("what each domain trains was not counted")
    domains = list(dict.fromkeys(name for reached in found.values() for name in reached))
    grids: dict[str, Grid] = {
        label: [[100 * share for share in reached[name].values()] for name in domains]
        for label, reached in found.items()
    }
    columns = {label: [text.removeprefix("base ") for text in reached[domains[0]]] for label, reached in found.items()}
    least = {label: run.find(REACHED) for label, run in runs.items() if label in found}
    shares = [(s or 0.0, label, name) for label, row in least.items() if row for name, s in (row.domains or {}).items()]
    share, label, name = min(shares)
    title = f"Only {100 * share:.0f} % of the net ever met the data of {short(name)} under {label}"
    text = "share (%) of each slice of the net, or of each base, that a domain's clients trained"
    return Picture("coverage", draw_maps(title, text, grids, domains, columns, SHARE, None))


@in_style
def draw_losses(runs: Mapping[str, Measured], base: Mapping[str, Measured]) -> Picture:
    """Points of accuracy against FedAvg of the same width, for each domain; a panel for each method."""
    domains = list(dict.fromkeys(name for run in runs.values() for name in _homes(run)))
    found = {
        (label, name, width): loss[0]
        for label, run in runs.items()
        for name in domains
        for width, fedavg in base.items()
        if (loss := _loss(run, fedavg, width, name)) is not None
    }
    if not found:
        raise NothingToDrawError("there is no FedAvg of the same width to compare the domains with")
    widths = [width for width in base if any(at == width for *_, at in found)]
    grids = {label: [[found.get((label, name, width)) for width in widths] for name in domains] for label in runs}
    label, name, width = min(found, key=lambda place: found[place])
    told = f"{label} on {short(name)}, width {width}: {found[label, name, width]:+.1f}"
    title = f"Worst against FedAvg of the same width: {told}"
    limit = max(1.0, *(abs(value) for value in found.values()))
    text = "points of test accuracy more (blue) or less (brown) than FedAvg, by domain and width"
    return Picture("domain-losses", draw_maps(title, text, grids, domains, dict.fromkeys(runs, widths), LOSS, limit))


FIGURE5 = Clients(
    "figure5-clients",
    "Figure 5",
    "Accuracy, traffic and work of single clients",
    ["fig:train_efficiency"],
    unit="as named",
)
FIGURE6 = Domains(
    "figure6-domains",
    "Figure 6",
    "Which domain trains what, and what it loses, DomainNet",
    ["fig:DomainNet_domain_width_mat"],
    unit="as named",
    study="domainnet",
)
DOMAINS_DIGITS = Domains(
    "domains-digits",
    "Beyond the paper",
    "Which domain trains what, and what it loses, Digits",
    unit="as named",
    study="digits",
)
