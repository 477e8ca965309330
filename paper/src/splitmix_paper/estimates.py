"""How long a run of the cpu scale takes on two quiet cores, from times of single clients measured there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from splitmix.core.errors import name_of
from splitmix.core.width import Width, parse_width
from splitmix.data.budgets import parse_budgets
from splitmix.runs.config import Config

CORES = 2
ATTACK = 8.5  # adversarial training in plain trainings
SCORING = 1.3  # validation beside training
FINAL = 30.0  # seconds: calibration, test images
CELL = 12.0  # seconds: one width at one dial under attack


@dataclass(frozen=True)
class Pace:
    """Core-seconds of a client and epoch: of one net by width, and of n bases as first + n * more."""

    clients: int
    nets: dict[str, float]
    first: float
    more: float

    def net(self, width: Width) -> float:
        """Between the measured widths along a power law."""
        known = sorted((float(parse_width(text)), seconds) for text, seconds in self.nets.items())
        at = float(width)
        pairs = list(pairwise(known))
        (x0, y0), (x1, y1) = next((pair for pair in pairs if at <= pair[1][0]), pairs[-1])
        slope = math.log(y1 / y0) / math.log(x1 / x0)
        return float(y0 * (at / x0) ** slope)


PACES = {
    "digits": Pace(50, {"1/8": 0.05, "1/4": 0.08, "1/2": 0.17, "1": 0.62}, 0.05, 0.019),
    "cifar10": Pace(100, {"1/8": 0.22, "1/4": 0.44, "1/2": 1.15, "1": 4.4}, 0.09, 0.134),
    "office-caltech10": Pace(20, {"1/8": 0.12, "1/4": 0.2, "1/2": 0.6, "1": 2.6}, 0.1, 0.046),
}


def estimate(config: Config) -> float | None:
    """Seconds of a run, or None where nothing was measured."""
    pace = next((pace for task, pace in PACES.items() if config.task.startswith(task)), None)
    if pace is None:
        return None
    budgets = parse_budgets(config.budgets, clients=pace.clients, seed=config.seed).at(0)
    widths = sorted(set(budgets))
    client = sum(budgets.count(width) * _client(config, pace, width, widths) for width in widths) / len(budgets)
    half = 0.5 if config.task == "cifar10-half" else 1.0
    rounds = config.rounds * min(config.cohort or pace.clients, pace.clients) * client * config.epochs * half / CORES
    return rounds * SCORING * (ATTACK if _attacked(config.objective) else 1.0) + FINAL


def estimate_grid(config: Config, widths: int, dials: int) -> float:
    """Seconds of an attack on a run: at every dial, if it has one."""
    objective = {} if isinstance(config.objective, str) else config.objective
    return CELL * widths * (dials if objective.get("dual", True) else 1)


def _client(config: Config, pace: Pace, budget: Width, widths: Sequence[Width]) -> float:
    if config.method_name == "fedavg":
        options: dict[str, Any] = config.method if isinstance(config.method, dict) else {}
        return pace.net(parse_width(options.get("width", widths[-1])))
    if config.method_name == "sheterofl":
        return sum(pace.net(width) for width in widths if width <= budget)
    if config.method_name == "splitmix":
        atom = parse_width(config.atom)
        return (pace.first + pace.more * int(budget / atom)) * pace.net(atom) / pace.net(Width(1, 8))
    return pace.net(budget)


def _attacked(objective: Any) -> bool:
    weight = 0.5 if isinstance(objective, str) else objective.get("weight", 0.5)
    return name_of(objective) in ("adversarial", "oat") and weight > 0
