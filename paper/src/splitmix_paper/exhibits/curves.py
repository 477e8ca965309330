"""Learning curves: Figures 2, 4, 9 and 13.

Curves are of validation images. What a curve ends in is judged by the test accuracy of the weights that were kept, as
that is known for each client.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from splitmix.report.drawing import GREY, NothingToDrawError, Picture, shade
from splitmix_paper.claims import Cell, Claim, Place, alike, all_too_short, grows, higher, less
from splitmix_paper.exhibit import Draw, Evidence, Exhibit, Need, Runs
from splitmix_paper.exhibits.widths import single_runs
from splitmix_paper.panels import HUES, Panel, Sheet, Stroke, draw_panels
from splitmix_paper.rows import ACCURACY, ROUND
from splitmix_paper.studies import FEDAVG, PAPER_METHODS, SHETEROFL, SPLITMIX, STUDIES, WIDTHS, joined

TIMED = "time of a round"  # the group of the runs that are only timed


def tested(width: str) -> str:
    """The key of the test accuracy at a width."""
    return f"tested at {width}"


def test_cells(evidence: Evidence) -> Iterator[Cell]:
    for runs in evidence.runs.values():
        for cell in runs.by_width(series=joined(runs.need.series)):
            yield replace(cell, place=cell.place._replace(key=tested(cell.place.key)))


def last_validation(runs: Runs, width: str, series: str = "") -> Cell | None:
    return runs.cell(width, lambda run: run.find(ACCURACY, split="val", width=width), series=series)


@dataclass(frozen=True)
class Curves(Exhibit):
    """How nets learn; data sets are groups."""

    unit: str = "validation accuracy in % after the last round"
    data: Sequence[str] = ()
    rivals: ClassVar[Sequence[str]]

    def needs(self, scale: str) -> Sequence[Need]:
        return [need for study in self.data for need in single_runs(study, scale, self.rivals, group=study)]

    def derived(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Cell]:
        return test_cells(evidence)

    def claims(self) -> Sequence[Claim]:
        return [c for s in self.data for c in all_too_short(STUDIES[s].too_short, *self.claims_on(s))]

    def claims_on(self, study: str) -> Iterator[Claim]:
        """What the paper says of one data set."""
        raise NotImplementedError


class Convergence(Curves):
    """How nets of each width learn: FedAvg without budgets, SHeteroFL with them."""

    rivals = (*FEDAVG, SHETEROFL)

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        """FedAvg's nets make one series."""
        for runs in evidence.runs.values():
            found = (last_validation(runs, width, joined(runs.need.series)) for width in WIDTHS)
            yield from (cell for cell in found if cell is not None)

    def claims_on(self, study: str) -> Iterator[Claim]:
        """Without budgets wider is better; with budgets the wide slices of one net fall behind."""
        every = [Place("FedAvg", tested(width), study) for width in WIDTHS]
        yield grows(f"{study}: FedAvg without budgets: wider is better", every)
        yield higher(
            f"{study}: with budgets SHeteroFL's full width ends below its narrower ones",
            (Place(SHETEROFL, tested("1/2"), study), Place(SHETEROFL, tested("1"), study)),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        panels: dict[tuple[str, str], list[Stroke]] = {}
        for runs in evidence.runs.values():
            method = joined(runs.need.series)
            for place, width in enumerate(WIDTHS):
                stroke = Stroke(f"width {width}", runs.first.curve(width), shade(place, len(WIDTHS)))
                panels.setdefault((runs.need.group, method), []).append(stroke)
        told = "validation accuracy (%) by round"
        sheet = Sheet("curves", "How nets of each width learn", told, "round", columns=2)
        drawn = [Panel(f"{study}: {method}", panels[study, method], study) for study, method in sorted(panels)]
        yield partial(draw_panels, evidence, sheet, drawn)


class FullWidth(Curves):
    """How the widest affordable nets learn."""

    rivals = (SPLITMIX, SHETEROFL, FEDAVG[0])

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        """The last validation at the widest width, and the round in which all of a data set reach the same level."""
        for runs in evidence.runs.values():
            group, widest = runs.need.group, runs.first.widths[-1]
            if (cell := last_validation(runs, widest)) is not None:
                yield cell
            own = [other.first for other in evidence.runs.values() if other.need.group == group]
            curves = [run.curve(run.widths[-1]) for run in own]
            if len(curves) == len(self.rivals) and all(curves):
                level = min(max(y for _, y in curve) for curve in curves)
                reached = next(x for x, y in runs.first.curve(widest) if y >= level - 1e-9)
                yield Cell(Place(runs.need.series, "rounds", group), {next(iter(runs.seeds)): reached})

    def claims_on(self, study: str) -> Iterator[Claim]:
        ours = Place(SPLITMIX, tested("1"), study)
        yield higher(
            f"{study}: Split-Mix ends above both rivals",
            (ours, Place(SHETEROFL, tested("1"), study)),
            (ours, Place("FedAvg", tested("1/8"), study)),
        )
        yield less(
            f"{study}: Split-Mix needs fewer rounds than SHeteroFL for what both reach",
            Place(SPLITMIX, "rounds", study),
            Place(SHETEROFL, "rounds", study),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        panels: dict[str, list[Stroke]] = {}
        for runs in evidence.runs.values():
            curve, method = runs.first.curve(runs.first.widths[-1]), runs.need.series
            panels.setdefault(runs.need.group, []).append(Stroke(method, curve, HUES.get(method, GREY)))
        sheet = Sheet(
            "curves",
            "How the widest affordable nets learn",
            "validation accuracy (%) by round: FedAvg at width 1/8, the others at 1",
            "round",
        )
        yield partial(draw_panels, evidence, sheet, [Panel(study, panels[study], study) for study in panels])


@dataclass(frozen=True)
class WallClock(Exhibit):
    """A few rounds of each method in turn, for the time; the curves are those of the table."""

    methods: Sequence[str] = (FEDAVG[0], SPLITMIX, SHETEROFL)

    def needs(self, scale: str) -> Sequence[Need]:
        seeds = (1,) if scale == "smoke" else (1, 2, 3)
        timed = [Need(label, "clock", {"method": PAPER_METHODS[label]}, seeds, group=TIMED) for label in self.methods]
        return [*timed, *single_runs("digits", scale, self.methods)]

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        """The middle one of a run's rounds, for each seed."""
        for runs in evidence.runs.values():
            if runs.need.group == TIMED:
                found = {seed: row.value for seed, run in runs.seeds.items() if (row := run.find(ROUND)) is not None}
                yield Cell(Place(runs.need.series, "seconds"), found)

    def claims(self) -> Sequence[Claim]:
        ours, theirs, least = (Place(label, "seconds") for label in (SPLITMIX, SHETEROFL, FEDAVG[0]))
        return (
            less("A round of Split-Mix is shorter than one of SHeteroFL", ours, theirs),
            alike("A round of Split-Mix is hardly longer than one of FedAvg of width 1/8", (ours, least)),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        yield partial(self._draw, evidence, cells)

    def _draw(self, evidence: Evidence, cells: Sequence[Cell]) -> Picture:
        """The curves of full runs over the seconds that a round takes when the methods are measured in turn."""
        seconds = {cell.place.series: cell.mean for cell in cells}
        runs = {label: evidence.runs[label].first for label in seconds if label in evidence.runs}
        curves = {label: run.curve(run.widths[-1]) for label, run in runs.items()}
        if not all(curves.get(label) for label in seconds):
            raise NothingToDrawError("some of the methods that were timed have no curve")
        strokes = [
            Stroke(label, [(x * seconds[label] / 60, y) for x, y in curve], HUES.get(label, GREY))
            for label, curve in curves.items()
        ]
        told = ", ".join(f"{label} {value:.2g} s" for label, value in seconds.items())
        below = "validation accuracy (%), widest affordable net"
        return draw_panels(
            evidence, Sheet("clock", f"A round takes {told}", below, "minutes of training"), [Panel("", strokes)]
        )
