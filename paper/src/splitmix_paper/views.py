"""An entry's tables: our numbers beside the paper's, the claims and what became of them, the cost of each width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import stdev
from typing import Any

from splitmix.core.width import Width, parse_width
from splitmix.nets import find_net
from splitmix.nets.cost import cost_rows
from splitmix.report.tables import Column, Table
from splitmix_paper import printed
from splitmix_paper.claims import FAILS, HOLDS, OPEN, UNKNOWN, Claim, Verdict, judged
from splitmix_paper.found import Found, Row
from splitmix_paper.rows import in_order, printed_values, rows_of, values_of
from splitmix_paper.sets import FEDAVG

SIGNS = {HOLDS: "✓ holds", FAILS: "✗ does not hold", OPEN: "≈ too close to call", UNKNOWN: "· not known"}
HEADINGS = {
    "download": "download, M parameters a round",
    "work": "work, G MACs a round",
    "accuracy": "accuracy %",
    "spread": "spread over clients",
    "seconds": "seconds of a round",
    "rounds": "rounds to a common level",
    "clean": "clean %",
    "attacked": "under attack %",
}
IMAGES = {"digit": (28, 28, 3), "preresnet18": (32, 32, 3), "alexnet": (256, 256, 3)}


@dataclass(frozen=True)
class View:
    """An entry, ready to be written: rows, verdicts, tables."""

    found: Found

    @property
    def name(self) -> str:
        return self.found.entry.name

    @cached_property
    def rows(self) -> list[Row]:
        return rows_of(self.found)

    @cached_property
    def verdicts(self) -> list[tuple[Claim, Verdict, Verdict]]:
        """Each claim, on our numbers and on the paper's."""
        ours, theirs = values_of(self.found, self.rows), printed_values(self.found)
        claims = self.found.entry.claims
        return [
            (claim, mine, other)
            for (claim, mine), (_, other) in zip(judged(claims, ours), judged(claims, theirs), strict=True)
        ]

    def count(self, word: str) -> int:
        """How many claims have this verdict on our numbers."""
        return sum(mine.word == word for _, mine, _ in self.verdicts)

    @property
    def state(self) -> str:
        """How far it is, in words."""
        jobs = self.found.jobs
        if self.found.complete:
            return "done"
        return f"{len(self.found.known)} of {len(jobs)} runs done" if self.found.begun else "not run yet"

    @property
    def verdict(self) -> str:
        """All claims in a few words."""
        counts = [(word, self.count(word)) for word in (HOLDS, FAILS, OPEN)]
        told = ", ".join(f"{count} {words(word, count)}" for word, count in counts if count)
        return told or ("nothing to judge" if not self.verdicts else "not yet judged")


def words(verdict: str, count: int) -> str:
    """A verdict for so many claims.

    >>> words("holds", 1), words("holds", 3), words("does not hold", 2)
    ('holds', 'hold', 'do not hold')
    """
    if count == 1:
        return verdict
    return {HOLDS: "hold", FAILS: "do not hold"}.get(verdict, verdict)


def entry_table(view: View) -> Table:
    """A row for each series (FedAvg's nets are one, if several); for each key our value, the paper's, and the gap."""
    several = sum(series in FEDAVG for series in {row.series for row in view.rows}) > 1
    names = {row.series: "FedAvg" if several and row.series in FEDAVG else row.series for row in view.rows}
    at = {(names[row.series], row.key): row for row in view.rows}
    keys = in_order([row.key for row in view.rows])
    told = {key for key in keys if any(row.printed is not None for row in view.rows if row.key == key)}
    columns = [Column("series", "", number=False)]
    for key in keys:
        columns.append(Column(key, heading(key), shown(key)))
        if key in told:
            columns.append(Column(f"{key}.paper", "paper", partial(printed_text, shown(key))))
            columns.append(Column(f"{key}.gap", "diff.", signed))
    rows: list[list[Any]] = []
    for series in dict.fromkeys(names.values()):
        cells: list[Any] = [series]
        for key in keys:
            row = at.get((series, key))
            cells.append(None if row is None or row.mean is None else (row.mean, spread(row)))
            if key in told:
                cells += [row and row.printed, row and row.difference]
        rows.append(cells)
    return Table(f"{view.found.entry.place}: {view.found.entry.title}", columns, rows, caption(view))


