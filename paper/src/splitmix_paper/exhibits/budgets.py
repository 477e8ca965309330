"""Figures 11 and 12: other budgets of the clients, and fewer clients in each round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from splitmix.core.width import Width
from splitmix.report.drawing import COLOURS
from splitmix_paper.claims import Cell, Claim, Place, grows, higher
from splitmix_paper.exhibit import Draw, Evidence, Exhibit, Need
from splitmix_paper.exhibits.widths import sized_needs
from splitmix_paper.panels import Panel, Sheet, Stroke, draw_panels, width_strokes
from splitmix_paper.rows import BUDGET
from splitmix_paper.studies import FEDAVG, PAPER_METHODS, SHETEROFL, SPLITMIX, WIDTHS

COHORTS = (2, 5, 10, 20, 50)
DISTRIBUTIONS = {
    "skewed-8111": "8-1-1-1",
    "skewed-8211": "8-2-1-1",
    "skewed-8221": "8-2-2-1",
    "skewed-8441": "8-4-4-1",
    "steps-eighth": "8-4-8/3-2",
    "steps-quarter": "4-2-4/3-1",
    "lognormal": "log-normal",
}
WIDEST = {"steps-eighth": "1/2"}  # that clients train; else 1


@dataclass(frozen=True)
class BudgetLaws(Exhibit):
    """Split-Mix and a peer under each distribution; FedAvg, which knows no budgets, beside them."""

    laws: Sequence[str] = ()
    peer: str = SHETEROFL

    def needs(self, scale: str) -> Sequence[Need]:
        found = [
            Need(label, "digits-short", {"method": PAPER_METHODS[label], "budgets": law}, group=DISTRIBUTIONS[law])
            for law in self.laws
            for label in (SPLITMIX, self.peer)
        ]
        return [*found, *sized_needs("digits-short", FEDAVG)]

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        """Widths that clients trained, and those of the paper's tables."""
        for runs in evidence.runs.values():
            budget = runs.first.find(BUDGET)
            trained = [str(Width(value).limit_denominator(64)) for value in (budget and budget.clients) or () if value]
            yield from runs.by_width([*WIDTHS, *(trained or runs.first.widths)])

    def claims(self) -> Sequence[Claim]:
        def at_the_widest(law: str, series: str) -> Place:
            return Place(series, WIDEST.get(law, "1"), DISTRIBUTIONS[law])

        return [
            higher(
                f"{DISTRIBUTIONS[law]}: at the largest width Split-Mix is above {self.peer}",
                (at_the_widest(law, SPLITMIX), at_the_widest(law, self.peer)),
            )
            for law in self.laws
        ]

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        groups = [DISTRIBUTIONS[law] for law in self.laws]
        sheet = Sheet(
            "budgets", "Who can afford how much", "budget (% of the full width), clients from weak to strong", "client"
        )
        yield partial(draw_panels, evidence, sheet, [Panel(group, _steps(evidence, group)) for group in groups])
        yield partial(draw_panels, evidence, by_group(evidence), group_panels(cells, groups))


def _steps(evidence: Evidence, group: str) -> list[Stroke]:
    """The budget of each client, from the smallest up."""
    runs = evidence.runs.get(Place(SPLITMIX, "", group).heading)
    budget = runs.first.find(BUDGET) if runs else None
    sizes = sorted(100 * value for value in (budget and budget.clients) or () if value is not None)
    steps = [(float(x), size) for i, size in enumerate(sizes) for x in (i, i + 1)]
    return [Stroke("budget of each client", steps, COLOURS[2])]


def by_group(evidence: Evidence) -> Sheet:
    return Sheet("groups", evidence.exhibit.title, "test accuracy (%) by width, mean over clients", "width")


def group_panels(cells: Sequence[Cell], groups: Sequence[str]) -> list[Panel]:
    """A panel for each group; series without one are in all of them."""
    own = {group: [cell for cell in cells if cell.place.group in ("", group)] for group in groups}
    return [Panel(group if len(groups) > 1 else "", [*width_strokes(own[group])]) for group in groups]


@dataclass(frozen=True)
class Contact(Exhibit):
    """Split-Mix and SHeteroFL with few and with many clients in a round."""

    def needs(self, scale: str) -> Sequence[Need]:
        seeds = (1, 2, 3) if scale == "paper" else (1,)
        return [
            Need(label, "contact", {"method": PAPER_METHODS[label], "cohort": cohort}, seeds, group=f"{cohort} clients")
            for cohort in COHORTS
            for label in (SPLITMIX, SHETEROFL)
        ]

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        for runs in evidence.runs.values():
            yield from runs.by_width()

    def claims(self) -> Sequence[Claim]:
        at = {label: [Place(label, "1", f"{n} clients") for n in COHORTS] for label in (SPLITMIX, SHETEROFL)}
        return (
            higher(
                "At full width Split-Mix is above SHeteroFL however few clients come",
                *zip(at[SPLITMIX], at[SHETEROFL], strict=True),
            ),
            *(grows(f"Fewer clients, less accuracy: {label} at full width", at[label]) for label in at),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        yield partial(draw_panels, evidence, by_group(evidence), group_panels(cells, [f"{n} clients" for n in COHORTS]))
