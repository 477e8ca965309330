"""The record of a tuning: every trial, the rate chosen for each method, and how it was chosen."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.compare.statistics import mean_and_spread, spread_text
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.width import parse_width
from splitmix.report.tables import Column, Table, plain
from splitmix.runs.records import MetricRow

JUDGED = (
    "the best validated round of each trial, by the mean over clients of their validation accuracy, averaged over the "
    "widths that are some client's budget (over all served widths if none is), then over seeds; with an attack in the "
    "objective by clean accuracy and accuracy under attack of the widest, by their shares; of equals the lower"
)


class Trial(TypedDict):
    """One run with one rate."""

    method: str
    lr: float
    seed: int
    folder: str
    accuracy: float  # on validation images
    round: int
    widths: dict[str, float]
    seconds: float
    config: str  # its hash


class Chosen(TypedDict):
    """The best rate of a method; `edge`: it is the lowest or highest of those tried, so one beyond may be better."""

    lr: float
    accuracy: float
    edge: bool


class Tuning(TypedDict):
    """The content of `tuning.json`."""

    schema: int
    task: str
    command: str
    judged: str
    methods: list[str]
    rates: list[float]
    seeds: list[int]
    rounds: int
    seconds: float
    settings: dict[str, Any]
    chosen: dict[str, Chosen]
    trials: list[Trial]


_TUNING: TypeAdapter[Tuning] = TypeAdapter(Tuning)


def best_round(metrics: Sequence[MetricRow], widths: set[str]) -> dict[str, Any]:
    """The round with the highest validation accuracy on average over the widths, or as judged under attack if it is."""
    rounds: dict[int, dict[str, float]] = {}
    scores = [row for row in metrics if row["kind"] == "score" and row.get("split") == "val"]
    judged = [row | {"accuracy": row["judged"]} for row in scores if "judged" in row]
    widths = {row["width"] for row in judged} or widths
    for row in judged or scores:
        if row["width"] in widths:
            rounds.setdefault(row["round"], {})[row["width"]] = row["accuracy"]
    whole = {number: found for number, found in rounds.items() if len(found) == len(widths)}
    if not whole:
        raise UserError("a trial left no validation scores to judge it by; remove its folder and tune again")
    best = max(whole, key=lambda number: (fmean(whole[number].values()), -number))
    by_width = dict(sorted(whole[best].items(), key=lambda item: parse_width(item[0])))
    return {"accuracy": fmean(by_width.values()), "round": best + 1, "widths": by_width}


def with_trial(tuning: Tuning, trial: Trial) -> Tuning:
    """The record with one more trial, and what follows from it."""
    trials = [*(old for old in tuning["trials"] if old["config"] != trial["config"]), trial]
    return with_choice({**tuning, "trials": trials})


def with_choice(tuning: Tuning) -> Tuning:
    """The record with the best rate of each method that has tried them all: no search is larger than another."""
    chosen: dict[str, Chosen] = {}
    for label in tuning["methods"]:
        found = {rate: accuracies(tuning, label, rate) for rate in tuning["rates"]}
        if all(len(values) == len(tuning["seeds"]) for values in found.values()):
            best = max(found, key=lambda rate: (fmean(found[rate]), -rate))
            edge = len(found) > 1 and best in (min(found), max(found))
            chosen[label] = {"lr": best, "accuracy": fmean(found[best]), "edge": edge}
    return {**tuning, "chosen": chosen, "seconds": round(sum(trial["seconds"] for trial in tuning["trials"]), 1)}


def accuracies(tuning: Tuning, label: str, rate: float) -> list[float]:
    """What each seed of a method reached with a rate."""
    return [trial["accuracy"] for trial in tuning["trials"] if (trial["method"], trial["lr"]) == (label, rate)]


def tuning_table(tuning: Tuning) -> Table:
    """A row for each method, a column for each rate; the chosen one is bold."""
    rates, chosen = tuning["rates"], tuning["chosen"]
    columns = [
        Column("method", "method", number=False),
        *(Column(f"lr.{rate:g}", f"lr {rate:g}", spread_text) for rate in rates),
        Column("chosen", "chosen", plain),
    ]
    rows = [
        (
            label,
            *(mean_and_spread(accuracies(tuning, label, rate)) for rate in rates),
            chosen[label]["lr"] if label in chosen else None,
        )
        for label in tuning["methods"]
    ]
    bold = {(i, f"lr.{chosen[m]['lr']:g}") for i, m in enumerate(tuning["methods"]) if m in chosen}
    caption = (
        f"Validation accuracy (%): {tuning['judged']}. Bold or starred: the chosen rate. "
        "Test images were not looked at."
    )
    edge = [f"{label} ({found['lr']:g})" for label, found in chosen.items() if found["edge"]]
    if edge:
        caption += f" At the edge of what was tried, so try rates beyond for all: {', '.join(edge)}."
    return Table(f"Learning rates tried on {tuning['task']}", columns, rows, caption, bold)


def read_rates(path: Path, task: str) -> dict[str, float]:
    """The chosen rate of each method, from a `tuning.json` or its folder, if it was made on this task."""
    file = path / "tuning.json" if path.is_dir() else path
    tuning = read_tuning(file)
    if tuning["task"] != task:
        raise UserError(f"'{file}' was tuned on {tuning['task']}, not on {task}; tune on that first")
    return {label: found["lr"] for label, found in tuning["chosen"].items()}


def read_tuning(file: Path) -> Tuning:
    """A record of tuning; a sentence if it is none."""
    try:
        tuning = _TUNING.validate_json(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no tuning record '{file}'; make one by: splitmix tune") from None
    except OSError as error:
        raise UserError(f"'{file}' cannot be read ({error.strerror}); check what it is and who may read it") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its start"
        raise UserError(
            f"'{file}' is no tuning record (at {place}: {first['msg']}); tune into another folder"
        ) from None
    if tuning["schema"] != 1:
        raise UserError(
            f"'{file}' has the schema {tuning['schema']}, but this version reads 1; tune into another folder"
        )
    return tuning


def write_tuning(out: Path, tuning: Tuning) -> None:
    write_atomically(out / "tuning.json", (json.dumps(tuning, indent=1) + "\n").encode())


def same_settings(tuning: Tuning, given: Mapping[str, Any]) -> bool:
    """Whether a record was made with these settings."""
    return json.dumps(tuning["settings"], sort_keys=True) == json.dumps(dict(given), sort_keys=True)
