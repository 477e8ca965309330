"""Tuning: the same few learning rates for every method, judged on validation images; no test image is looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splitmix.compare.compare import refuse_other_settings
from splitmix.compare.contenders import Contender
from splitmix.compare.suite import Setups, Suite, SuiteRun, Workshop
from splitmix.compare.tuning import (
    JUDGED,
    Trial,
    Tuning,
    best_round,
    read_tuning,
    same_settings,
    with_choice,
    with_trial,
    write_tuning,
)
from splitmix.core.errors import UserError
from splitmix.runs.config import Config, make_config
from splitmix.runs.records import read_metrics, round_seconds
from splitmix.runs.run import train_in_folder
from splitmix.runs.setup import Setup

RATES = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class RatesToTry:
    """What is tried: every rate with every method and seed."""

    contenders: Sequence[Contender]
    rates: Sequence[float] = RATES
    seeds: Sequence[int] = (1,)

    def __post_init__(self) -> None:
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
    recorded: Trial | None = None

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
        write_tuning(out, tuning)
    write_tuning(out, tuning)
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
    earlier = read_tuning(out / "tuning.json") if (out / "tuning.json").exists() else None
    if earlier is not None and not same_settings(earlier, given):
        raise UserError(f"the tuning in '{out}' was made with other settings; choose another --out")
    config = make_config(given)
    methods = [contender.label for contender in tried.contenders]
    return with_choice(
        {
            "schema": 1,
            "task": config.task,
            "command": command,
            "judged": JUDGED,
            "methods": list(dict.fromkeys([*(earlier["methods"] if earlier else ()), *methods])),
            "rates": sorted({*(earlier["rates"] if earlier else ()), *tried.rates}),
            "seeds": list(dict.fromkeys([*(earlier["seeds"] if earlier else ()), *tried.seeds])),
            "rounds": config.rounds,
            "seconds": 0.0,
            "settings": dict(given),
            "chosen": {},
            "trials": earlier["trials"] if earlier else [],
        }
    )


def trial_of(run: TrialRun, setup: Setup) -> Trial:
    """What the validation images say of one rate."""
    served = {str(width) for width in setup.method.widths}
    widths = served & {str(budget) for budget in setup.budgets.at(0)} or served
    rows = read_metrics(run.folder)
    best = best_round(rows, widths)
    return {
        "method": run.label,
        "lr": run.config.lr,
        "seed": run.config.seed,
        "folder": run.folder.name,
        "accuracy": best["accuracy"],
        "round": best["round"],
        "widths": best["widths"],
        "seconds": round(round_seconds(rows), 1),
        "config": run.config.digest(),
    }
