"""Training in one call, and the trained model that it gives: it predicts at any width, and can be bundled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from splitmix.core.client import mean_logits, part_logits
from splitmix.core.errors import UserError
from splitmix.core.method import Method
from splitmix.core.net import Build, Net
from splitmix.core.parts import covering, cut
from splitmix.core.types import Weights
from splitmix.core.width import Width, parse_width
from splitmix.data.task import Task
from splitmix.engines.simulator import default_workers
from splitmix.nets.slim import Slim
from splitmix.runs.bundling import Packing, bundle_outcome
from splitmix.runs.config import make_config
from splitmix.runs.finish import Outcome, finish, served, stored_outcome
from splitmix.runs.progress import terminal_watcher
from splitmix.runs.records import Result
from splitmix.runs.run import run_in_folder, train_rounds
from splitmix.runs.setup import Setup, set_up
from splitmix.runtime.images import checked_images, to_net
from splitmix.runtime.model import Model


@dataclass(frozen=True)
class Trained:
    """What a run has made; `result` says how it was made and how well it does."""

    setup: Setup
    outcome: Outcome

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

    def __call__(self, x: ArrayLike, width: Width | str | float = 1) -> Tensor:
        """Logits (n, class) of images given as in training: (n, height, width, channels), uint8 or float in [0, 1]."""
        images = to_net(checked_images(x, self.setup.image))
        (mix,) = served(self.setup, self.outcome).mixes([parse_width(width)]).values()
        download = cut(self.net, self.method.layout, self.weights, covering(mix))
        with torch.inference_mode():
            return mean_logits(part_logits(self.net, download, [mix], images), mix)

    def predict(self, x: ArrayLike, width: Width | str | float = 1) -> NDArray[np.int64]:
        """The most likely class of each image."""
        return self(x, width).argmax(-1).numpy()

    def bundle(self, out: str | Path, *, half: bool = False, calibrate: bool = False) -> Model:
        """Write a bundle for devices, and load it: a model with width and robustness to turn."""
        packing = Packing("float16" if half else "float32", calibrate, image=self.setup.image)
        return Model.load(bundle_outcome(self.setup.config, self.outcome, Path(out), packing).path)


def train(
    task: Task | str = "mini",
    build: Build | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    data_root: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Trained:
    """Train a model of any width on a task; `settings` are the keys of a config, such as `rounds=20, lr=0.1`.

    `build(width)` makes a user's own net. With `out` the run leaves a folder that can be resumed.
    The result predicts at any width; its `bundle(path)` makes a `Model` for devices.
    """
    given = {"task": task if isinstance(task, str) else task.name, **settings}
    if build is not None:
        given["net"] = net_name(build)
    own = [key for key, given_here in (("task", not isinstance(task, str)), ("net", build is not None)) if given_here]
    config = make_config(given, own=own)
    root = Path(data_root) if data_root is not None else None
    setup = set_up(config, root=root, task=None if isinstance(task, str) else task, build=build)
    count = default_workers() if workers is None else workers
    watchers = [terminal_watcher()] if progress else []
    if out is None:
        with setup.engine(count, device) as engine:
            state = train_rounds(setup, engine, watchers=watchers)
            return Trained(setup, finish(setup, engine, state))
    outcome = run_in_folder(setup, Path(out), resume=resume, workers=count, device=device, watchers=watchers)
    return Trained(setup, outcome or stored_outcome(Path(out)))


def net_name(build: Build) -> str:
    """How a config speaks of a user's own net."""
    if isinstance(build, nn.Module):
        raise UserError("the net is a module of one width; give splitmix.slim(module), or a function build(width)")
    if isinstance(build, Slim):
        return build.name
    return f"{build.__module__}:{getattr(build, '__qualname__', type(build).__qualname__)}"
