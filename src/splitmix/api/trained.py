"""The model that a run has made: it predicts at any width, can be saved, bundled, shown, and used as a plain module."""

import json
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from time import perf_counter

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from splitmix.api.modules import plain_module
from splitmix.core.client import mean_logits, part_logits
from splitmix.core.errors import UserError
from splitmix.core.method import Method
from splitmix.core.net import Net
from splitmix.core.parts import covering, cut
from splitmix.core.types import Part, Weights
from splitmix.core.width import Width, parse_dial, parse_width
from splitmix.engines.simulator import default_workers
from splitmix.report.drawing import Picture
from splitmix.report.figures import tradeoff
from splitmix.report.grid_page import by_dial
from splitmix.report.pages import render
from splitmix.report.run_page import run_headline, write_report
from splitmix.report.tables import percent, width_table
from splitmix.runs.bundling import Packing, bundle_outcome
from splitmix.runs.config import to_toml
from splitmix.runs.finish import Outcome, finished_setup, served_with, store_outcome
from splitmix.runs.folder import RunFolder
from splitmix.runs.measure.evaluate import FinishedRun, scored_norm
from splitmix.runs.measure.grid import Sweep, measure_grid
from splitmix.runs.records import MetricRow, Result, main_scores, read_result
from splitmix.runs.setup import Setup
from splitmix.runtime.images import UNKNOWN_TOKEN, checked_inputs, to_net
from splitmix.runtime.model import Model, Prediction, WidthLike

DIALS = (0.0, 0.25, 0.5, 0.75, 1.0)  # that a picture shows


