"""Methods side by side: what the runs of each reached over seeds, who leads clearly, and tables of both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splitmix.compare.coverage import StoredCosts, read_costs
from splitmix.compare.statistics import MeanAndSpread, clear_lead, mean_and_spread, spread_text
from splitmix.core.errors import UserError
from splitmix.core.parts import covering
from splitmix.core.types import Profile, Setting
from splitmix.core.width import parse_width
from splitmix.methods import find_method
from splitmix.report.tables import Column, Table, human, milliseconds, norm_text, plain
from splitmix.runs.config import read_toml
from splitmix.runs.records import MetricRow, Result, StoredClient, StoredScore, main_scores, read_metrics, read_result

RULE = (
    "Bold or starred: leads every other method that keeps to the budgets by more than chance explains "
    "(Welch's t test over seeds, two-sided, 5 %); with one seed nothing is marked."
)
GREYED = "Grey or italic: asks some clients for more than their budget, so it is a bound and not a rival."


@dataclass(frozen=True)
class SeedRun:
    """One finished run, as it lies in its folder."""

    seed: int
    folder: Path
    result: Result
    metrics: Sequence[MetricRow] = ()
    costs: StoredCosts | None = None  # if a comparison has counted them

    @property
    def scores(self) -> dict[str, StoredScore]:
        """The main scores, by width."""
        return {score["width"]: score for score in main_scores(self.result)}

    @property
    def rounds(self) -> list[MetricRow]:
        """What is stored of its rounds."""
        return [row for row in self.metrics if row["kind"] == "round"]

    @property
    def jobs(self) -> int:
        """How often a client took part in a round."""
        return sum(row.get("clients", 0) for row in self.rounds)


@dataclass(frozen=True)
class MethodRuns:
    """A method in a comparison: one run for each seed."""

    label: str
    runs: tuple[SeedRun, ...]
    lr: float | None = None
    over_budget: bool = False

    @property
    def widths(self) -> list[str]:
        """The widths that it serves, ascending."""
        return sorted(set.intersection(*(set(run.scores) for run in self.runs)), key=parse_width)

    def values(self, width: str) -> tuple[float, ...]:
        """The accuracy of each seed."""
        return tuple(run.scores[width]["accuracy"] for run in self.runs) if width in self.widths else ()

    @property
    def download(self) -> float | None:
        """Parameters to a client that takes part in a round, on average over clients, rounds and seeds."""
        sent = sum(row.get("parameters", 0) for run in self.runs for row in run.rounds)
        jobs = sum(run.jobs for run in self.runs)
        return sent / jobs if jobs else None

    @property
    def training(self) -> float | None:
        """MACs of a client that takes part in a round, on average over clients, rounds and seeds."""
        counted = [(run.jobs, sum(run.costs["macs"])) for run in self.runs if run.costs]
        jobs = sum(taken for taken, _ in counted)
        return sum(macs for _, macs in counted) / jobs if jobs else None


@dataclass(frozen=True)
class Standing:
    """A method at a width."""

    label: str
    width: str
    values: tuple[float, ...]  # one for each seed
    parameters: int | None = None
    macs: int | None = None
    ms: float | None = None
    over_budget: bool = False
    winner: bool = False

    @property
    def mean(self) -> float:
        return self.numbers[0]

    @property
    def spread(self) -> float | None:
        return self.numbers[1]

    @property
    def numbers(self) -> MeanAndSpread:
        """Mean and standard deviation over seeds."""
        return mean_and_spread(self.values) or (math.nan, None)


def read_method_runs(label: str, folders: Mapping[int, Path]) -> MethodRuns:
    """A method from the folders of its runs, by seed."""
    runs = tuple(
        SeedRun(seed, folder, read_result(folder), read_metrics(folder), read_costs(folder))
        for seed, folder in folders.items()
    )
    first = runs[0]
    config = read_toml(first.folder / "config.toml")
    method, atom = config.get("method", first.result.get("method", "splitmix")), config.get("atom", "1/8")
    return MethodRuns(label, runs, config.get("lr"), asks_too_much(method, atom, first.result["clients"], first.seed))


def asks_too_much(method: str | Mapping[str, object], atom: object, clients: Sequence[StoredClient], seed: int) -> bool:
    """Whether a method that does not promise to keep to the budgets hands some client more than its own."""
    cohort = [Profile(client["client"], parse_width(client["budget"]), client.get("train", 1)) for client in clients]
    if not cohort:
        return False
    made = find_method(method, Setting(parse_width(atom), tuple(sorted({p.budget for p in cohort})), seed))
    if made.respects_budgets:
        return False
    assigned = made.assign(0, cohort)
    jobs = [(assigned[profile.client], profile.budget) for profile in cohort if assigned.get(profile.client)]
    return any(sum(part.width for part in covering(parts)) > budget for parts, budget in jobs)


def compared_widths(entries: Sequence[MethodRuns]) -> list[str]:
    """The widths worth a column: the clients' budgets, and what a method of one width serves; else all there are."""
    served = {width for entry in entries for width in entry.widths}
    budgets = {client["budget"] for entry in entries for run in entry.runs for client in run.result["clients"]}
    single = {entry.widths[0] for entry in entries if len(entry.widths) == 1}
    return sorted((budgets | single) & served or served, key=parse_width)


def standings(entries: Sequence[MethodRuns], width: str) -> list[Standing]:
    """All methods that serve a width, best first, the winner marked if there is one."""
    found = [_standing(entry, width) for entry in entries if width in entry.widths]
    rivals = [standing for standing in found if not standing.over_budget]
    best = max(rivals, key=lambda standing: standing.mean, default=None)
    others = [standing for standing in rivals if standing is not best]
    if best is not None and others and all(clear_lead(best.values, other.values) for other in others):
        found[found.index(best)] = replace(best, winner=True)
    return sorted(found, key=lambda standing: -standing.mean)


