"""Table 4: what norm statistics and rescaling do to Split-Mix."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from splitmix.report.drawing import COLOURS
from splitmix_paper.claims import Cell, Claim, Place, alike, higher
from splitmix_paper.exhibit import Draw, Evidence, Exhibit, Need, Printed
from splitmix_paper.panels import Panel, Sheet, Stroke, draw_panels, width_strokes
from splitmix_paper.studies import WIDTHS

BATCH, POST, TRACKED, LOCAL = "batch average", "post average", "tracked", "locally tracked"
TRAINED = {BATCH: "batch", TRACKED: "tracked", LOCAL: "local"}  # the post average is of a training with batches
SCALINGS = ("neither", "layers", "init", "both")  # what is rescaled
AS_RELEASED = {"layers": "layers, as released", "both": "both, as released"}  # divided in training, not in evaluation
# of 100 rounds a client joins a fifth, and of the bases the weakest client gets an eighth each time
MET = "the weakest clients meet each base 2.5 times, 37.5 times in the paper, so that what they track has not settled"


def _scalings(norm: str) -> list[str]:
    """What the paper's four rows are called here: with tracked statistics the released layers are another mechanism."""
    return [AS_RELEASED.get(scaling, scaling) if norm in (TRACKED, LOCAL) else scaling for scaling in SCALINGS]


@dataclass(frozen=True)
class Ablation(Exhibit):
    """Accuracy by norm statistics, by what is rescaled, and by width."""

    @staticmethod
    def read_printed(table: Mapping[str, Sequence[Sequence[float]]]) -> Printed:
        """For each kind of norm statistics a row of each scaling, by width."""
        return {
            Place(scaling, width, norm): value
            for norm, rows in table.items()
            for scaling, row in zip(_scalings(norm), rows, strict=True)
            for width, value in zip(WIDTHS, row, strict=True)
        }

    def needs(self, scale: str) -> Sequence[Need]:
        """Sixteen runs for twenty rows, as a training with batches is scored in two ways."""
        found = []
        for norm, setting in TRAINED.items():
            for scaling in dict.fromkeys((*SCALINGS, *_scalings(norm))):
                what = scaling.removesuffix(", as released")
                layers: bool | str = "released" if scaling != what else what in ("layers", "both")
                own = {"norm": setting, "rescale_init": what in ("init", "both"), "rescale_layers": layers}
                found.append(Need(scaling, "ablation", {"method": "splitmix", **own}, group=norm))
        return found

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        """In the order of the paper."""
        for norm in (BATCH, POST, TRACKED, LOCAL):
            trained = BATCH if norm == POST else norm
            scored = {POST: "client", BATCH: "batch"}.get(norm, "")
            for scaling in dict.fromkeys((*SCALINGS, *_scalings(norm))):
                if (runs := evidence.runs.get(Place(scaling, "", trained).heading)) is not None:
                    yield from runs.by_width(norm=scored, group=norm)

    def claims(self) -> Sequence[Claim]:
        def improves(norm: str) -> list[tuple[Place, Place]]:
            return [(Place("init", width, norm), Place("neither", width, norm)) for width in (WIDTHS[0], "1")]

        def poisoned(norm: str) -> tuple[Place, Place]:
            return Place("init", "1", norm), Place(AS_RELEASED["both"], "1", norm)

        return (
            higher(
                "Rescaled initialisation improves Split-Mix, with statistics of the batch, post average and tracked",
                *(pair for norm in (BATCH, POST, TRACKED) for pair in improves(norm)),
            ),
            higher("It does with locally tracked statistics, too", *improves(LOCAL), too_short=MET),
            alike(
                "Rescaled layers barely matter with the statistics of the batch",
                *((Place(a, "1", BATCH), Place(b, "1", BATCH)) for a, b in (("layers", "neither"), ("both", "init"))),
            ),
            higher("Rescaled layers, as released, are poisonous for tracked statistics", poisoned(TRACKED)),
            higher("They are for locally tracked ones, too", poisoned(LOCAL), too_short=MET),
            higher(
                "Locally tracked statistics are above tracked ones",
                *((Place(what, "1", LOCAL), Place(what, "1", TRACKED)) for what in ("neither", "init")),
                too_short=MET,
            ),
            higher(
                "Post average is above the statistics of the batch (both rescaled, full width)",
                (Place("both", "1", POST), Place("both", "1", BATCH)),
            ),
        )

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        named = [*SCALINGS, *AS_RELEASED.values()]
        panels = []
        for norm in (BATCH, POST, TRACKED, LOCAL):
            own = width_strokes([cell for cell in cells if cell.place.group == norm])
            strokes = [Stroke(f"rescaled: {s.label}", s.points, COLOURS[named.index(s.label)]) for s in own]
            panels.append(Panel(norm, strokes))
        told = "test accuracy (%) by width"
        sheet = Sheet("ablation", "Accuracy by norm statistics and rescaling", told, "width", columns=2)
        yield partial(draw_panels, evidence, sheet, panels)
