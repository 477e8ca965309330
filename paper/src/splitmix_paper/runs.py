"""The runs that exhibits need: each is known by the hash of its config, made once, and its rows are stored."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from splitmix.attacks import find_attack
from splitmix.compare.coverage import write_costs
from splitmix.compare.suite import Setups, Suite, SuiteRun, Workshop, run_once
from splitmix.core.errors import UserError
from splitmix.core.width import parse_width
from splitmix.report.pages import duration
from splitmix.runs.config import Config, make_config, read_toml
from splitmix.runs.measure.evaluate import open_run
from splitmix.runs.measure.grid import Sweep, measure_grid
from splitmix.runs.records import read_result, write_record
from splitmix_paper.estimates import FINAL, estimate, estimate_grid
from splitmix_paper.exhibit import AS_LISTED, DIALS, Attacked, Change, Exhibit, Need
from splitmix_paper.rows import Rows, rows_of_run
from splitmix_paper.studies import method_words


class Store:
    """The folder of all runs, and the rows that are known of them.

    A run is found by its config wherever it lies below `runs`, so finished ones can be put there under any name.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = out / "runs"
        self.rows = Rows(out)

    def folder(self, config: Config) -> Path:
        """Where the run of this config is, or will be."""
        return self._folders.get(config.digest()) or self.root / run_name(config)

    @cached_property
    def _folders(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for file in sorted([*self.root.glob("*/config.toml"), *self.root.glob("*/*/config.toml")]):
            try:
                digest = make_config(read_toml(file), own=("task", "net")).digest()  # nothing of it is imported
            except UserError:
                continue  # of another version, or damaged
            if digest not in found or (file.parent / "result.json").exists():
                found[digest] = file.parent
        return found


def run_name(config: Config) -> str:
    """A folder's name that people can read and that no other config has."""
    words = [Path(config.task).name, *method_words(config.method), f"s{config.seed}"]
    slug = re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower().replace("/", "of")).strip("-")
    return f"{slug}-{config.digest()[:10]}"


@dataclass(frozen=True)
class ExhibitRun(SuiteRun):
    """A run to be made, what is to be measured of it afterwards, and which exhibits need it."""

    label: str
    config: Config
    folder: Path
    scale: str
    store: Store
    needs: tuple[Need, ...] = ()
    exhibits: tuple[str, ...] = ()  # the names of those that asked, each once

    @property
    def name(self) -> str:
        return f"{self.exhibits[0]}: {self.label}, seed {self.config.seed}"

    @cached_property
    def digest(self) -> str:
        return self.config.digest()

    @property
    def trained(self) -> bool:
        return (self.folder / "result.json").exists()

    @property
    def done(self) -> bool:
        """Whether rows tell all that was asked for, and of each client, as verdicts need it."""
        measured = self.store.rows.of(self.digest)
        return measured is not None and measured.by_client and all(need.met_by(measured) for need in self.needs)

    @property
    def attacked(self) -> Attacked | None:
        return next((need.attacked for need in self.needs if need.attacked), None)

    @property
    def seconds(self) -> None:
        """How long it took is not asked: times are expected."""

    @cached_property
    def whole(self) -> float | None:
        """Seconds of all of it on two quiet cores, as far as they were measured."""
        found = estimate(self.config) if self.scale == "cpu" else None
        return None if found is None else found + self._grid

    @property
    def expected(self) -> float:
        if self.done:
            return 0.0
        return (self._grid or FINAL) if self.trained else self.whole or 0.0

    @property
    def _grid(self) -> float:
        return estimate_grid(self.config, len(self.attacked.widths), len(DIALS)) if self.attacked else 0.0

    def learn(self) -> None:
        """Read the rows of its finished run."""
        about = self.needs[0].about(self.scale, self.config, read_result(self.folder).get("domains", []))
        self.store.rows.learn(rows_of_run(self.folder, about))

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        """Train, or go on with what is there; count costs and attack, where that is asked for; then store its rows."""
        setup = setups.of(self.config)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if not self.trained:
            run_once(setup, self.folder, workshop)
        if any(need.priced for need in self.needs) and not (self.folder / "costs.json").exists():
            write_costs(self.folder, setup)
        self.learn()
        if self.attacked is not None and not self.done:
            measure(self.folder, self.attacked, workshop)
            self.learn()
        self.store.rows.write()