def caption(view: View) -> str:
    """What the numbers are."""
    seeds = sorted({seed for row in view.rows for seed in row.values} - {0})
    several = any(len(row.values) > 1 for row in view.rows)
    told = "; ± is the standard deviation over seeds" if several else ""
    unit = view.found.entry.unit.capitalize() if view.found.entry.unit.islower() else view.found.entry.unit
    which = f"; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ""
    data = "".join(f"; {text}" for text in view.found.stand_ins)
    return f"{unit}{which}{told}{data}."


def verdict_table(view: View) -> Table:
    """Each claim, whether it holds here, whether the paper's own numbers bear it out, and by how much."""
    own = any(theirs.word != UNKNOWN for *_, theirs in view.verdicts)
    columns = [
        Column("claim", "claim", number=False),
        Column("ours", "our runs", number=False),
        *([Column("paper", "the paper's own numbers", number=False)] if own else []),
        Column("evidence", "by how much, in our runs", number=False),
    ]
    rows = [
        [claim.text, SIGNS[mine.word], *([SIGNS[theirs.word]] if own else []), mine.evidence or "-"]
        for claim, mine, theirs in view.verdicts
    ]
    return Table("Claims", columns, rows)


def cost_table(view: View) -> Table | None:
    """MACs and parameters that we count, beside the printed ones."""
    net = view.found.entry.net
    if view.found.entry.shown != "widths" or not net:
        return None
    counted = cost_rows(find_net(net), IMAGES[net], Width(1, 8), [parse_width(width) for width in printed.WIDTHS])
    columns = [Column("width", "width", number=False)]
    for kind in ("one net", "bases"):
        for what, heading in (("macs", "MACs"), ("parameters", "parameters")):
            columns.append(Column(f"{kind}.{what}", f"{heading} of {kind}, M", number_text))
            columns.append(Column(f"{kind}.{what}.paper", "paper", number_text))
    rows = []
    for width, row in zip(printed.WIDTHS, counted, strict=True):
        cells: list[Any] = [width]
        for kind, prefix in (("one net", "single_"), ("bases", "")):
            for what, table in (("macs", printed.MACS), ("parameters", printed.PARAMETERS)):
                cells += [float(row[f"{prefix}{what}"]) / 1e6, table[net][kind][width]]
        rows.append(cells)
    note = (
        "The paper's MACs are ten times too small in every cell; its parameters are right. One net serves FedAvg and "
    )
    return Table("Cost of each width", columns, rows, f"{note}SHeteroFL, bases of width 1/8 serve Split-Mix.")


def heading(key: str) -> str:
    try:
        return f"width {parse_width(key)}"
    except ValueError:
        return HEADINGS.get(key, key)


def shown(key: str) -> Any:
    """Per cent with one digit, counts with what they need."""
    if key in ("rounds", "outputs", "kernel"):
        return whole_text
    return plain_text if key in ("download", "work", "seconds") else spread_text


def spread(row: Row) -> float | None:
    return stdev(row.values.values()) if len(row.values) > 1 else None


def spread_text(value: tuple[float, float | None] | None) -> str:
    """Mean and spread with one digit.

    >>> spread_text((85.12, 0.4)), spread_text((85.0, None)), spread_text(None)
    ('85.1 ± 0.4', '85.0', '-')
    """
    return _mean_and_spread(value, "{:.1f}".format)


def printed_text(show: Any, value: float | None) -> str:
    """A printed number, shown like ours."""
    return str(show(None if value is None else (value, None)))


def whole_text(value: tuple[float, float | None] | None) -> str:
    return "-" if value is None else f"{value[0]:.0f}"


def plain_text(value: tuple[float, float | None] | None) -> str:
    """Mean and spread with three digits.

    >>> plain_text((3.728, 0.111)), plain_text((0.83, None)), plain_text(None)
    ('3.73 ± 0.11', '0.83', '-')
    """
    return _mean_and_spread(value, number_text)


def _mean_and_spread(value: tuple[float, float | None] | None, show: Callable[[float], str]) -> str:
    if value is None:
        return "-"
    mean, wide = value
    return show(mean) if wide is None else f"{show(mean)} ± {show(wide)}"


def number_text(value: float | None) -> str:
    """Three digits where there are that many.

    >>> number_text(0.224194), number_text(55.7), number_text(2048.0), number_text(None)
    ('0.22', '55.7', '2048', '-')
    """
    if value is None:
        return "-"
    if value >= 100 or value == int(value):
        return f"{value:.0f}" if value >= 100 or value < 10 else f"{value:.1f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".removesuffix("0")


def signed(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 1) + 0.0:+.1f}"


def seeds_of(view: View) -> Sequence[int]:
    return sorted({job.config.seed for job in view.found.known})
