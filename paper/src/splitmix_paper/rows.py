"""Rows: all that is known of the runs, one measured number a line, in `rows.jsonl`.

Tables, pictures and verdicts read rows and nothing else, so a run whose folder is gone is simply rows that stay. Of two
rows that measure the same, the later line counts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from splitmix.compare.coverage import StoredCosts, read_costs
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.width import parse_width
from splitmix.runs.config import FREE, Config, Value, make_config
from splitmix.runs.measure.grid import read_grid
from splitmix.runs.records import Result, all_printable, read_metrics, read_result, round_seconds, scored_clients

FILE = "rows.jsonl"
DIGITS = 6  # of what is stored
RUN = "its run"  # where a row comes from, unless it says otherwise
NORMS = ("batch", "client", "tracked", "local")  # those that tables show
ACCURACY, SECONDS, ROUND = "accuracy", "seconds", "seconds of a round"
DOWNLOAD, WORK, REACHED, BUDGET = "bytes down in a round", "MACs in a round", "share of the net trained", "budget"
WORST = "worst difference from FedAvg"
Number = tuple[str, float, dict[str, Any]]  # what was measured, its value, and where


def _short(value: float) -> float:
    """Six digits; whole numbers stay whole."""
    return float(f"{value:.{DIGITS}g}") if abs(value) < 10**DIGITS else round(value)


Short = Annotated[float, AfterValidator(_short)]


class Row(BaseModel):
    """One number, and all that is needed to know what it is of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    study: str
    scale: str
    method: str
    seed: int
    config: str  # the hash of all settings
    settings: dict[str, Value]  # the task, and all that differs from its defaults
    substitutes: tuple[str, ...] = ()  # data that is not the paper's
    measure: str
    value: Short
    split: str | None = None
    norm: str | None = None  # where norm statistics come from
    width: str | None = None
    robust: float | None = None  # the dial
    attack: str | None = None  # in words; none: the images as they are
    weak: bool = False  # whether the attack is
    images: int | None = None  # of each client, where not all were taken
    samples: int | None = None  # images in all
    clients: tuple[Short | None, ...] | None = None  # the value of each
    domains: dict[str, Short | None] | None = None
    homes: tuple[str, ...] | None = None  # the domain of each client
    curve: tuple[tuple[int, Short], ...] | None = None  # by round, counted from 1
    reached: dict[str, dict[str, Short]] | None = None  # by domain and slice of the net
    source: str = RUN

    @property
    def key(self) -> tuple[object, ...]:
        """What it measures: two rows of the same key are the same number twice."""
        return self.config, self.measure, self.split, self.norm, self.width, self.robust, self.attack

    def line(self) -> str:
        return self.model_dump_json(exclude_defaults=True) + "\n"


@dataclass(frozen=True)
class Measured:
    """All rows of one run."""

    rows: tuple[Row, ...]

    def find(self, measure: str, **where: object) -> Row | None:
        """The one row that measures this, with these properties."""
        found = (row for row in self.rows if row.measure == measure)
        return next((row for row in found if all(getattr(row, key) == value for key, value in where.items())), None)

    def score(self, width: str, norm: str = "batch") -> Row | None:
        """The test accuracy at a width, with these norm statistics if the run has them, else with its own."""
        return self.find(ACCURACY, split="test", width=width, norm=norm if norm in self.norms else self.norms[0])

    def curve(self, width: str) -> list[tuple[float, float]]:
        """Validation accuracy in per cent by round."""
        row = self.find(ACCURACY, split="val", width=width)
        return [(x, 100 * y) for x, y in row.curve or ()] if row else []

    def grid(self) -> list[Row]:
        """What was measured at each dial, clean and under attack."""
        return [row for row in self.rows if row.robust is not None]

    @cached_property
    def norms(self) -> list[str | None]:
        return list(dict.fromkeys(row.norm for row in self._scores())) or [None]

    @cached_property
    def widths(self) -> list[str]:
        """All that were scored or validated, from narrow to wide."""
        plain = (row for row in self.rows if row.measure == ACCURACY and row.robust is None)
        return sorted({row.width for row in plain if row.width}, key=parse_width)

    @property
    def by_client(self) -> bool:
        """Whether what single clients reach is known, as verdicts need it."""
        return any(row.clients for row in self.rows if row.measure == ACCURACY)

    @property
    def own(self) -> bool:
        """Whether it was read from its run."""
        return any(row.source == RUN for row in self.rows)

    def _scores(self) -> Iterator[Row]:
        return (row for row in self.rows if row.measure == ACCURACY and row.split == "test" and row.robust is None)


