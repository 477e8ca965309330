"""Comparing methods: the same data, budgets, rounds and seeds for all, in one ordinary run folder each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splitmix.compare.coverage import read_costs, write_costs
from splitmix.compare.page import Written, write_comparison
from splitmix.compare.standings import MethodRuns, read_method_runs
from splitmix.compare.suite import Setups, Suite, SuiteRun, Workshop
from splitmix.core.errors import UserError
from splitmix.report.run_page import write_report
from splitmix.runs.config import Config, check_same_config, make_config, parse_override, to_toml


@dataclass(frozen=True)
class Contender:
    """A method, what it was told besides its name, and its own learning rate if it has one."""

    name: str
    options: tuple[tuple[str, object], ...] = ()
    lr: float | None = None
    tuned: bool = False  # the rate comes from a record, so it is not part of the name

    @property
    def method(self) -> str | dict[str, object]:
        """The method as a config names it."""
        return {"name": self.name, **dict(self.options)} if self.options else self.name

    @property
    def label(self) -> str:
        """What it is called in tables.

        >>> parse_contender("fedavg:width=1/8,mode=strict").label, parse_contender("fjord:distill=true,lr=0.03").label
        ('fedavg 1/8 strict', 'fjord distill lr=0.03')
        """
        own = () if self.lr is None or self.tuned else (("lr", self.lr),)
        return " ".join([self.name, *(_word(key, value) for key, value in (*self.options, *own))])

    @property
    def slug(self) -> str:
        """The same in letters that any file system takes.

        >>> parse_contender("fedavg:width=1/8").slug
        'fedavg-1of8'
        """
        return re.sub(r"[^a-z0-9.=]+", "-", self.label.lower().replace("/", "of")).strip("-.") or "method"

    def settings(self, given: Mapping[str, object], seed: int) -> dict[str, object]:
        """The settings of its run with a seed: as given to all, but for the method and its rate."""
        return {**given, "method": self.method, "seed": seed} | ({} if self.lr is None else {"lr": self.lr})


def parse_contender(text: str) -> Contender:
    """Read `fedavg`, `fedavg:width=1/8,mode=strict` or `{name="fedavg", width="1/8"}`; `lr=` is its own rate.

    >>> parse_contender("fedavg:width=1/8,lr=0.3")
    Contender(name='fedavg', options=(('width', '1/8'),), lr=0.3, tuned=False)
    """
    if text.lstrip().startswith("{"):
        options = parse_override(f"method={text}")[1]
        name = str(options.pop("name", ""))
    else:
        name, _, rest = text.partition(":")
        options = dict(map(parse_override, rest.split(","))) if rest else {}
    if not name.strip():
        raise UserError(f"'{text}' names no method; write a name, or name:key=value,key=value")
    lr = checked_rate(options.pop("lr")) if "lr" in options else None
    return Contender(name.strip(), tuple(options.items()), lr)


def parse_contenders(texts: Sequence[str]) -> list[Contender]:
    """All of them, each once."""
    found = list({contender.label: contender for contender in map(parse_contender, texts)}.values())
    if not found:
        raise UserError("there is no method to run; name some, such as: splitmix heterofl fedavg:width=1/8")
    return found


def with_rates(contenders: Iterable[Contender], rates: Mapping[str, float]) -> list[Contender]:
    """Each with the rate that was tuned for it; one with a rate of its own keeps that."""
    fitted = []
    for contender in contenders:
        if contender.lr is None and contender.label not in rates:
            raise UserError(
                f"the tuning has no rate for '{contender.label}', only for {', '.join(rates) or 'nothing'}; "
                "tune it as well, or leave it out"
            )
        tuned = replace(contender, lr=rates.get(contender.label), tuned=True)
        fitted.append(contender if contender.lr is not None else tuned)
    return fitted


def checked_rate(value: object) -> float:
    """A learning rate that can be."""
    try:
        rate = float(str(value))
    except ValueError:
        raise UserError(f"'{value}' is not a learning rate; give a number, such as 0.1") from None
    if not 0 < rate < float("inf"):
        raise UserError(f"a learning rate of {value} cannot be trained with; give a number above 0, such as 0.1")
    return rate


def _word(key: str, value: object) -> str:
    if value is True:
        return key
    if value is False:
        return f"no {key}"
    if key in ("width", "mode"):
        return str(value)
    return f"{key}={' '.join(map(str, value)) if isinstance(value, list | tuple) else value}"


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
            write_costs(self.folder, setups.of(self.config))
        write_report(self.folder)


def compare(
    given: Mapping[str, object],
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    out: Path,
    workshop: Workshop,
) -> tuple[list[MethodRuns], Written]:
    """Run every contender with every seed, or only those that an earlier call left; then write page and tables.

    `given` are the settings of all runs, but for the method, its rate and the seed. Seeds go one after the other, so
    that after each of them there is a whole, if smaller, comparison to look at.
    """
    runs = compared_runs(given, contenders, seeds, out)
    suite = Suite(runs, workshop)
    suite.check()
    for run in suite:
        left = {waiting.config.seed for waiting in suite.waiting}
        if left and run.config.seed not in left:
            summarise([whole for whole in runs if whole.config.seed not in left], out, workshop.command)
    return summarise(runs, out, workshop.command)


def compared_runs(
    given: Mapping[str, object], contenders: Sequence[Contender], seeds: Sequence[int], out: Path
) -> list[ComparedRun]:
    """All runs, seed by seed; what is no config, or is in the way, is said at once."""
    runs = [
        ComparedRun(c.label, make_config(c.settings(given, seed)), out / f"{c.slug}-s{seed}")
        for seed in dict.fromkeys(seeds)
        for c in contenders
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


def summarise(runs: Sequence[ComparedRun], out: Path, command: str) -> tuple[list[MethodRuns], Written]:
    """Read these runs, write what they say, and say where."""
    folders: dict[str, dict[int, Path]] = {}
    for run in runs:
        folders.setdefault(run.label, {})[run.config.seed] = run.folder
    found = [read_method_runs(label, own) for label, own in folders.items()]
    return found, write_comparison(out, found, command=command)
