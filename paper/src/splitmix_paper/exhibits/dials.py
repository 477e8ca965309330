"""Figure 7: robustness against accuracy, of one net and of all widths."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from splitmix.report.drawing import COLOURS, GREY, Line, Picture, shade
from splitmix_paper.claims import Cell, Claim, Place, all_too_short, grows, higher
from splitmix_paper.exhibit import RELEASED_ATTACK, USUAL_ATTACK, Attacked, Draw, Evidence, Exhibit, Need
from splitmix_paper.panels import HUES, Panel, Sheet, Stroke, draw_panels
from splitmix_paper.rows import Measured, Row
from splitmix_paper.studies import SPLITMIX, STUDIES, WIDTHS

DAT, OAT, AT = "Split-Mix + DAT", "FedAvg + OAT", "FedAvg + AT"
CLEAN, ATTACKED = "clean", "attacked"


@dataclass(frozen=True)
class Dials(Exhibit):
    """Accuracy on clean and on attacked images, at each dial of one training and of trainings for each trade-off."""

    unit: str = "accuracy in %, clean and under attack"
    study: str = ""
    weights: Sequence[float] = (0, 0.5, 1)  # of the attacked images, in the trainings of FedAvg + AT
    attack: str = RELEASED_ATTACK  # trained against
    images: int | None = None  # of each client, under attack
    apart: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings of some weights, at cpu scale

    def sweep(self, scale: str) -> Sequence[float]:
        """The weights of a scale: at full scale those of the released sweeps, at the smallest what claims need."""
        released = (0, 0.2, 0.3, 0.5, 0.8, 1) if "digits" in self.study else (0, 0.3, 0.5, 1)
        return {"paper": released, "cpu": self.weights, "smoke": (0.5,)}[scale]

    def measured(self, scale: str, widths: tuple[str, ...], attack: str) -> Attacked:
        if scale == "smoke":
            return Attacked(widths, 2, "fgsm")
        return Attacked(widths, None if scale == "paper" else self.images, attack)

    def trained_against(self, scale: str, attacked: Attacked) -> Iterator[Need]:
        """FedAvg, trained anew for each trade-off."""
        for weight in self.sweep(scale):
            objective = self.objective("adversarial", weight=weight, dual=False)
            own = {"method": {"name": "fedavg", "width": attacked.widths[0]}, "objective": objective}
            own |= self.apart.get(f"{weight:g}", {}) if scale == "cpu" else {}
            yield Need(f"{AT} {weight:g}", self.study, own, attacked=attacked)

    def objective(self, name: str, **options: Any) -> Any:
        """As a config names it: what is usual is left out."""
        table = {"name": name, **({"attack": self.attack} if self.attack != USUAL_ATTACK else {}), **options}
        return table if len(table) > 1 else name

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        """The dial is named where there are several, and so is the width."""
        for runs in evidence.runs.values():
            grid = runs.first.grid()
            widths, dials = {row.width for row in grid}, {row.robust for row in grid}
            for width, dial in dict.fromkeys((row.width, row.robust) for row in grid):
                at = {"width": str(width) if len(widths) > 1 else "", "dial": f"{dial:g}" if len(dials) > 1 else ""}
                for key in (CLEAN, ATTACKED):
                    cell = runs.cell(key, partial(_measured, width=width, dial=dial, attacked=key == ATTACKED), **at)
                    if cell is not None:
                        yield cell

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        yield partial(draw_dials, evidence, cells)


def _measured(run: Measured, width: str | None, dial: float | None, attacked: bool) -> Row | None:
    rows = (row for row in run.grid() if (row.width, row.robust) == (width, dial))
    return next((row for row in rows if (row.attack is not None) == attacked), None)


class JointDials(Dials):
    """Split-Mix with dual norms at all widths and dials; FedAvg at width 1/8, trained anew for each trade-off."""

    def needs(self, scale: str) -> Sequence[Need]:
        shown = "pgd20" if self.attack == USUAL_ATTACK else self.attack
        every = self.measured(scale, WIDTHS, shown)
        own = {"method": "splitmix", "objective": self.objective("adversarial")}
        single = replace(every, widths=("1/8",))
        return [Need(DAT, self.study, own, attacked=every), *self.trained_against(scale, single)]

    def claims(self) -> Sequence[Claim]:
        def at(key: str, dial: str) -> list[Place]:
            return [Place(DAT, key, width=width, dial=dial) for width in WIDTHS]

        trades = [
            *zip(at(CLEAN, "0"), at(CLEAN, "1"), strict=True),
            *zip(at(ATTACKED, "1"), at(ATTACKED, "0"), strict=True),
        ]
        return all_too_short(
            STUDIES[self.study].too_short,
            grows("Wider is better: clean images, dial at 0", at(CLEAN, "0")),
            grows("Wider is better: under attack, dial at 1", at(ATTACKED, "1")),
            higher("The dial trades accuracy for robustness at every width", *trades),
        )


@dataclass(frozen=True)
class SingleDial(Dials):
    """One net for all clients: a single base with dual norms, adversarial training by trade-off, once for all."""

    cpu_width: str = "1/4"

    def needs(self, scale: str) -> Sequence[Need]:
        width = self.cpu_width if scale == "cpu" else "1"
        here = self.measured(scale, (width,), self.attack)
        one = {"method": {"name": "fedavg", "width": width}}
        return [
            Need(DAT, self.study, {**one, "objective": self.objective("adversarial")}, attacked=here),
            *self.trained_against(scale, here),
            Need(OAT, self.study, {**one, "objective": self.objective("oat")}, attacked=here),
        ]

    def claims(self) -> Sequence[Claim]:
        clean, robust = Place(DAT, CLEAN, dial="0"), Place(DAT, ATTACKED, dial="1")
        middle = f"{AT} 0.5"
        return all_too_short(
            STUDIES[self.study].too_short,
            higher(
                "The dial trades accuracy for robustness",
                (clean, clean._replace(dial="1")),
                (robust, robust._replace(dial="0")),
            ),
            higher(
                "One training with DAT is above FedAvg + AT of the same weight: accurate at one end, robust at another",
                (clean, Place(middle, CLEAN)),
                (robust, Place(middle, ATTACKED)),
            ),
            higher("It is above FedAvg + OAT under attack", (robust, Place(OAT, ATTACKED, dial="1"))),
        )


def draw_dials(evidence: Evidence, cells: Sequence[Cell]) -> Picture:
    """Clean accuracy against accuracy under attack; a line for each width, or for each way to train."""
    at = {cell.place: cell.mean for cell in cells}
    lines: dict[str, Line] = {}
    for place, clean in at.items():
        attacked = at.get(place._replace(key=ATTACKED))
        if place.key == CLEAN and attacked is not None:
            label = place._replace(dial="").heading if place.dial else f"{AT}, a training for each point"
            lines.setdefault(label, []).append((attacked, clean))
    colours = {f"{DAT}, width {width}": shade(number, len(WIDTHS)) for number, width in enumerate(WIDTHS)}
    colours |= {DAT: HUES[SPLITMIX], OAT: COLOURS[4]}
    strokes = [
        Stroke(label, line if label in colours else sorted(line), colours.get(label, GREY))
        for label, line in lines.items()
    ]
    told = "accuracy on clean images (%); each point one dial or one training"
    sheet = Sheet("dials", evidence.exhibit.title, told, "accuracy under attack (%)")
    return draw_panels(evidence, sheet, [Panel("", strokes)])