@dataclass(frozen=True, repr=False)
class Trained:
    """What a run has made; `result` says how it was made and how well it does.

    Where no width is given, the widest is meant, as by a `Model`.
    """

    setup: Setup
    outcome: Outcome
    metrics: tuple[MetricRow, ...] = ()  # of its rounds
    folder: Path | None = field(default=None, compare=False)  # of the run, if it has one

    @property
    def method(self) -> Method:
        return self.setup.method.ordered(self.outcome.order)

    @property
    def net(self) -> Net:
        return self.setup.net

    @property
    def weights(self) -> Weights:
        return self.outcome.weights

    @property
    def widths(self) -> tuple[Width, ...]:
        return self.method.widths

    @property
    def result(self) -> Result:
        return self.outcome.result

    # --- predictions ---

    def __call__(self, x: ArrayLike | Tensor, width: WidthLike | None = None, robust: float = 0.0) -> Tensor:
        """Logits (n, class) of images given as in training: (n, height, width, channels), uint8 or float in [0, 1].

        Features of a table are given as they stand there: they are scaled as in training.
        """
        task, dial = self.setup.task, self._dial(robust)
        images = torch.from_numpy(to_net(checked_inputs(x, self.setup.image, task.kind, task.scaling)))
        mix = self._mix(width)
        if not len(images):
            return torch.empty(0, task.classes)
        download = cut(self.net, self.method.layout, self.weights, covering(mix))
        try:
            with torch.inference_mode():
                return mean_logits(part_logits(self.net, download, [mix], images, dial), mix)
        except IndexError:  # an embedding has no such row
            raise UserError(UNKNOWN_TOKEN) from None

    def predict(self, x: ArrayLike | Tensor, width: WidthLike | None = None, robust: float = 0.0) -> Prediction:
        """Classes and probabilities of images given as in training, as `Model.predict` gives them."""
        began = perf_counter()
        shares = self(x, width, robust).softmax(-1).numpy()
        bases = torch.full((len(shares),), len(set(self._mix(width)))).numpy()
        return Prediction(shares.argmax(-1), shares, bases, 1e3 * (perf_counter() - began))

    def module(self, width: WidthLike | None = None, robust: float = 0.0) -> nn.Module:
        """The model of a width and a dial as one plain module: in eval mode, its norms fixed, nothing of ours in it.

        It takes what the net takes, images as (n, channel, height, width) in [0, 1], features as they stand in a table,
        and gives logits (n, class). The bases of a net of your own are modules of your class.
        """
        return plain_module(self.setup, self.weights, self._mix(width), self._dial(robust))

    def bundle(self, out: str | Path, *, half: bool = False, calibrate: bool = False) -> Model:
        """Write a bundle for devices, and load it: a model with width and robustness to turn."""
        packing = Packing("float16" if half else "float32", calibrate, image=self.setup.image)
        made = bundle_outcome(self.setup.config, self.outcome, Path(out), packing, build=self.net.build)
        return Model.load(made.path)

    # --- on disk ---

    def save(self, path: str | Path) -> Path:
        """Write the run to a folder of its own, from which `splitmix.load` reads it; if it is there, it stays."""
        folder = RunFolder(Path(path))
        if folder.exists():
            if not folder.finished() or not self._is_in(folder.path):
                raise UserError(f"'{path}' already holds another run; save to another folder")
            return folder.path
        if folder.path.exists() and not (
            folder.path.is_dir() and all(p.name.startswith(".") for p in folder.path.iterdir())
        ):
            raise UserError(f"'{path}' is no empty folder; save to another")
        with folder.locked():
            folder.write("config.toml", to_toml(self.setup.config))
            folder.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in self.metrics))
            store_outcome(folder.path, self.outcome, self.setup.config.digest())
        return folder.path

    def report(self, path: str | Path | None = None) -> Path:
        """Write the run's page, `report.html`, into its folder, or into one to which it is saved; where the page is."""
        if path is None and self.folder is None:
            raise UserError("this run has no folder yet; say where its report is to stand: report('runs/mine')")
        return write_report(self.save(path or self.folder or ""))

    # --- to look at ---

    def plot(self, what: str = "widths") -> Picture:
        """Accuracy over widths, or by the robustness `dial`; a notebook shows the picture, `figure` is matplotlib's."""
        if what == "widths":
            return tradeoff(self.result)
        if what != "dial":
            raise UserError(f"'{what}' cannot be drawn; choose widths or dial")
        self._dial(1.0)
        setup = finished_setup(self.setup, self.outcome)
        norm = scored_norm(setup, main_scores(self.result)[0].get("norm"), None, fixed=True)
        weights, question = served_with(setup, self.weights, norm)
        run = FinishedRun(self.folder or Path(), setup, weights, norm, question, self.result)
        return by_dial(measure_grid(run, Sweep(dials=DIALS), workers=default_workers()))

    def __repr__(self) -> str:
        scores = main_scores(self.result)
        ends = dict.fromkeys(f"{percent(score['accuracy'])} % at {score['width']}" for score in (scores[0], scores[-1]))
        return f"Trained({self.setup.about}; {' to '.join(ends)})"

    def _repr_html_(self) -> str:
        """The headline, and accuracy, parameters and MACs of each width as a table that stands by itself."""
        return f"<p>{escape(run_headline(self.result))}</p>{render('table.html.j2', table=width_table(self.result))}"

    # --- inside ---

    def check_entries(self) -> None:
        """Refuse weights that are not those of the net."""
        layout = self.method.layout
        wanted = {name: (layout.count, *shape) for name, shape in self.net.shapes(layout.width).items()}
        found = {name: tuple(value.shape) for name, value in self.weights.items()}
        other = [name for name in self.net.parameter_names(layout.width) if found.get(name) != wanted[name]]
        if other:
            name = sorted(other)[0]
            raise UserError(
                f"the run's weights are not those of this net: '{name}' has shape {found.get(name)} in the run and "
                f"{wanted[name]} in the net; give the net that the run was trained with"
            )

    def _mix(self, width: WidthLike | None) -> tuple[Part, ...]:
        chosen = self.widths[-1] if width is None else parse_width(width)
        (mix,) = finished_setup(self.setup, self.outcome).mixes([chosen]).values()
        return mix

    def _dial(self, robust: float) -> float:
        return parse_dial(robust, there=self.setup.dial)

    def _is_in(self, path: Path) -> bool:
        return read_result(path).get("weights_sha256") == self.result.get("weights_sha256")
