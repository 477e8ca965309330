"""Flower's own simulation: Ray's workers play the nodes, on the cores of this machine or of a cluster."""

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from splitmix.core.errors import UserError
from splitmix.flower.node import app_for
from splitmix.flower.server import Order, client_count, run_on_grid
from splitmix.runs.finish import Outcome
from splitmix.runs.progress import Watcher
from splitmix.runs.setup import set_up

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else whoever shares the machine comes first, and nodes are as good as dead
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def train_on_ray(order: Order, watchers: Sequence[Watcher] = (), *, workers: int, root: Path | None) -> Outcome | None:
    """A run whose nodes, one for each client of the task, are played by so many workers; `root` has the data sets."""
    config = order.config
    if config.clients is None:  # all that the task has
        config = config.model_copy(update={"clients": len(set_up(config, root=root).task.shards)})
    if find_spec("ray") is None:
        raise UserError('Ray is not installed; pip install "splitmix[ray]"')
    from flwr.simulation import run_simulation

    outcomes: list[Outcome | None] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        outcomes.append(run_on_grid(grid, replace(order, config=config), watchers))

    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    own = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
    backend: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"log_to_driver": False, **own},
    }
    nodes = app_for({"task": config.task, **({} if root is None else {"data-root": str(root.resolve())})})
    run_simulation(server, nodes, client_count(config), backend_config=backend)
    return outcomes[0]
