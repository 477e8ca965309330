"""One queue for all runs of some entries: each run once, in order, resumable at any moment."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from traceback import format_exc

from splitmix.attacks import find_attack
from splitmix.compare.costs_file import costs_of, write_costs
from splitmix.compare.suite import Setups, Workshop, run_once
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.width import parse_width
from splitmix.report.pages import duration
from splitmix.runs.config import Config
from splitmix.runs.evaluate import open_run
from splitmix.runs.grid import Sweep, measure_grid, read_grid
from splitmix.runs.records import read_metrics, read_result, round_seconds, write_record
from splitmix_paper.catalogue import Entry
from splitmix_paper.estimates import FINAL, estimate, estimate_grid
from splitmix_paper.needs import AS_LISTED, DIALS, Attacked, Change, Store

PRICED = ("clients", "domains")  # ways to show results that need what clients spend


@dataclass(frozen=True)
class Job:
    """A run to be made, what is to be measured of it afterwards, and who asked first."""

    entry: str
    label: str
    config: Config
    folder: Path
    attacked: Attacked | None = None
    priced: bool = False
    also: tuple[str, ...] = ()  # other entries that need it
    timed: bool = False  # whether its scale is one whose times were measured

    @property
    def trained(self) -> bool:
        return (self.folder / "result.json").exists()

    @property
    def done(self) -> bool:
        """Whether all is there that was asked for."""
        grid = self.folder / "grid.json"
        if not self.trained or (self.priced and not (self.folder / "costs.json").exists()):
            return False
        return self.attacked is None or (grid.exists() and self.attacked.filled(read_grid(grid)))

    @property
    def seconds(self) -> float | None:
        """How long all of it takes, as far as it can be told before."""
        found = estimate(self.config) if self.timed else None
        return None if found is None else found + self._grid

    @property
    def left(self) -> float:
        """Seconds that are still to come, on a quiet machine."""
        if self.done:
            return 0.0
        return (self._grid or FINAL) if self.trained else self.seconds or 0.0

    @property
    def _grid(self) -> float:
        return estimate_grid(self.config, len(self.attacked.widths), len(DIALS)) if self.attacked else 0.0

    @property
    def entries(self) -> tuple[str, ...]:
        """All that need it."""
        return self.entry, *self.also

    @property
    def name(self) -> str:
        return f"{self.entry}: {self.label}, seed {self.config.seed}"


def jobs_of(entries: Iterable[Entry], scale: str, store: Store, change: Change = AS_LISTED) -> list[Job]:
    """All runs of these entries, each once; of an entry first all methods with one seed, then with the next."""
    found: dict[str, Job] = {}
    for entry in entries:
        for job in _wanted(entry, scale, store, change):
            known = found.get(job.config.digest())
            if known is None:
                found[job.config.digest()] = job
            elif known.entry != entry.name:
                attacked, also = known.attacked or job.attacked, tuple(dict.fromkeys((*known.also, entry.name)))
                priced = known.priced or job.priced
                found[job.config.digest()] = replace(known, attacked=attacked, priced=priced, also=also)
    return list(found.values())


def _wanted(entry: Entry, scale: str, store: Store, change: Change) -> Iterator[Job]:
    needs = change.of(entry.needs(scale))
    for place in range(max((len(need.seeds) for need in needs), default=0)):
        for need in needs:
            if place < len(need.seeds):
                config = need.config(scale, need.seeds[place], store.out)
                yield Job(
                    entry.name,
                    need.label,
                    config,
                    store.folder(config),
                    need.attacked,
                    priced=entry.shown in PRICED,
                    timed=scale == "cpu",
                )


def work(jobs: Sequence[Job], bench: Workshop) -> None:
    """Do all that is left, job by job; what cannot be done is said, and the rest goes on."""
    setups = Setups(bench.root)
    failed: list[tuple[Job, str]] = []
    pace, told = Pace(), finished(jobs)
    bench.say(board(jobs, (), told, pace))
    for number, job in enumerate(jobs, start=1):
        if job.done:
            continue
        about = f" (about {duration(pace.of(job.left))})" if job.left else ""
        bench.say(f"[{number}/{len(jobs)}] {job.name}{about}")
        expected, began = job.left, perf_counter()
        try:
            do(job, setups, bench)
        except UserError as mistake:
            again = str(mistake) in [sentence for _, sentence in failed]
            bench.say("  not done: for the same reason" if again else f"  not done: {mistake}")
            failed.append((job, str(mistake)))
        except Exception as error:  # a queue of many hours must not end at one bad run
            where = job.folder / "failure.txt"
            write_atomically(where, format_exc().encode())
            failed.append((job, f"{type(error).__name__}, see '{where}'; the run itself can be resumed"))
            bench.say(f"  not done: {failed[-1][1]}")
        else:
            pace.learn(expected, perf_counter() - began)
            done = finished(jobs)
            bench.say(board(jobs, done - told, done, pace))
            told = done
    if failed:
        job, sentence = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise UserError(f"{job.name}{more} could not be done: {sentence}")


def finished(jobs: Iterable[Job]) -> set[str]:
    """The entries all of whose runs are done."""
    return {name for job in jobs for name in job.entries} - {n for job in jobs if not job.done for n in job.entries}


def board(jobs: Sequence[Job], new: Collection[str], done: Collection[str], pace: "Pace") -> str:
    """Where a queue is, in a line or two."""
    runs, names = sum(job.done for job in jobs), {name for job in jobs for name in job.entries}
    left = pace.of(sum(job.left for job in jobs))
    told = f"; about {duration(left)} to come" if left else ""
    bar = "#" * (20 * runs // len(jobs))
    lines = [f"{', '.join(sorted(new))} done"] if new else []
    lines.append(f"[{bar:.<20}] {runs} of {len(jobs)} runs, {len(done)} of {len(names)} entries{told}")
    return "\n".join(lines)


class Pace:
    """How much longer things take here and now than on two quiet cores."""

    def __init__(self) -> None:
        self.expected, self.spent = 0.0, 0.0

    def learn(self, expected: float, spent: float) -> None:
        if expected:
            self.expected, self.spent = self.expected + expected, self.spent + spent

    def of(self, seconds: float) -> float:
        return seconds * (self.spent / self.expected if self.expected else 1.0)


def do(job: Job, setups: Setups, bench: Workshop) -> None:
    """Train, or go on with what is there; then count costs and attack, where that is asked for."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    setup = setups.of(job.config)
    if not job.trained:
        run_once(setup, job.folder, bench)
    if job.priced and not (job.folder / "costs.json").exists():
        write_costs(job.folder, costs_of(setup))
    if job.attacked is not None and not job.done:
        measure(job, job.attacked, bench)


def measure(job: Job, attacked: Attacked, bench: Workshop) -> None:
    """The grid of a run: every dial it has at these widths, clean and under attack."""
    run = open_run(job.folder, fixed=True, root=bench.root)
    dials = DIALS if run.setup.dial else ()
    widths = [parse_width(width) for width in attacked.widths]
    sweep = Sweep(widths, dials, find_attack(attacked.attack), attacked.images)
    write_record(job.folder / "grid.json", measure_grid(run, sweep, workers=bench.workers))


def spent(jobs: Iterable[Job]) -> float:
    """Seconds that the finished runs took: all of a run, or where it was resumed at least its rounds."""
    return sum(_spent(job.folder) for job in jobs if job.trained)


def _spent(folder: Path) -> float:
    return max(round_seconds(read_metrics(folder)), read_result(folder).get("seconds", 0.0))