def measure(folder: Path, attacked: Attacked, workshop: Workshop) -> None:
    """The grid of a run: every dial it has at these widths, clean and under attack."""
    run = open_run(folder, fixed=True, root=workshop.root)
    widths = [parse_width(width) for width in attacked.widths]
    sweep = Sweep(widths, DIALS if run.setup.dial else (), find_attack(attacked.attack), attacked.images)
    write_record(folder / "grid.json", measure_grid(run, sweep, workers=workshop.workers))


def jobs_of(exhibits: Iterable[Exhibit], scale: str, store: Store, change: Change = AS_LISTED) -> list[ExhibitRun]:
    """All runs of these exhibits, each once; what runs in the store tell is known from then on.

    Of an exhibit all methods come with one seed, then with the next.
    """
    found: dict[str, ExhibitRun] = {}
    for exhibit in exhibits:
        for need, seed in _by_seed(change.of(exhibit.needs(scale))):
            config = need.config(scale, seed, store.out)
            job = found.get(config.digest()) or ExhibitRun(need.label, config, store.folder(config), scale, store)
            asked = tuple(dict.fromkeys((*job.exhibits, exhibit.name)))
            found[config.digest()] = replace(job, needs=(*job.needs, need), exhibits=asked)
    for job in found.values():
        if job.trained and not job.done:
            job.learn()
    return list(found.values())


def _by_seed(needs: Sequence[Need]) -> Iterator[tuple[Need, int]]:
    for place in range(max((len(need.seeds) for need in needs), default=0)):
        yield from ((need, need.seeds[place]) for need in needs if place < len(need.seeds))


def work(jobs: Sequence[ExhibitRun], workshop: Workshop) -> None:
    """Do all that is left, job by job; what cannot be done is said, and the rest goes on."""
    suite, told = Suite(jobs, workshop, keep_going=True), finished(jobs)
    workshop.say(board(jobs, suite.seconds_left()))
    for _ in suite:
        done = finished(jobs)
        if done - told:
            workshop.say(f"{', '.join(sorted(done - told))} done")
        workshop.say(board(jobs, suite.seconds_left()))
        told = done


def finished(jobs: Iterable[ExhibitRun]) -> set[str]:
    """The exhibits all of whose runs are done."""
    names = {name for job in jobs for name in job.exhibits}
    return names - {name for job in jobs if not job.done for name in job.exhibits}


def board(jobs: Sequence[ExhibitRun], left: float) -> str:
    """Where a queue is, in a line."""
    runs, names = sum(job.done for job in jobs), {name for job in jobs for name in job.exhibits}
    told = f"; about {duration(left)} to come" if left else ""
    bar = "#" * (20 * runs // len(jobs))
    return f"[{bar:.<20}] {runs} of {len(jobs)} runs, {len(finished(jobs))} of {len(names)} entries{told}"


def copy_rows(jobs: Iterable[ExhibitRun], to: Path) -> tuple[int, int]:
    """Copy the rows of all runs of which something is known; how many were copied, and how many were there."""
    rows, copied, there = Rows(to), 0, 0
    for job in jobs:
        if to.resolve() == job.store.out.resolve():
            raise UserError(f"the runs are in '{to}' already; give another folder to copy them to")
        if (measured := job.store.rows.of(job.digest)) is None:
            continue
        if rows.of(job.digest) == measured:
            there += 1
        else:
            rows.learn(measured.rows)
            copied += 1
    rows.write()
    return copied, there


def overview(exhibits: Sequence[Exhibit], scale: str, store: Store) -> list[dict[str, Any]]:
    """A row for each exhibit, in the order in which all are run; shared runs are counted where they come first."""
    every, seen = jobs_of(exhibits, scale, store), set()
    rows = []
    for exhibit in exhibits:
        jobs = [job for job in every if exhibit.name in job.exhibits]
        new = [job for job in jobs if job.digest not in seen]
        seen |= {job.digest for job in jobs}
        rows.append(
            {
                "name": exhibit.name,
                "place": exhibit.place,
                "title": exhibit.title,
                "runs": f"{sum(job.done for job in jobs)}/{len(jobs)}",
                "seconds": seconds_of(jobs),
                "first": seconds_of(new),
                "left": None if seconds_of(jobs) is None else sum(job.expected for job in new),
            }
        )
    return rows


def seconds_of(jobs: Iterable[ExhibitRun]) -> float | None:
    """Seconds of all runs, or None where they were not measured."""
    seconds = [job.whole for job in jobs]
    return sum(known for known in seconds if known is not None) if None not in seconds else None
