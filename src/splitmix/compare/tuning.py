"""Tuning: the same few learning rates for every method, judged on validation images; no test image is looked at.

The record of it, `tuning.json`, holds every trial, the rate chosen for each method, and how it was chosen.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.compare.compare import Contender, checked_rate, refuse_other_settings
from splitmix.compare.statistics import mean_and_spread, spread_text
from splitmix.compare.suite import Setups, Suite, SuiteRun, Workshop
from splitmix.core.errors import UserError
from splitmix.core.width import parse_width
from splitmix.report.tables import Column, Table, plain
from splitmix.runs.config import Config, make_config
from splitmix.runs.records import MetricRow, read_metrics, read_record, round_seconds, write_record
from splitmix.runs.run import train_in_folder
from splitmix.runs.setup import Setup

RATES = (0.01, 0.03, 0.1, 0.3)
JUDGED = (
    "the best validated round of each trial, by the mean over clients of their validation accuracy, averaged over the "
    "widths that are some client's budget (over all served widths if none is), then over seeds; with an attack in the "
    "objective by clean accuracy and accuracy under attack of the widest, by their shares; of equals the lower"
)


class BestRound(TypedDict):
    """What a trial is judged by: its best validated round."""

    accuracy: float  # on validation images
    round: int
    widths: dict[str, float]


class RateTrial(BestRound):
    """One run with one rate."""

    method: str
    lr: float
    seed: int
    folder: str
    seconds: float
    config: str  # its hash


class ChosenRate(TypedDict):
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
    settings: dict[str, object]
    chosen: dict[str, ChosenRate]
    trials: list[RateTrial]


@dataclass(frozen=True)
class RatesToTry:
    """What is tried: every rate with every method and seed."""

    contenders: Sequence[Contender]
    rates: Sequence[float] = RATES
    seeds: Sequence[int] = (1,)

    def __post_init__(self) -> None:
        for rate in self.rates:
            checked_rate(f"{rate:g}")
        own = [contender.label for contender in self.contenders if contender.lr is not None]
        if own:
            raise UserError(f"'{own[0]}' brings its own learning rate, which is what is looked for; name it without")
        if not (self.contenders and self.rates and self.seeds):
            raise UserError("there is nothing to try; give at least one method, one rate and one seed")


@dataclass(frozen=True)
class TrialRun(SuiteRun):
    """A method with one rate and seed: trained and validated, never tested; done once it is on record."""

    label: str
    config: Config
    folder: Path
    recorded: RateTrial | None = None

    @property
    def name(self) -> str:
        return f"{self.label}, lr {self.config.lr:g}, seed {self.config.seed}"

    @property
    def done(self) -> bool:
        return self.recorded is not None

    @property
    def seconds(self) -> float | None:
        return self.recorded["seconds"] if self.recorded else round_seconds(read_metrics(self.folder))

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        setup, watchers = setups.of(self.config), workshop.watch()
        train_in_folder(setup, self.folder, workers=workshop.workers, device=workshop.device, watchers=watchers)


def tune(given: Mapping[str, object], tried: RatesToTry, out: Path, workshop: Workshop) -> Tuning:
    """Try every rate, or those that an earlier call left, and keep a record of all in `tuning.json`."""
    runs = trial_runs(given, tried, out)
    tuning = begun(out, given, tried, workshop.command)
    known = {trial["config"]: trial for trial in tuning["trials"]}
    suite = Suite([replace(run, recorded=known.get(run.config.digest())) for run in runs], workshop, "trial")
    suite.check()
    for run in suite:
        tuning = with_trial(tuning, trial_of(run, suite.setups.of(run.config)))
        write_record(out / "tuning.json", tuning)
    write_record(out / "tuning.json", tuning)
    return tuning


def trial_runs(given: Mapping[str, object], tried: RatesToTry, out: Path) -> list[TrialRun]:
    """All trials, seed by seed and method by method; what is no config, or is in the way, is said at once."""
    runs = [
        TrialRun(
            contender.label,
            make_config(replace(contender, lr=rate, tuned=True).settings(given, seed)),
            out / f"{contender.slug}-lr{rate:g}-s{seed}",
        )
        for seed in dict.fromkeys(tried.seeds)
        for contender in tried.contenders
        for rate in sorted(set(tried.rates))
    ]
    refuse_other_settings(runs)
    return runs


def begun(out: Path, given: Mapping[str, object], tried: RatesToTry, command: str) -> Tuning:
    """A new record, or that of an earlier call: its methods, rates and seeds stay, and all trials of it count."""
    config = make_config(given)
    found: Tuning = {
        "schema": 1,
        "task": config.task,
        "command": command,
        "judged": JUDGED,
        "methods": [contender.label for contender in tried.contenders],
        "rates": sorted(set(tried.rates)),
        "seeds": list(tried.seeds),
        "rounds": config.rounds,
        "seconds": 0.0,
        "settings": dict(given),
        "chosen": {},
        "trials": [],
    }
    if (out / "tuning.json").exists():
        earlier = read_tuning(out / "tuning.json")
        if json.dumps(earlier["settings"], sort_keys=True) != json.dumps(found["settings"], sort_keys=True):
            raise UserError(f"the tuning in '{out}' was made with other settings; choose another --out")
        found["methods"] = list(dict.fromkeys([*earlier["methods"], *found["methods"]]))
        found["rates"] = sorted({*earlier["rates"], *found["rates"]})
        found["seeds"] = list(dict.fromkeys([*earlier["seeds"], *found["seeds"]]))
        found["trials"] = earlier["trials"]
    return with_choice(found)


def trial_of(run: TrialRun, setup: Setup) -> RateTrial:
    """What the validation images say of one rate."""
    served = {str(width) for width in setup.method.widths}
    widths = served & {str(budget) for budget in setup.budgets.at(0)} or served
    rows = read_metrics(run.folder)
    return {
        "method": run.label,
        "lr": run.config.lr,
        "seed": run.config.seed,
        "folder": run.folder.name,
        **best_round(rows, widths),
        "seconds": round(round_seconds(rows), 1),
        "config": run.config.digest(),
    }


def best_round(metrics: Sequence[MetricRow], widths: set[str]) -> BestRound:
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


def with_trial(tuning: Tuning, trial: RateTrial) -> Tuning:
    """The record with one more trial, and what follows from it."""
    trials = [*(old for old in tuning["trials"] if old["config"] != trial["config"]), trial]
    return with_choice({**tuning, "trials": trials})


def with_choice(tuning: Tuning) -> Tuning:
    """The record with the best rate of each method that has tried them all: no search is larger than another."""
    chosen: dict[str, ChosenRate] = {}
    for label in tuning["methods"]:
        found = {rate: trial_accuracies(tuning, label, rate) for rate in tuning["rates"]}
        if all(len(values) == len(tuning["seeds"]) for values in found.values()):
            best = max(found, key=lambda rate: (fmean(found[rate]), -rate))
            edge = len(found) > 1 and best in (min(found), max(found))
            chosen[label] = {"lr": best, "accuracy": fmean(found[best]), "edge": edge}
    return {**tuning, "chosen": chosen, "seconds": round(sum(trial["seconds"] for trial in tuning["trials"]), 1)}


def trial_accuracies(tuning: Tuning, label: str, rate: float) -> list[float]:
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
            *(mean_and_spread(trial_accuracies(tuning, label, rate)) for rate in rates),
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
    if not file.exists():
        raise UserError(f"there is no tuning record '{file}'; make one by: splitmix tune")
    again = "tune into another folder"
    return read_record(file, Tuning, damaged="is no tuning record", remedy=again, newer=again)