class Rows:
    """The rows of a folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self._rows: dict[tuple[object, ...], Row] = {row.key: row for row in read_rows(self.file)}

    def of(self, config: str) -> Measured | None:
        """What is known of the run of this config, if anything is."""
        return self._by_config.get(config)

    def learn(self, rows: Iterable[Row]) -> None:
        """Know them, too; what else was known of the same numbers is forgotten."""
        self._rows |= {row.key: row for row in rows}
        self.__dict__.pop("_by_config", None)

    def write(self) -> None:
        """Store all, if there are any."""
        if self._rows:
            write_atomically(self.file, "".join(row.line() for row in self._rows.values()).encode())

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    @cached_property
    def _by_config(self) -> dict[str, Measured]:
        found: dict[str, list[Row]] = {}
        for row in self:
            found.setdefault(row.config, []).append(row)
        return {config: Measured(tuple(rows)) for config, rows in found.items()}


def read_rows(file: Path) -> list[Row]:
    """The rows of a file; none if there is no file."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for place, line in enumerate(lines, start=1):
        try:
            found.append(Row.model_validate(all_printable(json.loads(line))))
        except (ValueError, RecursionError):
            raise UserError(f"line {place} of '{file}' is no row; take it out, or move the file away") from None
    return found


def own_settings(config: Config) -> dict[str, Value]:
    """What sets a config apart from the defaults of its task; its norms and its seed are always named."""
    usual = make_config({"task": config.task}).model_dump(mode="json")
    named = config.model_dump(mode="json", exclude=FREE)
    kept = ("task", "norm", "seed")
    return {key: value for key, value in named.items() if key in kept or value != usual[key]}


def rows_of_run(folder: Path, about: Mapping[str, Any]) -> Iterator[Row]:
    """Everything that tables and pictures show of a finished run; `about` is what its rows have in common."""
    for measure, value, more in _numbers(folder):
        yield Row(**about, measure=measure, value=value, **more)


def _numbers(folder: Path) -> Iterator[Number]:
    result, metrics = read_result(folder), read_metrics(folder)
    for score in result["scores"]:
        if score.get("norm", NORMS[0]) in NORMS:
            more = {key: score.get(key) for key in ("norm", "width", "domains")}
            clients = score.get("clients") or None
            yield ACCURACY, score["accuracy"], {**more, "split": score.get("split", "test"), "clients": clients}
    yield from _curves(metrics)
    yield SECONDS, max(round_seconds(metrics), result.get("seconds", 0.0)), {}
    if times := [row["seconds"] for row in metrics if row["kind"] == "round" and "seconds" in row]:
        yield ROUND, median(times), {}
    asked = scored_clients(result) or result["clients"]
    budgets = [float(parse_width(client["budget"])) for client in asked]
    yield BUDGET, fmean(budgets), {"clients": budgets, "homes": [client["domain"] for client in asked]}
    if (costs := read_costs(folder)) is not None:
        yield from _costs(result, costs)
    if (folder / "grid.json").exists():
        yield from _grid(read_grid(folder / "grid.json"))


def _curves(metrics: Sequence[Mapping[str, Any]]) -> Iterator[Number]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in metrics:
        if row["kind"] == "score" and row.get("split", "val") == "val":
            curves.setdefault(row["width"], []).append((row["round"] + 1, row["accuracy"]))
    for width in sorted(curves, key=parse_width):
        yield ACCURACY, curves[width][-1][1], {"split": "val", "width": width, "curve": curves[width]}


def _costs(result: Result, costs: StoredCosts) -> Iterator[Number]:
    rounds = max(1, result.get("rounds", 1))
    for measure, spent in ((DOWNLOAD, costs["down"]), (WORK, costs["macs"])):
        each = [value / rounds for value in spent]
        yield measure, fmean(each), {"clients": each}
    found = costs["coverage"]
    reached = {name: dict(zip(found["slices"], row, strict=True)) for name, row in found["reached"].items()}
    yield REACHED, min(found["domains"].values()), {"domains": found["domains"], "reached": reached}


def _grid(grid: Mapping[str, Any]) -> Iterator[Number]:
    shared = {key: grid[key] for key in ("split", "norm", "samples", "images")}
    under = {"attack": grid["attack"], "weak": grid["weak"]}
    for row in grid["rows"]:
        at = {**shared, "width": row["width"], "robust": row["robust"]}
        for kind, more in (("clean", {}), ("attacked", under)):
            if row[kind] is not None:
                yield ACCURACY, row[kind], {**at, **more, "clients": row.get(f"{kind}_clients")}
