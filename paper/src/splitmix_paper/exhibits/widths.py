"""Tables of widths: Table 1, Table 5, and SHeteroFL with other weights of clients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from splitmix.core.width import Width, parse_width
from splitmix.nets import find_net
from splitmix.nets.cost import cost_rows
from splitmix.report.tables import Column, Table
from splitmix_paper.claims import Cell, Claim, Place, alike, all_too_short, grows, higher
from splitmix_paper.exhibit import Draw, Evidence, Exhibit, Need, Printed
from splitmix_paper.panels import Panel, Sheet, draw_panels, width_strokes
from splitmix_paper.studies import FEDAVG, PAPER_METHODS, SHETEROFL, SPLITMIX, STUDIES, WIDTHS
from splitmix_paper.texts import number_text

OURS = "Split-Mix, lr 0.1, greedy order"  # without the levers of the recommended recipe
CALIBRATED = f"{OURS}, calibrated norms"
RELEASED = "SHeteroFL, released weights"
AUTHORS, PAPER = "authors' code", "paper"  # what others measured for Split-Mix
LISTED = (SPLITMIX, *FEDAVG[:3], SHETEROFL, FEDAVG[3])
BY_AUTHORS = (83.1, 86.7, 88.6, 90.1)  # their released code on our copy of Digits, 300 rounds, seed 1
IMAGES = {"digit": (28, 28, 3), "preresnet18": (32, 32, 3), "alexnet": (256, 256, 3)}
# printed costs in millions: one net of a width (FedAvg, SHeteroFL), and as many bases of 1/8 (Split-Mix)
MACS = {
    "preresnet18": ((0.9, 3.5, 14.0, 55.7), (0.9, 1.8, 3.6, 7.2)),
    "digit": ((0.1, 0.4, 1.3, 4.8), (0.1, 0.2, 0.5, 0.9)),
    "alexnet": ((2.5, 7.5, 25.5, 92.5), (2.5, 5.0, 9.9, 19.8)),
}
PARAMETERS = {
    "preresnet18": ((0.2, 0.7, 2.8, 11.2), (0.2, 0.4, 0.7, 1.4)),
    "digit": ((0.2, 0.9, 3.6, 14.2), (0.2, 0.4, 0.9, 1.8)),
    "alexnet": ((0.9, 3.6, 14.3, 57.1), (0.9, 1.8, 3.6, 7.2)),
}
WEIGHTED = {"name": "sheterofl", "released_weighting": True}


def sized_needs(study: str, labels: Sequence[str] = LISTED) -> list[Need]:
    """The methods of the paper's tables: FedAvg is trained anew for each width."""
    return [Need(label, study, {"method": PAPER_METHODS[label]}) for label in labels]


def digits_needs(scale: str) -> list[Need]:
    """Split-Mix with several seeds, as released and with our rate; FedAvg of width 1 as long as an hour allows."""
    seeds = (1, 2) if scale == "smoke" else (1, 2, 3)
    whole = {"method": PAPER_METHODS[FEDAVG[3]], **({"rounds": 160} if scale == "cpu" else {})}
    return [
        Need(SPLITMIX, "digits", {"method": "splitmix"}, seeds),
        Need(OURS, "digits", {"method": "splitmix", "lr": 0.1, "order": "greedy"}, seeds),
        *sized_needs("digits", (*FEDAVG[:3], SHETEROFL)),
        Need(FEDAVG[3], "digits", whole),
        *([Need(RELEASED, "digits", {"method": WEIGHTED})] if scale == "paper" else []),
    ]


def single_runs(study: str, scale: str, labels: Sequence[str], **change: Any) -> list[Need]:
    """Those runs of a table that have these labels, with one seed: what is drawn of single runs."""
    every = digits_needs(scale) if study == "digits" else sized_needs(study)
    return [replace(need, seeds=need.seeds[:1], **change) for need in every if need.series in labels]


