"""Figures 5 and 6: what single clients reach and spend, and which domain trains what and what it loses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, pstdev

from splitmix.compare.coverage import ReachedShares
from splitmix.compare.maps import draw_boxes, draw_coverage, draw_losses
from splitmix.report.drawing import GREY
from splitmix_paper.claims import Cell, Claim, Place, alike, higher, less
from splitmix_paper.exhibit import Draw, Evidence, Exhibit, Need, Runs
from splitmix_paper.exhibits.widths import single_runs
from splitmix_paper.panels import HUES
from splitmix_paper.rows import BUDGET, DOWNLOAD, REACHED, WORK, WORST, Measured, Row
from splitmix_paper.studies import FEDAVG, SHETEROFL, SPLITMIX

BYTES = 4  # of a parameter


@dataclass(frozen=True)
class SingleClients(Exhibit):
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

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        runs = {label: runs.first for label, runs in evidence.runs.items()}
        accuracy = {label: _accuracies(run) for label, run in runs.items()}
        traffic, work = ({label: _each(run, spent) for label, run in runs.items()} for spent in (DOWNLOAD, WORK))
        colours = {label: HUES.get(label, GREY) for label in runs}
        yield partial(draw_boxes, accuracy, traffic, work, colours, [label for label in runs if accuracy[label]])


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

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        runs = {label: evidence.runs[label].first for label in (SPLITMIX, SHETEROFL) if label in evidence.runs}
        base = fedavg_of(evidence)
        domains = list(dict.fromkeys(name for run in runs.values() for name in _homes(run)))
        widths = [width for width, run in base.items() if (row := run.score(width)) and row.domains]
        yield partial(
            draw_coverage, {label: _reached(row) for label, run in runs.items() if (row := run.find(REACHED))}
        )
        losses = {
            label: [[_loss(run, base[width], width, name)[0] for width in widths] for name in domains]
            for label, run in runs.items()
        }
        yield partial(draw_losses, losses, domains, widths)


def _reached(row: Row) -> ReachedShares:
    reached = row.reached or {}
    return {
        "domains": {name: share or 0.0 for name, share in (row.domains or {}).items()},
        "slices": [*next(iter(reached.values()), {})],
        "reached": {name: [*found.values()] for name, found in reached.items()},
    }


def fedavg_of(evidence: Evidence) -> dict[str, Measured]:
    """FedAvg by its width."""
    known = (evidence.runs.get(label) for label in FEDAVG)
    return {runs.first.widths[-1]: runs.first for runs in known if runs is not None}


def _homes(run: Measured) -> list[str]:
    row = run.find(BUDGET)
    return list(dict.fromkeys((row and row.homes) or ()))


def _loss(run: Measured, fedavg: Measured, width: str, domain: str) -> tuple[float | None, list[float]]:
    """Points of a domain above FedAvg of the same width, in the mean if it is known, and for each of its clients."""
    mine, theirs, home = run.score(width), fedavg.score(width), run.find(BUDGET)
    if mine is None or theirs is None:
        return None, []
    ours, other = ((row.domains or {}).get(domain) for row in (mine, theirs))
    if ours is None or other is None:
        return None, []
    trios = zip((home and home.homes) or (), mine.clients or (), theirs.clients or (), strict=True)
    each = [100 * (a - b) for at, a, b in trios if at == domain and a is not None and b is not None]
    return 100 * (ours - other), each


def _worst(run: Measured, base: Mapping[str, Measured], domain: str) -> tuple[float, list[float]] | None:
    """Of all widths; what an earlier report knew of runs that are gone counts, too."""
    found = (_loss(run, fedavg, width, domain) for width, fedavg in base.items())
    losses = [(value, clients) for value, clients in found if value is not None]
    earlier = run.find(WORST)
    if earlier and earlier.domains and (value := earlier.domains.get(domain)) is not None:
        losses.append((100 * value, []))
    return min(losses, key=lambda loss: loss[0], default=None)
