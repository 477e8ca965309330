"""Tuning: the same few learning rates for every method, judged on validation images; no test image is looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splitmix.compare.compare import Bench, Planned, Setups, time_left
from splitmix.compare.contenders import Contender
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
from splitmix.runs.config import check_same_config, make_config, to_toml
from splitmix.runs.records import read_metrics, round_seconds
from splitmix.runs.run import train_in_folder
from splitmix.runs.setup import Setup

RATES = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Grid:
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


def tune(given: Mapping[str, Any], grid: Grid, out: Path, bench: Bench) -> Tuning:
    """Try every rate, or those that an earlier call left, and keep a record of all in `tuning.json`."""
    plans, setups = planned_trials(given, grid, out), Setups(bench.root)
    tuning = begun(out, given, grid, bench.command)
    known = {trial["config"] for trial in tuning["trials"]}
    waiting = [plan for plan in plans if plan.config.digest() not in known]
    for plan in waiting:
        if plan.config.seed == waiting[0].config.seed:
            setups.of(plan.config)  # what cannot run is said before anything is trained
    for place, plan in enumerate(waiting):
        who = f"{plan.contender.label}, lr {plan.config.lr:g}, seed {plan.config.seed}"
        spent = [(trial["method"], trial["seconds"]) for trial in tuning["trials"]]
        left = time_left(spent, [other.contender.label for other in waiting[place:]])
        bench.say(f"trial {plans.index(plan) + 1} of {len(plans)}: {who}{left}")
        tuning = with_trial(tuning, run_trial(setups.of(plan.config), plan, bench))
        write_tuning(out, tuning)
    write_tuning(out, tuning)
    return tuning


def planned_trials(given: Mapping[str, Any], grid: Grid, out: Path) -> list[Planned]:
    """All trials, seed by seed and method by method; what is no config, or is in the way, is said at once."""
    plans = [
        Planned(
            contender,
            make_config(replace(contender, lr=rate, tuned=True).settings(given, seed)),
            out / f"{contender.slug}-lr{rate:g}-s{seed}",
        )
        for seed in dict.fromkeys(grid.seeds)
        for contender in grid.contenders
        for rate in sorted(set(grid.rates))
    ]
    for plan in plans:
        if (plan.folder / "config.toml").exists():
            check_same_config(plan.folder, to_toml(plan.config))
    return plans


def begun(out: Path, given: Mapping[str, Any], grid: Grid, command: str) -> Tuning:
    """A new record, or that of an earlier call: its methods, rates and seeds stay, and all trials of it count."""
    earlier = read_tuning(out / "tuning.json") if (out / "tuning.json").exists() else None
    if earlier is not None and not same_settings(earlier, given):
        raise UserError(f"the tuning in '{out}' was made with other settings; choose another --out")
    config = make_config(given)
    methods = [contender.label for contender in grid.contenders]
    return with_choice(
        {
            "schema": 1,
            "task": config.task,
            "command": command,
            "judged": JUDGED,
            "methods": list(dict.fromkeys([*(earlier["methods"] if earlier else ()), *methods])),
            "rates": sorted({*(earlier["rates"] if earlier else ()), *grid.rates}),
            "seeds": list(dict.fromkeys([*(earlier["seeds"] if earlier else ()), *grid.seeds])),
            "rounds": config.rounds,
            "seconds": 0.0,
            "settings": dict(given),
            "chosen": {},
            "trials": earlier["trials"] if earlier else [],
        }
    )


def run_trial(setup: Setup, plan: Planned, bench: Bench) -> Trial:
    """Train, but do not test: what the validation images say of one rate."""
    train_in_folder(setup, plan.folder, workers=bench.workers, device=bench.device, watchers=bench.watch())
    served = {str(width) for width in setup.method.widths}
    widths = served & {str(budget) for budget in setup.budgets.at(0)} or served
    rows = read_metrics(plan.folder)
    best = best_round(rows, widths)
    return {
        "method": plan.contender.label,
        "lr": plan.config.lr,
        "seed": plan.config.seed,
        "folder": plan.folder.name,
        "accuracy": best["accuracy"],
        "round": best["round"],
        "widths": best["widths"],
        "seconds": round(round_seconds(rows), 1),
        "config": plan.config.digest(),
    }