@dataclass(frozen=True)
class WidthTable(Exhibit):
    """Accuracy by method and width."""

    study: str = ""
    net: str = ""  # whose printed costs stand beside ours

    @staticmethod
    def read_printed(table: Mapping[str, Sequence[float]]) -> Printed:
        """A row of each method by width; FedAvg's nets are trained one by one."""
        rows = {name: FEDAVG if name == "FedAvg" else [name] * len(WIDTHS) for name in table}
        return {
            Place(series, width): value
            for name, row in rows.items()
            for series, width, value in zip(row, WIDTHS, table[name], strict=True)
        }

    def needs(self, scale: str) -> Sequence[Need]:
        return sized_needs(self.study)

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        for runs in evidence.runs.values():
            yield from runs.by_width()

    def claims(self) -> Sequence[Claim]:
        ours, theirs = ({width: Place(series, width) for width in WIDTHS} for series in (SPLITMIX, SHETEROFL))
        return all_too_short(
            STUDIES[self.study].too_short,
            grows("Wider is better for Split-Mix", [*ours.values()]),
            higher("SHeteroFL falls from width 1/2 to 1", (theirs["1/2"], theirs["1"])),
            higher("At full width Split-Mix is above SHeteroFL", (ours["1"], theirs["1"])),
            higher("At width 1/2 Split-Mix is above SHeteroFL", (ours["1/2"], theirs["1/2"])),
            higher(
                "With the same width Split-Mix is above SHeteroFL (the text, for all widths)",
                *((ours[width], theirs[width]) for width in WIDTHS),
            ),
            higher(
                "Split-Mix at full width is above FedAvg of width 1/8, the only one within all budgets",
                (ours["1"], Place(FEDAVG[0], "1/8")),
            ),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        yield partial(draw_widths, evidence, cells)

    def costs(self) -> Table | None:
        return printed_costs(self.net) if self.net else None


class DigitsTable(WidthTable):
    """Table 1 on Digits: with our rate, too, and beside what the authors' code gives on the same data."""

    def needs(self, scale: str) -> Sequence[Need]:
        return digits_needs(scale)

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        yield from super().cells(evidence)
        if OURS in evidence.runs:
            yield from evidence.runs[OURS].by_width(norm="client", series=CALIBRATED)

    def derived(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Cell]:
        """What others measured for Split-Mix; only full runs can be held against it."""
        if evidence.scale != "smoke" and OURS in evidence.runs:
            for width, value in zip(WIDTHS, BY_AUTHORS, strict=True):
                yield Cell(Place(AUTHORS, width), {1: value}, kind="printed")
                yield Cell(Place(PAPER, width), {1: self.printed[Place(SPLITMIX, width)]}, kind="printed")

    def claims(self) -> Sequence[Claim]:
        def at_all_widths(one: str, *others: str) -> list[tuple[Place, Place]]:
            return [(Place(one, width), Place(other, width)) for other in others for width in WIDTHS]

        return (
            *super().claims(),
            higher(
                "At full width Split-Mix is comparable with FedAvg of width 1: not below it",
                (Place(SPLITMIX, "1"), Place(FEDAVG[3], "1")),
            ),
            higher(
                "At rate 0.1, bases in greedy order, Split-Mix is above itself as released",
                *at_all_widths(OURS, SPLITMIX),
            ),
            alike(
                "With the released settings Split-Mix is what the authors' code gives on the same data",
                *at_all_widths(SPLITMIX, AUTHORS),
            ),
            higher(
                "So it is above the authors' code and the printed values, too",
                *at_all_widths(OURS, AUTHORS, PAPER),
            ),
        )


class Weighting(WidthTable):
    """Whether SHeteroFL's fall comes of the weights that the released code gives to clients."""

    def needs(self, scale: str) -> Sequence[Need]:
        return [*sized_needs(self.study, (SPLITMIX, SHETEROFL)), Need(RELEASED, self.study, {"method": WEIGHTED})]

    def claims(self) -> Sequence[Claim]:
        return (
            higher(
                "SHeteroFL falls at full width when each client counts once",
                (Place(SHETEROFL, "1/2"), Place(SHETEROFL, "1")),
            ),
            higher("It falls with the released weights, too", (Place(RELEASED, "1/2"), Place(RELEASED, "1"))),
        )


def draw_widths(evidence: Evidence, cells: Sequence[Cell]) -> Any:
    """Ours as lines, the paper's as dotted ones with hollow points."""
    printed = evidence.exhibit.printed
    dotted = [*width_strokes(cells, printed)] if printed else []
    told = "test accuracy (%), mean over clients" + ("; dotted: as printed in the paper" if printed else "")
    sheet = Sheet("widths", _lead(cells), told, "width")
    return draw_panels(evidence, sheet, [Panel("", [*dotted, *width_strokes(cells)])])


def _lead(cells: Sequence[Cell]) -> str:
    """Split-Mix against SHeteroFL at the ends, as a fact."""
    at = {cell.place: cell.mean for cell in cells}
    told = [
        f"{ours - theirs:+.1f} points at width {width}"
        for width in (WIDTHS[0], WIDTHS[-1])
        if (ours := at.get(Place(SPLITMIX, width))) is not None
        and (theirs := at.get(Place(SHETEROFL, width))) is not None
    ]
    return f"Split-Mix against SHeteroFL: {', '.join(told)}" if told else "Accuracy by width"


@cache
def printed_costs(net: str) -> Table:
    """MACs and parameters that we count, beside the printed ones."""
    counted = cost_rows(find_net(net), IMAGES[net], Width(1, 8), [parse_width(width) for width in WIDTHS])
    columns = [Column("width", "width", number=False)]
    for kind in ("one net", "bases"):
        for what, heading in (("macs", "MACs"), ("parameters", "parameters")):
            columns.append(Column(f"{kind}.{what}", f"{heading} of {kind}, M", number_text))
            columns.append(Column(f"{kind}.{what}.paper", "paper", number_text))
    rows = []
    for place, (width, row) in enumerate(zip(WIDTHS, counted, strict=True)):
        cells: list[Any] = [width]
        for number, prefix in enumerate(("single_", "")):
            for what, table in (("macs", MACS), ("parameters", PARAMETERS)):
                cells += [float(row[f"{prefix}{what}"]) / 1e6, table[net][number][place]]
        rows.append(cells)
    note = (
        "The paper's MACs are ten times too small in every cell; its parameters are right. One net serves FedAvg and "
        "SHeteroFL, bases of width 1/8 serve Split-Mix."
    )
    return Table("Cost of each width", columns, rows, note)
