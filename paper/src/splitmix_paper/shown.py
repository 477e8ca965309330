"""An exhibit ready to be written: its numbers beside the paper's, its claims and what became of them, its origin."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from splitmix.compare.statistics import MeanAndSpread, spread_text
from splitmix.core.width import parse_width
from splitmix.data.tasks import task_about
from splitmix.report.drawing import NothingToDrawError, Picture
from splitmix.report.grid_page import WEAK
from splitmix.report.pages import duration
from splitmix.report.tables import Column, Table
from splitmix_paper.claims import FAILS, HOLDS, NOISE, UNKNOWN, UNTESTABLE, WORDS, Cell, Claim, Verdict
from splitmix_paper.exhibit import Evidence, Exhibit
from splitmix_paper.studies import FEDAVG, joined
from splitmix_paper.texts import number_text, signed_text

SIGNS = {
    HOLDS: "✓ holds",
    FAILS: "✗ does not hold",
    NOISE: "≈ within noise",
    UNTESTABLE: "· not testable",
    UNKNOWN: "· not known",
}
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


@dataclass(frozen=True)
class Shown:
    """All that a report says of an exhibit."""

    evidence: Evidence

    @property
    def exhibit(self) -> Exhibit:
        return self.evidence.exhibit

    @property
    def name(self) -> str:
        return self.exhibit.name

    @property
    def command(self) -> str:
        return f"splitmix paper run {self.name} --scale {self.evidence.scale}"

    @cached_property
    def cells(self) -> list[Cell]:
        return self.evidence.cells()

    @cached_property
    def verdicts(self) -> list[tuple[Claim, Verdict, Verdict]]:
        """Each claim, on our numbers and on the paper's."""
        scale = self.evidence.scale
        ours = {cell.place: cell for cell in (*self.cells, *self.exhibit.derived(self.evidence, self.cells))}
        theirs = {place: Cell(place, {1: value}, kind="printed") for place, value in self.exhibit.printed.items()}
        return [(claim, claim.verdict(ours, scale), claim.verdict(theirs, "paper")) for claim in self.exhibit.claims()]

    def count(self, word: str) -> int:
        """How many claims have this verdict on our numbers."""
        return sum(mine.word == word for _, mine, _ in self.verdicts)

    @property
    def summary(self) -> str:
        """All claims in a few words."""
        told = ", ".join(f"{count} {words(word, count)}" for word in WORDS if (count := self.count(word)))
        return told or ("nothing to judge" if not self.verdicts else "not yet judged")

    @property
    def judges_paper(self) -> bool:
        """Whether the paper prints numbers that its claims can be held against."""
        return any(theirs.word != UNKNOWN for *_, theirs in self.verdicts)

    @cached_property
    def pictures(self) -> list[Picture]:
        """Each picture for which there is enough to draw; names begin with the exhibit's, so no two are alike."""
        found = []
        for draw in self.exhibit.pictures(self.evidence, self.cells) if self.evidence.begun else ():
            with suppress(NothingToDrawError):
                picture = draw()
                found.append(Picture(f"{self.name}-{picture.name}", picture.figure))
        return found

    @cached_property
    def table(self) -> Table:
        """A row for each series (FedAvg's nets are one, if several); by key our value, the paper's, and the gap."""
        several = sum(series in FEDAVG for series in {cell.place.series for cell in self.cells}) > 1
        at: dict[tuple[str, str], Cell] = {}
        for cell in self.cells:
            place = cell.place._replace(series=joined(cell.place.series)) if several else cell.place
            at[place.heading, place.key] = cell
        keys, printed = in_order([key for _, key in at]), self.exhibit.printed
        told = {key for (_, key), cell in at.items() if cell.place in printed}
        columns = [Column("series", "", number=False)]
        for key in keys:
            columns.append(Column(key, heading(key), partial(shown_as, key)))
            if key in told:
                columns.append(Column(f"{key}.paper", "paper", partial(printed_as, key)))
                columns.append(Column(f"{key}.gap", "diff.", signed_text))
        rows: list[list[Any]] = []
        for series in dict.fromkeys(series for series, _ in at):
            row: list[Any] = [series]
            for key in keys:
                found = at.get((series, key))
                row.append(found and (found.mean, found.spread))
                if key in told:
                    theirs = printed.get(found.place) if found else None
                    row += [theirs, None if found is None or theirs is None else found.mean - theirs]
            rows.append(row)
        return Table(f"{self.exhibit.place}: {self.exhibit.title}", columns, rows, self._caption())

    def _caption(self) -> str:
        """What the numbers are."""
        seeds = sorted({seed for cell in self.cells for seed in cell.values} - {0})
        several = any(len(cell.values) > 1 for cell in self.cells)
        unit = self.exhibit.unit.capitalize() if self.exhibit.unit.islower() else self.exhibit.unit
        which = f"; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ""
        told = "; ± is the standard deviation over seeds" if several else ""
        return f"{unit}{which}{told}{''.join(f'; {text}' for text in self.evidence.stand_ins)}."

    @property
    def verdict_table(self) -> Table:
        """Each claim, whether it holds here, whether the paper's own numbers bear it out, and by how much."""
        own = self.judges_paper
        columns = [
            Column("claim", "claim", number=False),
            Column("ours", "our runs", number=False),
            *([Column("paper", "the paper's own numbers", number=False)] if own else []),
            Column("evidence", "by how much, in our runs", number=False),
        ]
        rows = [
            [claim.text, SIGNS[mine.word], *([SIGNS[theirs.word]] if own else []), _evidence(mine)]
            for claim, mine, theirs in self.verdicts
        ]
        return Table("Claims", columns, rows)

    @cached_property
    def origin(self) -> list[tuple[str, str]]:
        """All that is needed to make it again, in words."""
        return list(self._origin())

    def _origin(self) -> Iterator[tuple[str, str]]:
        evidence = self.evidence
        yield "State", evidence.state
        if reduced := self.exhibit.reduced(evidence.scale):
            yield "Reduced", "; ".join(reduced)
        if data := [*self._data(), *evidence.substitutes]:
            yield "Data", "; ".join(data)
        if evidence.change.mixed and evidence.total:
            yield "Precision", "local training in mixed precision (bfloat16)"
        if self.attack:
            yield "Attack", self.attack
        if evidence.known:
            yield "Seeds", ", ".join(map(str, sorted({config.seed for config, _ in evidence.known.values()})))
        if times := evidence.seconds:
            whole = "the" if len(times) == len(evidence.known) else f"{len(times)} of the {len(evidence.known)}"
            yield "Time", f"{duration(sum(times))} for {whole} runs, some of which other entries share"
        if sources := evidence.sources:
            yield (
                "Records",
                "; ".join(f"{count} of {len(evidence.known)} runs: {text}" for text, count in sources.items()),
            )

    @property
    def attack(self) -> str:
        """What the numbers under attack were measured with, if there are any."""
        rows = (row for _, measured in self.evidence.known.values() for row in measured.grid() if row.attack)
        row = next(rows, None) if any(need.attacked for need, *_ in self.evidence.wanted) else None
        return f"{row.attack}, on {row.samples:,} test images. {WEAK if row.weak else ''}".strip() if row else ""

    def _data(self) -> list[str]:
        if self.evidence.scale == "smoke":
            return ["a few tiny pictures, made on the spot"] if self.evidence.total else []
        tasks = dict.fromkeys(config.task for config, _ in self.evidence.known.values())
        return [task_about(task).removesuffix("; needs a data root") for task in tasks]


