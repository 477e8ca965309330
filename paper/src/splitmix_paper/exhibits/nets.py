"""What needs no training: the layers of the nets in Tables 2 and 3, and the images of Figure 10."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.data.tasks import find_task
from splitmix.nets import find_net
from splitmix.report.drawing import NothingToDrawError, Picture, in_style, paper, short
from splitmix_paper.claims import Cell, Claim, Place, alike
from splitmix_paper.exhibit import Draw, Evidence, Exhibit, Printed
from splitmix_paper.stand_in import stand_in_folder
from splitmix_paper.studies import STAND_IN

SHOWN = 8  # sample images of a domain
SAMPLED = {"cpu": ("digits", "office-caltech10"), "paper": ("digits", "domainnet-256")}


@dataclass(frozen=True)
class Layers(Exhibit):
    """Outputs and kernels of a net's layers at full width."""

    unit: str = "outputs, and size of the kernel"
    net: str = ""

    @staticmethod
    def read_printed(table: Mapping[str, Sequence[float]]) -> Printed:
        """Outputs of each layer, and of convolutions the kernel."""
        sized = {name: zip(("outputs", "kernel"), sizes, strict=False) for name, sizes in table.items()}
        return {Place(name, key): value for name, sizes in sized.items() for key, value in sizes}

    def cells(self, evidence: Evidence) -> Iterator[Cell]:
        for name, entry in find_net(self.net)(Width(1)).named_parameters():
            layer, _, kind = name.rpartition(".")
            if kind == "weight" and layer.startswith(("conv", "fc")):
                yield Cell(Place(layer, "outputs"), {0: float(entry.shape[1])}, kind="counted")
                if entry.dim() == 5:
                    yield Cell(Place(layer, "kernel"), {0: float(entry.shape[-1])}, kind="counted")

    def derived(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Cell]:
        for place, value in self.printed.items():
            yield Cell(place._replace(group="paper"), {0: value}, kind="counted")

    def claims(self) -> Sequence[Claim]:
        pairs = [(place, place._replace(group="paper")) for place in self.printed]
        return (alike("Our net has the layers that the paper lists", *pairs),)


class Samples(Exhibit):
    """The first test images of each domain."""

    shareable = False

    def pictures(self, evidence: Evidence, cells: Sequence[Cell]) -> Iterator[Draw]:
        here = str(stand_in_folder(evidence.rows.file.parent.resolve() / STAND_IN)) if evidence.scale == "smoke" else ""
        for task in SAMPLED.get(evidence.scale, (here,)):
            yield partial(draw_samples, task, evidence.root)


@in_style
def draw_samples(task: str, root: Path | None) -> Picture:
    """Eight images of each domain, a row for each."""
    try:
        made = find_task(task, root=root)
    except UserError as missing:
        raise NothingToDrawError(str(missing)) from None
    rows = len(made.domains)
    figure, axes = paper(f"Images of {made.name}", "test images, a row for each domain", 0.8 + 0.62 * rows, rows, SHOWN)
    for number, name in enumerate(made.domains):
        own = np.flatnonzero(made.test.domain == number)
        chosen = own[:: max(1, len(own) // SHOWN)]
        for place, panel in enumerate(axes[number * SHOWN : (number + 1) * SHOWN]):
            panel.set_axis_off()
            if place < len(chosen):
                panel.imshow(made.test.images[chosen[place]].squeeze(), cmap="gray", interpolation="nearest")
            if place == 0:
                panel.text(-0.1, 0.5, short(name), transform=panel.transAxes, ha="right", va="center")
    return Picture(f"samples-{made.name.replace('/', '-')}", figure)