def winners(entries: Sequence[MethodRuns]) -> dict[str, str | None]:
    """For each compared width the method that leads clearly, or None."""
    clear = {width: [s.label for s in standings(entries, width) if s.winner] for width in compared_widths(entries)}
    return {width: labels[0] if labels else None for width, labels in clear.items()}


def overview_table(entries: Sequence[MethodRuns]) -> Table:
    """A row for each method, a column for each width."""
    widths = compared_widths(entries)
    columns = [
        Column("method", "method", number=False),
        *(Column(f"accuracy.{width}", f"width {width}", spread_text) for width in widths),
        Column("download", "download", human, spare=True),
        Column("training", "training MACs", human, spare=True),
        Column("lr", "lr", plain, spare=True),
    ]
    at = {(s.label, width): s for width in widths for s in standings(entries, width)}
    rows = [
        (
            _named(entry),
            *(at[entry.label, width].numbers if width in entry.widths else None for width in widths),
            *(entry.download, entry.training, entry.lr),
        )
        for entry in entries
    ]
    winning = {place for place, standing in at.items() if standing.winner}
    bold = {(i, f"accuracy.{w}") for i, e in enumerate(entries) for w in widths if (e.label, w) in winning}
    grey = [i for i, entry in enumerate(entries) if entry.over_budget]
    more = (
        "Download: parameters to a client that takes part in a round; training MACs: of such a client; both on average."
    )
    return Table(
        f"Accuracy (%) by method and width on {_task(entries)}", columns, rows, _caption(entries, more), bold, grey
    )


def cost_table(entries: Sequence[MethodRuns]) -> Table:
    """A row for each method at each width, best first: what it reaches and what it costs to serve."""
    columns = [
        Column("width", "width"),
        Column("method", "method", number=False),
        Column("accuracy", "accuracy %", spread_text),
        Column("macs", "MACs", human),
        Column("parameters", "parameters", human),
        Column("download", "download", human, spare=True),
        Column("ms", "ms per image", milliseconds, spare=True),
    ]
    found = [standing for width in compared_widths(entries) for standing in standings(entries, width)]
    loads, names = {e.label: e.download for e in entries}, {e.label: _named(e) for e in entries}
    rows = [(s.width, names[s.label], s.numbers, s.macs, s.parameters, loads[s.label], s.ms) for s in found]
    bold = {(i, "accuracy") for i, standing in enumerate(found) if standing.winner}
    grey = [i for i, standing in enumerate(found) if standing.over_budget]
    caption = (
        "Best first; spreads and marks as in the table of methods. MACs (of one image) and parameters are those of the "
        "net that serves the width; download is what a client gets in a round, on average; ms is measured."
    )
    return Table(f"What each width reaches and costs on {_task(entries)}", columns, rows, caption, bold, grey)


def summary_rows(entries: Sequence[MethodRuns]) -> list[dict[str, object]]:
    """A row for each method at each width that it serves, for programs: accuracy over seeds and of each, and costs."""
    best = winners(entries)
    rows = []
    for entry, standing in ((e, _standing(e, width)) for e in entries for width in e.widths):
        seeds = {str(run.seed): value for run, value in zip(entry.runs, standing.values, strict=True)}
        rows.append(
            {
                "method": entry.label,
                **{key: getattr(entry, key) for key in ("lr", "over_budget", "download")},
                **{key: getattr(standing, key) for key in ("width", "mean", "spread")},
                **{"winner": best.get(standing.width) == entry.label, "seeds": seeds},
                **{key: getattr(standing, key) for key in ("macs", "parameters", "ms")},
            }
        )
    return rows


def check_alike(entries: Sequence[MethodRuns]) -> None:
    """Refuse to set side by side what was measured on different tasks or with different norms."""
    kinds = {(run.result.get("task"), norm_text(run.result)) for entry in entries for run in entry.runs}
    if len(kinds) > 1:
        told = "; ".join(f"{task} with {norm}" for task, norm in sorted(kinds, key=str))
        raise UserError(f"these runs cannot be compared, they differ in what they measured: {told}")


def _standing(entry: MethodRuns, width: str) -> Standing:
    score = entry.runs[0].scores[width]
    times = [ms for run in entry.runs if (ms := run.scores[width].get("ms")) is not None]
    values = entry.values(width)
    parameters, macs = score.get("parameters"), score.get("macs")
    return Standing(entry.label, width, values, parameters, macs, min(times, default=None), entry.over_budget)


def _named(entry: MethodRuns) -> str:
    return f"{entry.label} (over budget)" if entry.over_budget else entry.label


def _task(entries: Sequence[MethodRuns]) -> str:
    return entries[0].runs[0].result.get("task", "a task")


def _caption(entries: Sequence[MethodRuns], more: str) -> str:
    """How the numbers were made, in sentences."""
    first = entries[0].runs[0].result
    seeds = ", ".join(str(run.seed) for run in entries[0].runs)
    what = f"Mean accuracy over {len(first['clients'])} clients on their own test images"
    several = len(entries[0].runs) > 1
    sentences = [
        f"{what}; mean ± standard deviation over seeds {seeds}." if several else f"{what}; one seed ({seeds})."
    ]
    sentences += [RULE, *([GREYED] if any(entry.over_budget for entry in entries) else []), more]
    return " ".join([*sentences, f"{plain(first.get('rounds'))} rounds; norms use {norm_text(first)}."])
