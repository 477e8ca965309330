"""The grid of a run: clean accuracy and accuracy under attack at every width and dial, stored beside its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired

from pydantic import AfterValidator, BeforeValidator, ValidationInfo
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.core.errors import UserError
from splitmix.core.objective import Attack
from splitmix.core.score import ask_all
from splitmix.core.types import Tally
from splitmix.core.width import Width, parse_dial
from splitmix.runs.measure.evaluate import FinishedRun
from splitmix.runs.measure.intervals import INTERVAL, interval
from splitmix.runs.records import Count, WidthText, lenient, read_record

DIALS = (0.0, 0.2, 0.5, 0.8, 1.0)


def _within(value: float, field: ValidationInfo) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{field.field_name} is {value}, outside [0, 1]")
    return value


Share = Annotated[float, AfterValidator(_within)]
DialValue = Annotated[float, BeforeValidator(parse_dial)]


@lenient
class GridRow(TypedDict):
    """Clean accuracy and accuracy under attack at one width and dial, each with its interval and by client."""

    width: WidthText
    robust: DialValue
    bases: NotRequired[Count]
    clean: Share
    clean_low: Share
    clean_high: Share
    clean_clients: NotRequired[list[float]]
    attacked: Share | None
    attacked_low: Share | None
    attacked_high: Share | None
    attacked_clients: NotRequired[list[float]]


@lenient
class GridRecord(TypedDict):
    """The content of `grid.json`."""

    schema: int
    split: str
    norm: str
    clients: Count
    samples: Count
    attack: str | None
    weak: bool
    interval: NotRequired[str]
    images: NotRequired[int | None]
    seed: NotRequired[int]
    weights_sha256: NotRequired[str]
    rows: list[GridRow]


@dataclass(frozen=True)
class Sweep:
    """What is to be measured; no widths or dials: all that the run has."""

    widths: Sequence[Width] = ()
    dials: Sequence[float] = ()
    attack: Attack | None = None
    images: int | None = None  # of each client; None: all
    seed: int = 0
    clients: Sequence[int] = ()  # none: all

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"--images {self.images} leaves nothing to score; give 1 or more")


def check_dials(run: FinishedRun, dials: Sequence[float]) -> tuple[float, ...]:
    """The dials asked for, or else all there are; a run without dual norms has but one."""
    if run.setup.dial:
        return tuple(sorted(set(dials))) or DIALS
    if any(dials):
        raise UserError(
            f"the run in '{run.path}' has no robustness dial, so it can be served at --robust 0 alone; "
            "train one with -o objective=adversarial"
        )
    return (0.0,)


def measure_grid(
    run: FinishedRun,
    sweep: Sweep,
    *,
    workers: int,
    begin: Callable[[int], None] = lambda total: None,
    on_answer: Callable[[], None] = lambda: None,
) -> GridRecord:
    """Score every width at every dial, on the images as they are and under the attack; the same images for all."""
    dials, mixes = check_dials(run, sweep.dials), run.setup.mixes(sweep.widths)
    domains = {client: run.setup.domains[client] for client in sweep.clients} or run.setup.domains
    clean = [replace(run.question, robust=dial, images=sweep.images, seed=sweep.seed) for dial in dials]
    attacked = [replace(question, attack=sweep.attack) for question in clean] if sweep.attack else []
    begin(len(attacked or clean) * len(domains))  # an attack takes all the time
    with run.engine(workers) as engine:
        plain, under = (
            ask_all(
                engine,
                run.weights,
                [(tuple(mixes.values()), question) for question in questions],
                tuple(domains),
                on_answer=on_answer if questions is (attacked or clean) else lambda: None,
            )
            for questions in (clean, attacked)
        )
    rows = []
    for place, (width, mix) in enumerate(mixes.items()):
        for i, dial in enumerate(dials):
            fooled = _mean(under[i], place, domains) if under else None
            rows.append(_row(width, dial, len(set(mix)), _mean(plain[i], place, domains), fooled))
    return {
        "schema": 1,
        "split": run.question.split,
        "norm": run.norm,
        "clients": len(plain[0]),
        "samples": sum(tally.samples for tally in plain[0]),
        "attack": sweep.attack.name if sweep.attack else None,
        "weak": bool(sweep.attack and sweep.attack.weak),
        "interval": INTERVAL,
        "images": sweep.images,
        "seed": sweep.seed,
        "weights_sha256": run.result["weights_sha256"],
        "rows": rows,
    }


def read_grid(path: Path) -> GridRecord:
    """A stored grid; it may come from a stranger."""
    remedy = "measure it again with: splitmix eval"
    grid = read_record(path, GridRecord, damaged="cannot be read", remedy=remedy)
    if grid["attack"] and any(row["attacked"] is None for row in grid["rows"]):
        raise UserError(f"'{path}' cannot be read (it names an attack without its accuracies); {remedy}")
    return grid


def stored_grids(folder: Path) -> list[GridRecord]:
    """Every grid of a run's folder: grid.json first, then others such as grid-autoattack.json."""
    return [read_grid(path) for path in sorted(folder.glob("grid*.json"), key=lambda path: (len(path.name), path))]


class _Mean(NamedTuple):
    """Over clients, with its interval and the accuracy of each."""

    mean: float
    low: float
    high: float
    clients: list[float]


def _mean(tallies: Sequence[Tally], mix: int, domains: Mapping[int, str]) -> _Mean:
    values = [tally.accuracy(mix) for tally in tallies]
    return _Mean(sum(values) / len(values), *interval(values, [domains[tally.client] for tally in tallies]), values)


def _row(width: Width, dial: float, bases: int, clean: _Mean, attacked: _Mean | None) -> GridRow:
    row: GridRow = {
        "width": str(width),
        "robust": dial,
        "bases": bases,
        "clean": clean.mean,
        "clean_low": clean.low,
        "clean_high": clean.high,
        "clean_clients": clean.clients,
        "attacked": attacked and attacked.mean,
        "attacked_low": attacked and attacked.low,
        "attacked_high": attacked and attacked.high,
    }
    if attacked is not None:
        row["attacked_clients"] = attacked.clients
    return row
