"""Many runs, one after the other: what is done is left as it is, what was begun goes on, and the time left is told.

A run of a suite is a frozen dataclass that inherits from `SuiteRun`. It is trained and tested in its folder, unless it
says what else is to be done, and when it is done. The loop is the caller's, so what follows from a run stands there:

    suite = Suite(runs, Workshop(workers=2, say=print))
    for run in suite:  # those that were not done, each as soon as it is
        write_what_is_known(runs)

>>> from splitmix.runs.config import make_config
>>> @dataclass(frozen=True)
... class Sketch(SuiteRun):
...     label: str
...     config: Config
...     folder: Path
...     done: bool = False
...     seconds: float = 2.0
...     def perform(self, setups: Setups, workshop: Workshop) -> None:
...         workshop.say("  drawn")
>>> sketches = [Sketch(name, make_config({"seed": 2}), Path(name)) for name in ("one", "two")]
>>> for sketch in Suite([*sketches, Sketch("three", make_config({}), Path(), done=True)], Workshop(say=print)):
...     print("  seen:", sketch.label)
run 1 of 3: one, seed 2 (all in about 4.0 s)
  drawn
  seen: one
run 2 of 3: two, seed 2 (all in about 2.0 s)
  drawn
  seen: two
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter
from traceback import format_exc
from typing import Generic, Protocol, TypeVar

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.report.pages import duration
from splitmix.runs.checks import TaskFacts
from splitmix.runs.config import Config
from splitmix.runs.progress import Watcher
from splitmix.runs.records import read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import Setup, set_up


@dataclass(frozen=True)
class Workshop:
    """Where runs are carried out, and who hears of them."""

    workers: int = 1
    device: str = "cpu"
    root: Path | None = None  # of the data sets
    command: str = ""
    watch: Callable[[], Sequence[Watcher]] = tuple  # makes the watchers of a run
    say: Callable[[str], None] = field(default=lambda text: None)


class Setups:
    """Makes the objects of runs; runs on the same data that follow one another share it."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.key: tuple[object, ...] = ()
        self.task: TaskFacts | None = None

    def of(self, config: Config) -> Setup:
        key = (config.task, config.seed, config.clients, str(config.partition), config.val_ratio)
        setup = set_up(config, root=self.root, task=self.task if key == self.key else None)
        self.key, self.task = key, setup.task
        return setup


class SuiteRun(Protocol):
    """One run of a suite: trained and tested in its folder, unless a method says something else."""

    label: str
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        """What it is called when it begins."""
        return f"{self.label}, seed {self.config.seed}"

    @property
    def kind(self) -> str:
        """Runs of one kind take about as long."""
        return self.label

    @property
    def done(self) -> bool:
        """Whether all is there that was asked for."""
        return (self.folder / "result.json").exists()

    @property
    def seconds(self) -> float | None:
        """How long it took, if it is done and that is known."""
        return read_result(self.folder).get("seconds") if self.done else None

    @property
    def expected(self) -> float:
        """Seconds that are still to come on a quiet machine; 0 where nobody knows."""
        return 0.0

    def perform(self, setups: Setups, workshop: Workshop) -> None:
        """Do it, or what is left of it."""
        run_once(setups.of(self.config), self.folder, workshop)


def run_once(setup: Setup, folder: Path, workshop: Workshop) -> None:
    """Run in a folder, or go on with what is there."""
    run_in_folder(
        setup,
        folder,
        resume=True,
        workers=workshop.workers,
        device=workshop.device,
        watchers=workshop.watch(),
        command=workshop.command,
    )


R = TypeVar("R", bound=SuiteRun)


@dataclass
class Suite(Generic[R]):
    """Runs in the order they are made in; `keep_going`: what cannot be done is said, and the others go on."""

    runs: Sequence[R]
    workshop: Workshop
    noun: str = "run"
    keep_going: bool = False

    def __post_init__(self) -> None:
        self.setups = Setups(self.workshop.root)
        self.waiting = [run for run in self.runs if not run.done]
        self.failed: list[tuple[R, str]] = []
        self._times: dict[str, list[float]] = {}  # by kind
        self._here: list[tuple[float, float]] = []  # seconds expected and spent
        for run in self.runs:
            if run not in self.waiting and run.seconds is not None:
                self._times.setdefault(run.kind, []).append(run.seconds)

    def check(self) -> None:
        """Set up all of the first seed that wait: what cannot run is said before anything is trained."""
        for run in self.waiting:
            if run.config.seed == self.waiting[0].config.seed:
                self.setups.of(run.config)

    def __iter__(self) -> Iterator[R]:
        """Perform what waits, run by run, and hand each over as soon as it is done."""
        for run in list(self.waiting):
            self.workshop.say(f"{self.noun} {self.runs.index(run) + 1} of {len(self.runs)}: {run.name}{self._left()}")
            expected, began = run.expected, perf_counter()
            performed = self._performed(run)
            self.waiting.remove(run)
            if performed:
                spent = perf_counter() - began
                self._here.append((expected, spent))
                self._times.setdefault(run.kind, []).append(spent if run.seconds is None else run.seconds)
                yield run
        if self.failed:
            run, sentence = self.failed[0]
            more = f" (and {len(self.failed) - 1} more)" if len(self.failed) > 1 else ""
            raise UserError(f"{run.name}{more} could not be done: {sentence}")

    def seconds_left(self) -> float:
        """How long what waits may take: as expected at today's pace, else as long as others of its kind; 0: unknown.

        Where of a kind none is done, it may take as long as the other kinds do on average.
        """
        known = [(expected, spent) for expected, spent in self._here if expected]
        pace = sum(spent for _, spent in known) / sum(expected for expected, _ in known) if known else 1.0
        typical = fmean(map(fmean, self._times.values())) if self._times else 0.0
        return sum(run.expected * pace or fmean(self._times.get(run.kind, [typical])) for run in self.waiting)

    def _left(self) -> str:
        known = self._times or any(run.expected for run in self.waiting)
        return f" (all in about {duration(self.seconds_left())})" if known else ""

    def _performed(self, run: R) -> bool:
        if not self.keep_going:
            run.perform(self.setups, self.workshop)
            return True
        try:
            run.perform(self.setups, self.workshop)
        except UserError as mistake:
            again = str(mistake) in [sentence for _, sentence in self.failed]
            self.workshop.say("  not done: for the same reason" if again else f"  not done: {mistake}")
            self.failed.append((run, str(mistake)))
        except Exception as error:  # a suite of many hours must not end at one bad run
            where = run.folder / "failure.txt"
            write_atomically(where, format_exc().encode())
            self.failed.append((run, f"{type(error).__name__}, see '{where}'; the run itself can be resumed"))
            self.workshop.say(f"  not done: {self.failed[-1][1]}")
        else:
            return True
        return False
