"""Training in one call, from a user's own arrays and net."""

from pathlib import Path
from typing import Any

from splitmix.core.net import Build
from splitmix.data.task import Task
from splitmix.engines.simulator import default_workers
from splitmix.experiments.config import make_config
from splitmix.experiments.progress import terminal_watcher
from splitmix.experiments.run import Run, run_in_folder, stored_outcome
from splitmix.experiments.setup import set_up
from splitmix.experiments.trained import Trained


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
        given["net"] = f"{build.__module__}:{getattr(build, '__qualname__', type(build).__qualname__)}"
    own = [key for key, given_here in (("task", not isinstance(task, str)), ("net", build is not None)) if given_here]
    config = make_config(given, own=own)
    root = Path(data_root) if data_root is not None else None
    setup = set_up(config, root=root, task=None if isinstance(task, str) else task, build=build)
    count = default_workers() if workers is None else workers
    watchers = [terminal_watcher()] if progress else []
    if out is None:
        with setup.engine(count, device) as engine:
            return Trained(setup, Run(setup, engine, watchers).go())
    outcome = run_in_folder(setup, Path(out), resume=resume, workers=count, device=device, watchers=watchers)
    return Trained(setup, outcome or stored_outcome(Path(out)))
