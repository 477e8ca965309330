"""The grid of a run: clean accuracy and accuracy under attack at every width and dial, stored beside its result."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splitmix.core.objective import Attack
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.score import ask_all
from splitmix.core.types import Tally
from splitmix.core.width import Width
from splitmix.core.width import parse_dial
from splitmix.core.width import parse_width
from splitmix.runs.evaluate import FinishedRun
from splitmix.runs.records import printable
from splitmix.compare.statistics import t_value

DIALS = (0.0, 0.2, 0.5, 0.8, 1.0)
INTERVAL = "95 % confidence by Student's t, for other clients of the same domains"
Grid = dict[str, Any]  # as in grid.json


@dataclass(frozen=True)
class Wish:
    """What is to be measured; no widths or dials: all that the run has."""

    widths: Sequence[Width] = ()
    dials: Sequence[float] = ()
    attack: Attack | None = None
    images: int | None = None  # of each client; None: all
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"--images {self.images} leaves nothing to score; give 1 or more")


def check_dials(run: FinishedRun, dials: Sequence[float]) -> tuple[float, ...]:
    """The dials asked for, or else all there are; a run without dual norms has but one."""
    if run.setup.dial:
        return tuple(sorted(set(dials))) or DIALS
    if any(dials):
        raise UserError(
            f"the run in '{run.path}' has no robustness dial, so it can be served at --robust 0 alone; "
            "train one with -o objective=adversarial"
        )
    return (0.0,)


def measure_grid(
    run: FinishedRun,
    wish: Wish,
    *,
    workers: int,
    begin: Callable[[int], None] = lambda total: None,
    on_answer: Callable[[], None] = lambda: None,
) -> Grid:
    """Score every width at every dial, on the images as they are and under the attack; the same images for all."""
    dials, mixes, domains = check_dials(run, wish.dials), run.mixes(wish.widths), run.setup.domains
    clean = [replace(run.question, robust=dial, images=wish.images, seed=wish.seed) for dial in dials]
    attacked = [replace(question, attack=wish.attack) for question in clean] if wish.attack else []
    begin(len(attacked or clean) * len(domains))  # an attack takes all the time
    with run.engine(workers) as engine:
        plain, under = (
            ask_all(
                engine,
                run.weights,
                [(tuple(mixes.values()), question) for question in questions],
                tuple(domains),
                on_answer=on_answer if questions is (attacked or clean) else lambda: None,
            )
            for questions in (clean, attacked)
        )
    rows = [
        {
            "width": str(width),
            "robust": dial,
            "bases": len(mix),
            **_share("clean", place, plain[i], domains),
            **_share("attacked", place, under[i] if under else None, domains),
        }
        for place, (width, mix) in enumerate(mixes.items())
        for i, dial in enumerate(dials)
    ]
    return {
        "schema": 1,
        "split": run.question.split,
        "norm": run.norm,
        "clients": len(plain[0]),
        "samples": sum(tally.samples for tally in plain[0]),
        "attack": wish.attack.name if wish.attack else None,
        "weak": bool(wish.attack and wish.attack.weak),
        "interval": INTERVAL,
        "images": wish.images,
        "seed": wish.seed,
        "weights_sha256": run.result["weights_sha256"],
        "rows": rows,
    }


def interval(values: Sequence[float], groups: Sequence[object]) -> tuple[float, float]:
    """95 % confidence interval of a mean over clients: mean ± t s / sqrt(n), with s the spread within groups.

    Groups (domains) are as they are, clients within them are drawn. Without two clients in some group all are one
    group; a single client tells nothing.

    >>> low, high = interval([0.4, 0.6, 0.8, 1.0], ["a", "a", "b", "b"])
    >>> round(low, 3), high
    (0.396, 1.0)
    """
    members: dict[object, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        members.setdefault(group, []).append(value)
    degrees = len(values) - len(members)
    if degrees < 1:
        return interval(values, [None] * len(values)) if len(members) > 1 else (0.0, 1.0)
    squares = sum((value - sum(group) / len(group)) ** 2 for group in members.values() for value in group)
    half = t_value(degrees) * math.sqrt(squares / degrees / len(values))
    mean = sum(values) / len(values)
    return max(0.0, mean - half), min(1.0, mean + half)


def write_grid(path: Path, grid: Grid) -> None:
    write_atomically(path, (json.dumps(grid, indent=1) + "\n").encode())


def read_grid(path: Path) -> Grid:
    """A stored grid with its numbers checked; it may come from a stranger."""
    try:
        grid: Grid = printable(json.loads(path.read_text()))
        if grid["schema"] != 1:
            raise ValueError(f"its schema is {grid['schema']!r}, not 1")
        grid["rows"] = [_checked(row) for row in grid["rows"]]
        if grid["attack"] and any(row["attacked"] is None for row in grid["rows"]):
            raise ValueError("it names an attack without its accuracies")
        texts = {key: str(grid[key]) for key in ("split", "norm")} | {"attack": grid["attack"] and str(grid["attack"])}
        return {**grid, **texts, "clients": int(grid["clients"]), "samples": int(grid["samples"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"'{path}' cannot be read ({error}); measure it again with: splitmix eval") from None


def stored_grids(folder: Path) -> list[Grid]:
    """Every grid of a run's folder: grid.json first, then others such as grid-autoattack.json."""
    return [read_grid(path) for path in sorted(folder.glob("grid*.json"), key=lambda path: (len(path.name), path))]


def _share(what: str, place: int, tallies: Sequence[Tally] | None, domains: Mapping[int, str]) -> dict[str, Any]:
    """Mean over clients of one mix, with its interval, and each client's accuracy."""
    if tallies is None:
        return {what: None, f"{what}_low": None, f"{what}_high": None}
    values = [tally.correct[place] / tally.samples for tally in tallies]
    low, high = interval(values, [domains[tally.client] for tally in tallies])
    mean = sum(values) / len(values)
    return {what: mean, f"{what}_low": low, f"{what}_high": high, f"{what}_clients": values}


def _checked(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {
        key: None if row[key] is None else float(row[key])
        for key in (f"{what}{end}" for what in ("clean", "attacked") for end in ("", "_low", "_high"))
    }
    for key, value in numbers.items():
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{key} is {value}, outside [0, 1]")
    return {**row, **numbers, "width": str(parse_width(row["width"])), "robust": parse_dial(row["robust"])}
