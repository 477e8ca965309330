"""What one sees while a run lasts: a bar on a terminal, plain lines elsewhere, TensorBoard if asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from splitmix.core.errors import UserError, printable
from splitmix.runs.records import MetricRow

if TYPE_CHECKING:
    from splitmix.runs.setup import Setup


class Watcher:
    """Who wants to see a run while it lasts; a watcher says what it does at each event, or nothing."""

    def begin(self, setup: "Setup", start: int) -> None:
        """Training begins after round `start`."""

    def round(self, row: MetricRow) -> None:
        """A round is done."""

    def scores(self, rows: Sequence[MetricRow]) -> None:
        """Every width was scored on validation images."""

    def note(self, text: str) -> None:
        """There is something to say."""

    def end(self) -> None:
        """Training has ended, well or not."""

    def scoring(self, total: int) -> None:
        """The best round is scored, by about so many answers of clients."""

    def answer(self) -> None:
        """One of them came."""

    def scored(self) -> None:
        """All that is needed has come, or scoring broke off."""


@dataclass(frozen=True)
class Round:
    """What a logger is told of a round when it is done."""

    round: int  # the first is 1
    loss: float
    lr: float
    seconds: float
    accuracy: Mapping[str, float] = field(default_factory=dict)  # on validation images, by width; mostly not measured


class Caller(Watcher):
    """Hands each round on to a function, with its accuracies where it is validated."""

    def __init__(self, on_round: Callable[[Round], object]) -> None:
        self.on_round = on_round

    def begin(self, setup: "Setup", start: int) -> None:
        self.config = setup.config

    def round(self, row: MetricRow) -> None:
        self.done = Round(row["round"] + 1, row["loss"], row["lr"], row["seconds"])
        if self.done.round % self.config.eval_every and self.done.round < self.config.rounds:
            self.on_round(self.done)

    def scores(self, rows: Sequence[MetricRow]) -> None:
        self.on_round(replace(self.done, accuracy={row["width"]: row["accuracy"] for row in rows}))


class RowCollector(Watcher):
    """Collects the rows of a run that has no folder."""

    def __init__(self) -> None:
        self.rows: list[MetricRow] = []

    def round(self, row: MetricRow) -> None:
        self.rows.append(row)

    def scores(self, rows: Sequence[MetricRow]) -> None:
        self.rows += rows


def tell(console: Console, text: str, **how: Any) -> None:
    """Print lines as they are: no markup, and nothing that could steer a terminal, whoever named a file or a client."""
    lines = "\n".join(map(printable, text.split("\n")))
    console.print(lines, highlight=False, markup=False, **how)


def terminal_watcher(console: Console | None = None) -> Watcher:
    """A bar where there is a terminal, else a line now and then."""
    console = console or Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)


class ScoringShown(Watcher):
    """Who counts down the answers at the end of a run."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def scoring(self, total: int) -> None:
        self.left = Countdown("scoring", self.console, every=2.0)
        self.left.begin(total)

    def answer(self) -> None:
        self.left.step()

    def scored(self) -> None:
        self.left.end()


class Bar(ScoringShown):
    """Round, accuracy at the narrowest and widest width, time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def begin(self, setup: "Setup", start: int) -> None:
        tell(self.progress.console, headline(setup, start))
        self.bar = self.progress.add_task("rounds", total=setup.config.rounds, completed=start, accuracy="")
        self.progress.start()

    def round(self, row: MetricRow) -> None:
        self.progress.update(self.bar, completed=row["round"] + 1, description=f"rounds{privacy_of(row)}")

    def scores(self, rows: Sequence[MetricRow]) -> None:
        self.progress.update(self.bar, accuracy=accuracies(rows))

    def note(self, text: str) -> None:
        tell(self.progress.console, text)

    def end(self) -> None:
        self.progress.stop()


class Lines(ScoringShown):
    """A line at each validation, with the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.done, self.total, self.start = 0, 0, 0

    def begin(self, setup: "Setup", start: int) -> None:
        self.began, self.total, self.start = perf_counter(), setup.config.rounds, start
        self._say(headline(setup, start))

    def round(self, row: MetricRow) -> None:
        self.done = row["round"] + 1
        if "epsilon" in row:
            self._say(f"round {self.done}/{self.total}{privacy_of(row)}")

    def scores(self, rows: Sequence[MetricRow]) -> None:
        spent = perf_counter() - self.began
        left = spent / max(1, self.done - self.start) * (self.total - self.done)
        self._say(f"round {self.done}/{self.total}  {accuracies(rows)}  {spent:.0f} s, {left:.0f} s left")

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        tell(self.console, text, soft_wrap=True)


class Countdown:
    """Counts answers of a known number, with the time left: a bar on a terminal, else a line at each tenth.

    Lines are so many seconds apart, at least.
    """

    def __init__(self, what: str, console: Console | None = None, *, every: float = 0.0) -> None:
        self.what, self.console, self.every = what, console or Console(stderr=True), every
        self.done, self.total = 0, 0
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left")
        self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)

    def __enter__(self) -> "Countdown":
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def begin(self, total: int) -> None:
        self.began = self.said = perf_counter()
        self.total = total
        if self.console.is_terminal:
            self.task = self.bar.add_task(self.what, total=total)
            self.bar.start()

    def step(self) -> None:
        self.done += 1
        if self.console.is_terminal:
            self.bar.advance(self.task)
        elif 10 * self.done // self.total > 10 * (self.done - 1) // self.total:
            spent = perf_counter() - self.began
            if perf_counter() - self.said < self.every or self.done > self.total:
                return
            self.said, left = perf_counter(), spent / self.done * (self.total - self.done)
            text = f"{self.what}: {self.done}/{self.total}  {spent:.0f} s, about {left:.0f} s left"
            tell(self.console, text, soft_wrap=True)


class Board(Watcher):
    """Writes the same numbers for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError('TensorBoard is not installed; pip install "splitmix[tensorboard]"') from None
        self.open = partial(SummaryWriter, str(folder / "tensorboard"))

    def begin(self, setup: "Setup", start: int) -> None:
        self.writer = self.open(purge_step=start)  # only now is the folder ours

    def round(self, row: MetricRow) -> None:
        for key in ("loss", "lr", "seconds"):
            self.writer.add_scalar(f"round/{key}", row[key], row["round"])

    def scores(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            self.writer.add_scalar(
                f"val accuracy/width {row['width'].replace('/', ' over ')}", row["accuracy"], row["round"]
            )

    def end(self) -> None:
        self.writer.close()


def headline(setup: "Setup", start: int) -> str:
    """What is about to run, in a line, and what is odd about a net of one's own in further ones."""
    from splitmix.runs.remarks import remarks  # what it takes is loaded by now

    config = setup.config
    begin = f"resumed after round {start}" if start else f"{config.rounds} rounds"
    return "\n".join([f"{setup.about}, {begin}, seed {config.seed}", *remarks(setup)])


def privacy_of(row: MetricRow) -> str:
    """What the weights of a private run may tell of a client by now."""
    return f", epsilon {row['epsilon']:.3g}" if "epsilon" in row else ""


def accuracies(rows: Sequence[MetricRow]) -> str:
    first, last = rows[0], rows[-1]
    shown = (
        f"val {100 * first['accuracy']:.1f} % at {first['width']}, {100 * last['accuracy']:.1f} % at {last['width']}"
    )
    attacked = [trial["accuracy"] for trial in last.get("trials", ()) if trial["attack"]]
    return ", ".join([shown, *(f"attacked {100 * accuracy:.1f} %" for accuracy in attacked)])
