"""Training in one call, and a finished run read back: either gives the trained model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from splitmix.api.trained import Trained
from splitmix.core.errors import UserError
from splitmix.core.net import Build
from splitmix.data.task import Task
from splitmix.data.tasks import check_task, own_name
from splitmix.engines.simulator import default_workers
from splitmix.nets import named_nets
from splitmix.nets.slim import Slim
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.finish import finish, stored_outcome
from splitmix.runs.progress import Caller, Round, RowCollector, Watcher, terminal_watcher
from splitmix.runs.records import read_metrics, read_result
from splitmix.runs.run import run_in_folder, train_rounds
from splitmix.runs.setup import set_up


def train(
    task: Any = "mini",
    build: Build | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    data_root: str | Path | None = None,
    progress: bool = True,
    on_round: Callable[[Round], object] | None = None,
    **settings: Any,
) -> Trained:
    """Train a model of any width on a task; `settings` are the keys of a config, such as `rounds=20, lr=0.1`.

    `task` is a task or its name, or data of one's own: a path (folder of pictures, .npz, CSV, Parquet), arrays (x, y),
    a data set of PyTorch or Hugging Face, or a dict of these by domain. `data` says how it is read, as {"size": 64}.
    `build(width)` makes a user's own net; `splitmix.slim(module)` makes it of a plain module. With `out` the run leaves
    a folder that can be resumed. `on_round` is told of each round when it is done, and may hand that on to a logger.
    The result predicts at any width; its `bundle(path)` makes a `Model` for devices.
    """
    if task is None:
        raise UserError(
            "no data is given (None); name a task such as 'mini', or give a path, arrays (x, y) or a data set"
        )
    if build is not None and settings.get("net") is not None:
        raise UserError(f"two nets are given, build and net={settings['net']!r}; leave one of them out")
    task = str(task) if isinstance(task, Path) else task
    named, whole = isinstance(task, str), task if isinstance(task, Task) else None
    given = {"task": task if named else whole.name if whole else own_name(task), **settings}
    if build is not None:
        given["net"] = net_name(build)
    own = [key for key, given_here in (("task", not named), ("net", build is not None)) if given_here]
    config = make_config(given, own=own)
    root = Path(data_root) if data_root is not None else None
    setup = set_up(config, root=root, task=whole, source=task, build=build)
    count = default_workers() if workers is None else workers
    _check_machine(count, device)
    collector = RowCollector()
    watchers: list[Watcher] = [collector, *([terminal_watcher()] if progress else [])]
    watchers += [] if on_round is None else [Caller(on_round)]
    if out is None:
        with setup.engine(count, device) as engine:
            state = train_rounds(setup, engine, watchers=watchers)
            return Trained(setup, finish(setup, engine, state), tuple(collector.rows))
    folder = Path(out)
    outcome = run_in_folder(setup, folder, resume=resume, workers=count, device=device, watchers=watchers)
    return Trained(setup, outcome or stored_outcome(folder), tuple(read_metrics(folder)), folder)


def load(
    folder: str | Path, *, build: Build | None = None, task: Task | None = None, data_root: str | Path | None = None
) -> Trained:
    """The trained model of a finished run's folder, from `train(..., out=...)`, `Trained.save` or `splitmix train`.

    A net or task of one's own is not in the folder: it is given again. No code is imported because a folder names it.
    """
    path = Path(folder)
    read_result(path)  # first of all: it says what is wrong with a folder
    config = make_config(read_toml(path / "config.toml"), own=("task", "net"))
    if build is None and config.net is not None and config.net not in named_nets():
        raise UserError(f"the net '{config.net}' of '{path}' is one of your own; give it again: load(..., build=build)")
    if task is None:
        _check_named(config.task, path)
    root = Path(data_root) if data_root is not None else None
    trained = Trained(
        set_up(config, root=root, task=task, build=build), stored_outcome(path), tuple(read_metrics(path)), path
    )
    trained.check_entries()
    return trained


def net_name(build: Build) -> str:
    """How a config speaks of a user's own net."""
    if isinstance(build, nn.Module):
        raise UserError("the net is a module of one width; give splitmix.slim(module), or a function build(width)")
    if not callable(build):
        raise UserError(
            f"the net is given as {build!r}, which is no function build(width); one of the table is named by "
            "train(task, net='digit')"
        )
    if isinstance(build, Slim):
        return build.name
    return f"{build.__module__}:{getattr(build, '__qualname__', type(build).__qualname__)}"


def _check_machine(workers: int, device: str) -> None:
    if workers < 1:
        raise UserError(f"workers {workers} is too few; give 1 or more")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0][:200]
        raise UserError(f"the device {device!r} cannot be used here ({why}); give 'cpu'") from None


def _check_named(task: str, path: Path) -> None:
    """Refuse a task that no table has: its arrays are the user's."""
    try:
        check_task(task)
    except UserError:
        raise UserError(
            f"the task '{task}' of '{path}' is one of your own; give it again: load(..., task=task)"
        ) from None
