"""Comparing methods: the same data, budgets, rounds and seeds for all, in one ordinary run folder each."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from splitmix.compare.contenders import Contender
from splitmix.compare.costs import account_of, profiles_of, run_costs
from splitmix.compare.coverage import coverage
from splitmix.compare.page import Written, write_comparison
from splitmix.compare.standings import Costs, MethodRuns, read_costs, read_method_runs
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.report.pages import duration
from splitmix.report.run_page import write_report
from splitmix.runs.config import Config, check_same_config, make_config, to_toml
from splitmix.runs.progress import Watcher
from splitmix.runs.records import read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import Setup, TaskFacts, set_up


@dataclass(frozen=True)
class Bench:
    """Where runs are carried out, and who hears of them."""

    workers: int = 1
    device: str = "cpu"
    root: Path | None = None  # of the data sets
    command: str = ""
    watch: Callable[[], Sequence[Watcher]] = tuple  # makes the watchers of a run
    say: Callable[[str], None] = field(default=lambda text: None)


@dataclass(frozen=True)
class Planned:
    """One run to be made."""

    contender: Contender
    config: Config
    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()


@dataclass(frozen=True)
class Comparison:
    """What was found, and where it is written."""

    entries: list[MethodRuns]
    files: Written


def compare(
    given: Mapping[str, Any], contenders: Sequence[Contender], seeds: Sequence[int], out: Path, bench: Bench
) -> Comparison:
    """Run every contender with every seed, or only those that an earlier call left; then write page and tables.

    `given` are the settings of all runs, but for the method, its rate and the seed. Seeds go one after the other, so
    that after each of them there is a whole, if smaller, comparison to look at.
    """
    plans, setups = planned(given, contenders, seeds, out), Setups(bench.root)
    waiting = [plan for plan in plans if not plan.finished]
    for plan in waiting:
        if plan.config.seed == waiting[0].config.seed:
            setups.of(plan.config)  # what cannot run is said before anything is trained
    for count, seed in enumerate(seeds, start=1):
        own = [plan for plan in plans if plan.config.seed == seed]
        for plan in own:
            if plan in waiting:
                bench.say(f"run {plans.index(plan) + 1} of {len(plans)}: {_name(plan)}{_time_left(plans)}")
                run_once(setups.of(plan.config), plan.folder, bench)
            describe(setups, plan)
        if count < len(seeds) and any(plan in waiting for plan in own):
            summarise(contenders, seeds[:count], out, bench.command)
    return summarise(contenders, seeds, out, bench.command)


def planned(
    given: Mapping[str, Any], contenders: Sequence[Contender], seeds: Sequence[int], out: Path
) -> list[Planned]:
    """All runs, seed by seed; what is no config, or is in the way, is said at once."""
    plans = [
        Planned(contender, make_config(contender.settings(given, seed)), run_folder(out, contender, seed))
        for seed in dict.fromkeys(seeds)
        for contender in contenders
    ]
    if not plans:
        raise UserError("there is nothing to compare; name at least one method and one seed")
    same: dict[str, Planned] = {}
    for plan in plans:
        first = same.setdefault(plan.config.digest(), plan)
        clash = next((other for other in plans if other.folder == plan.folder and other is not plan), first)
        if clash is not plan:
            labels = f"'{first.contender.label}' and '{plan.contender.label}'"
            raise UserError(f"the methods {labels} are the same; name each once")
        if (plan.folder / "config.toml").exists():
            check_same_config(plan.folder, to_toml(plan.config))
    return plans


def run_folder(out: Path, contender: Contender, seed: int) -> Path:
    """Where a run of a comparison lies."""
    return out / f"{contender.slug}-s{seed}"


class Setups:
    """Makes the objects of runs; runs on the same data that follow one another share it."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.key: tuple[Any, ...] = ()
        self.task: TaskFacts | None = None

    def of(self, config: Config) -> Setup:
        key = (config.task, config.seed, config.clients, str(config.partition), config.val_ratio)
        setup = set_up(config, root=self.root, task=self.task if key == self.key else None)
        self.key, self.task = key, setup.task
        return setup


def run_once(setup: Setup, folder: Path, bench: Bench) -> None:
    """Run in a folder, or go on with what is there."""
    run_in_folder(
        setup,
        folder,
        resume=True,
        workers=bench.workers,
        device=bench.device,
        watchers=bench.watch(),
        command=bench.command,
    )


def describe(setups: Setups, plan: Planned) -> None:
    """Write what a finished run costs and its report, unless they are there."""
    if read_costs(plan.folder) is None:
        write_atomically(plan.folder / "costs.json", (json.dumps(costs_of(setups.of(plan.config))) + "\n").encode())
    if not (plan.folder / "report.html").exists():
        write_report(plan.folder)


def costs_of(setup: Setup) -> Costs:
    """What each client spends over the run (bytes, MACs), and which data reaches which parameters."""
    account, profiles = account_of(setup), profiles_of(setup)
    spent = run_costs(account, profiles, setup.how)
    each = [spent[client] for client in sorted(spent)]
    reached = coverage(account, profiles, setup.how, setup.domains)
    return {
        "down": [client.down for client in each],
        "up": [client.up for client in each],
        "macs": [client.macs for client in each],
        "memory": [client.memory for client in each],
        "coverage": {
            "domains": dict(reached.domains),
            "slices": list(reached.slices),
            "reached": {domain: list(shares) for domain, shares in reached.reached.items()},
        },
    }


def summarise(contenders: Sequence[Contender], seeds: Sequence[int], out: Path, command: str) -> Comparison:
    """Read the runs of these seeds and write what they say."""
    unique = list(dict.fromkeys(seeds))
    entries = [read_method_runs(c.label, {seed: run_folder(out, c, seed) for seed in unique}) for c in contenders]
    return Comparison(entries, write_comparison(out, entries, command=command))


def time_left(spent: Iterable[tuple[str, float]], waiting: Iterable[str]) -> str:
    """How long runs of the waiting methods may take, judged by those done: of the same method, where there are any."""
    times: dict[str, list[float]] = {}
    for method, seconds in spent:
        times.setdefault(method, []).append(seconds)
    if not times:
        return ""
    typical = fmean(map(fmean, times.values()))
    return f" (all in about {duration(sum(fmean(times.get(method, [typical])) for method in waiting))})"


def _time_left(plans: Sequence[Planned]) -> str:
    done = [(p.contender.label, read_result(p.folder).get("seconds", 0.0)) for p in plans if p.finished]
    return time_left(done, [p.contender.label for p in plans if not p.finished])


def _name(plan: Planned) -> str:
    return f"{plan.contender.label}, seed {plan.config.seed}"
