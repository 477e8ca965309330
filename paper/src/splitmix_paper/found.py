"""What has been run for an entry, read from the folders of its runs and, where these are gone, from the last report."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from splitmix.compare.standings import MethodRuns, SeedRun, read_method_runs
from splitmix.core.width import parse_width
from splitmix.runs.grid import GridRecord, read_grid
from splitmix.runs.records import StoredScore, score_groups
from splitmix_paper.catalogue import Entry
from splitmix_paper.memory import Known
from splitmix_paper.needs import AS_LISTED, Change, Store
from splitmix_paper.queue import Job, jobs_of

NORM = "batch"  # the paper scores with the statistics of the test batch
TOGETHER = ("domains",)  # shown are numbers of several runs at once: a new run cannot be added to remembered ones


@dataclass(frozen=True)
class Row:
    """One number for each seed, and what the paper prints."""

    series: str
    key: str
    values: Mapping[int, float]  # by seed
    printed: float | None = None

    @property
    def mean(self) -> float | None:
        return fmean(self.values.values()) if self.values else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.printed is None else self.mean - self.printed


@dataclass(frozen=True)
class Found:
    """An entry at a scale, with the runs that are done."""

    entry: Entry
    scale: str
    store: Store
    change: Change = AS_LISTED

    @cached_property
    def jobs(self) -> list[Job]:
        return jobs_of([self.entry], self.scale, self.store, self.change)

    @cached_property
    def remembered(self) -> set[str]:
        """The runs of the last report, by the hash of their config, whose folders are gone."""
        known = self.store.reported.get(self.entry.name)
        return {run["config"] for run in known["runs"] if not self.store.holds(run["config"])} if known else set()

    @property
    def lost(self) -> bool:
        """Whether the last report has numbers of runs that are neither here nor asked for any more."""
        return not self.remembered <= set(self._by_digest)

    @property
    def memory(self) -> Known | None:
        """What the last report tells, if that is all that is left of some run."""
        return self.store.reported[self.entry.name] if self.remembered and not self.lost else None

    @property
    def known(self) -> list[Job]:
        """The runs that the numbers are of."""
        if self.memory and not self.mixed:
            told = {run["config"] for run in self.memory["runs"]}
            return [job for job in self.jobs if job.config.digest() in told]
        return [job for job in self.jobs if job.done or job.config.digest() in self.remembered]

    @property
    def mixed(self) -> bool:
        """Whether new runs add to what is remembered."""
        return self.memory is None or self.entry.shown not in TOGETHER

    @property
    def complete(self) -> bool:
        return len(self.known) == len(self.jobs)

    @property
    def begun(self) -> bool:
        return not self.jobs or bool(self.known)

    @cached_property
    def runs(self) -> dict[str, MethodRuns]:
        """The finished runs of each label, by seed; labels of which none is done are left out."""
        folders: dict[str, dict[int, Job]] = {}
        for need in self.change.of(self.entry.needs(self.scale)):
            for seed in need.seeds:
                config = need.config(self.scale, seed, self.store.out)
                job = self._by_digest[config.digest()]
                if job.done:
                    folders.setdefault(need.label, {})[seed] = job
        return {
            label: read_method_runs(label, {seed: job.folder for seed, job in jobs.items()})
            for label, jobs in folders.items()
        }

    @cached_property
    def substitutes(self) -> list[str]:
        """Which data is not the paper's."""
        told = self.entry.substitutes(self.scale)
        domains = {name for runs in self.runs.values() for name in runs.runs[0].result.get("domains", [])}
        if "synth_substitute" in domains:
            told.append("a substitute in place of SynthDigits (rendered after its description)")
        return list(dict.fromkeys([*told, *(self.memory["substitutes"] if self.memory else ())]))

    @property
    def stand_ins(self) -> list[str]:
        """The same in short."""
        return [re.sub(r" \([^)]*\)", "", text) for text in self.substitutes]

    @cached_property
    def _by_digest(self) -> dict[str, Job]:
        return {job.config.digest(): job for job in self.jobs}

    def picked(self, *labels: str) -> list[MethodRuns]:
        """The runs of these labels, as far as they are there."""
        return [self.runs[label] for label in labels if label in self.runs]

    def grids(self) -> Iterator[tuple[str, GridRecord]]:
        """What was measured under attack, with the first seed of each label."""
        for label, runs in self.runs.items():
            yield label, read_grid(runs.runs[0].folder / "grid.json")


def scores_of(run: SeedRun, norm: str = NORM) -> dict[str, StoredScore]:
    """Test scores by width, with these norm statistics where the run has them, else with its own."""
    groups = score_groups(run.result)
    chosen = groups.get((norm, "test")) or next(iter(groups.values()))
    return {score["width"]: score for score in chosen}


def width_rows(runs: MethodRuns, series: str, keys: Sequence[str] = (), norm: str = NORM) -> Iterator[Row]:
    """A row for each of the widths that all seeds serve, in per cent."""
    scored = {run.seed: scores_of(run, norm) for run in runs.runs}
    served = set.intersection(*(set(scores) for scores in scored.values()))
    for width in sorted(served & set(keys) if keys else served, key=parse_width):
        yield Row(series, width, {seed: 100 * scores[width]["accuracy"] for seed, scores in scored.items()})


def learning_curve(run: SeedRun, width: str) -> list[tuple[float, float]]:
    """Validation accuracy in per cent by round, counted from 1."""
    return [
        (row["round"] + 1, 100 * row["accuracy"])
        for row in run.metrics
        if row["kind"] == "score" and row.get("split", "val") == "val" and row["width"] == width
    ]
