"""Comparing methods: the same data, budgets, rounds and seeds for all, in one ordinary run folder each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitmix.compare.contenders import Contender
from splitmix.compare.costs_file import costs_of, read_costs, write_costs
from splitmix.compare.page import Written, write_comparison
from splitmix.compare.standings import MethodRuns, read_method_runs
from splitmix.compare.suite import Setups, Suite, SuiteRun, Workshop
from splitmix.core.errors import UserError
from splitmix.report.run_page import write_report
from splitmix.runs.config import Config, check_same_config, make_config, to_toml


@dataclass(frozen=True)
class ComparedRun(SuiteRun):
    """A method with a seed: its run, what that costs, and its report."""

    label: str
    config: Config
    folder: Path

    @property
    def done(self) -> bool:
        trained, page = self.folder / "result.json", self.folder / "report.html"
        return trained.exists() and page.exists() and read_costs(self.folder) is not None

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        SuiteRun.perform(self, setups, workshop)
        if read_costs(self.folder) is None:
            write_costs(self.folder, costs_of(setups.of(self.config)))
        write_report(self.folder)


@dataclass(frozen=True)
class Comparison:
    """What was found, and where it is written."""

    methods: list[MethodRuns]
    files: Written


def compare(
    given: Mapping[str, object],
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    out: Path,
    workshop: Workshop,
) -> Comparison:
    """Run every contender with every seed, or only those that an earlier call left; then write page and tables.

    `given` are the settings of all runs, but for the method, its rate and the seed. Seeds go one after the other, so
    that after each of them there is a whole, if smaller, comparison to look at.
    """
    suite = Suite(compared_runs(given, contenders, seeds, out), workshop)
    suite.check()
    for run in suite:
        seed, left = run.config.seed, {waiting.config.seed for waiting in suite.waiting}
        if left and seed not in left:
            summarise(contenders, seeds[: seeds.index(seed) + 1], out, workshop.command)
    return summarise(contenders, seeds, out, workshop.command)


def compared_runs(
    given: Mapping[str, object], contenders: Sequence[Contender], seeds: Sequence[int], out: Path
) -> list[ComparedRun]:
    """All runs, seed by seed; what is no config, or is in the way, is said at once."""
    runs = [
        ComparedRun(
            contender.label, make_config(contender.settings(given, seed)), run_folder(out, contender.slug, seed)
        )
        for seed in dict.fromkeys(seeds)
        for contender in contenders
    ]
    if not runs:
        raise UserError("there is nothing to compare; name at least one method and one seed")
    same: dict[str | Path, ComparedRun] = {}
    for run in runs:
        for key in (run.config.digest(), run.folder):
            first = same.setdefault(key, run)
            if first is not run:
                raise UserError(f"the methods '{first.label}' and '{run.label}' are the same; name each once")
    refuse_other_settings(runs)
    return runs


def refuse_other_settings(runs: Sequence[SuiteRun]) -> None:
    """Say where a folder holds a run of other settings."""
    for run in runs:
        if (run.folder / "config.toml").exists():
            check_same_config(run.folder, to_toml(run.config))


def run_folder(out: Path, slug: str, seed: int) -> Path:
    """Where a run of a comparison lies."""
    return out / f"{slug}-s{seed}"


def summarise(contenders: Sequence[Contender], seeds: Sequence[int], out: Path, command: str) -> Comparison:
    """Read the runs of these seeds and write what they say."""
    unique = list(dict.fromkeys(seeds))
    found = [read_method_runs(c.label, {seed: run_folder(out, c.slug, seed) for seed in unique}) for c in contenders]
    return Comparison(found, write_comparison(out, found, command=command))