def _evidence(verdict: Verdict) -> str:
    return (verdict.evidence or "-") + (f" ({verdict.why})" if verdict.why else "")


def words(verdict: str, count: int) -> str:
    """A verdict for so many claims.

    >>> words("holds", 1), words("holds", 3), words("does not hold", 2)
    ('holds', 'hold', 'do not hold')
    """
    return verdict if count == 1 else {HOLDS: "hold", FAILS: "do not hold"}.get(verdict, verdict)


def heading(key: str) -> str:
    try:
        return f"width {parse_width(key)}"
    except ValueError:
        return HEADINGS.get(key, key)


def shown_as(key: str, value: MeanAndSpread | None) -> str:
    """Per cent with one digit, counts with what they need."""
    if key in ("rounds", "outputs", "kernel"):
        return spread_text(value and (value[0], None), "{:.0f}".format)
    return spread_text(value, number_text if key in ("download", "work", "seconds") else "{:.1f}".format)


def printed_as(key: str, value: float | None) -> str:
    return shown_as(key, None if value is None else (value, None))


def in_order(keys: Sequence[str]) -> list[str]:
    """Widths from narrow to wide, all else as it comes."""
    unique = list(dict.fromkeys(keys))
    try:
        return sorted(unique, key=parse_width)
    except ValueError:
        return unique
