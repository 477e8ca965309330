"""Flower's own simulation: Ray's workers play the nodes, on the cores of this machine or of a cluster."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from splitmix.core.errors import UserError

Result = TypeVar("Result")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else whoever shares the machine comes first, and nodes are as good as dead
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def simulate(run: Callable[[Grid], Result], app: ClientApp, nodes: int, workers: int) -> Result:
    """What `run` returns, given a grid of so many nodes; at most `workers` of them work at a time."""
    if find_spec("ray") is None:
        raise UserError('Ray is not installed; pip install "splitmix[ray]"')
    from flwr.simulation import run_simulation

    results: list[Result] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        results.append(run(grid))

    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    own = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
    backend: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"log_to_driver": False, **own},
    }
    run_simulation(server, app, nodes, backend_config=backend)
    return results[0]
