"""What a run stores, as checked records: `result.json`, rows of `metrics.jsonl`, and how any such file is read.

These files may come from a crash or from a stranger. So they are checked here, once: a fault is one sentence, rows
that make no sense are skipped, and characters that cannot be printed (which could steer a terminal) are replaced.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.core.errors import UserError, printable
from splitmix.core.files import write_atomically
from splitmix.core.width import parse_width

T = TypeVar("T")
_ADAPTERS: dict[object, TypeAdapter[Any]] = {}
Count = Annotated[int, Field(ge=0, lt=2**63)]
WidthText = Annotated[str, BeforeValidator(lambda value: str(parse_width(value)))]
lenient = with_config(ConfigDict(extra="allow"))  # for records of which other versions may say more


class DamagedError(ValueError):
    """What is wrong with a stored file, in words that fit between brackets."""


class SchemaError(DamagedError):
    """It is of another schema than this version reads."""

    def __init__(self, schema: object) -> None:
        super().__init__(f"its schema is {printable(repr(schema)[:60])}, not 1")
        self.schema = schema


def read_record(file: Path, kind: type[T], *, damaged: str = "is damaged", remedy: str, newer: str = "") -> T:
    """The record in a file; whatever is wrong with it is one sentence, which ends with what to do.

    `newer`: what to do, if that is another thing, with a file of another schema.
    """
    try:
        return parse_record(_bytes(file, missing=None), kind)
    except DamagedError as error:
        told = f"{damaged} ({error}); {remedy}"
        if newer and isinstance(error, SchemaError):
            told = f"has the schema {printable(repr(error.schema)[:60])}, but this version reads 1; {newer}"
    raise UserError(f"'{file}' {told}")


def parse_record(data: bytes, kind: type[T]) -> T:
    """The record in the bytes of a file, or a `DamagedError`."""
    try:
        content = all_printable(json.loads(data))
    except (ValueError, RecursionError):
        raise DamagedError("it is not JSON") from None
    if "schema" in kind.__annotations__:
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != 1:
            raise SchemaError(schema)
    try:
        return _checked(kind, content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its start"
        raise DamagedError(f"at {place[:100]}: {first['msg'].removeprefix('Value error, ')}") from None


def _checked(kind: type[T], content: object) -> T:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)  # which takes longer than to read a file
    checked: T = _ADAPTERS[kind].validate_python(content)
    return checked


def write_record(file: Path, record: Mapping[str, object], *, indent: int | None = 1) -> None:
    """Write a record, whole or not at all."""
    write_atomically(file, (json.dumps(record, indent=indent) + "\n").encode())


def config_text(folder: Path) -> str:
    """The text of `config.toml`, or nothing if it is not there."""
    text = _bytes(folder / "config.toml").decode(errors="replace")
    return "\n".join(printable(line) for line in text.splitlines())


def all_printable(value: Any) -> Any:
    """The same value, with all its texts fit for a terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): all_printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [all_printable(item) for item in value]
    return value


def need_finished(folder: Path) -> Path:
    """The file of results in a finished run's folder; a sentence for the user if it is none, or unfinished."""
    _need_run(folder)
    if not (folder / "result.json").exists():
        raise UserError(f"the run in '{folder}' is not finished: it has no result.json; continue it with --resume")
    return folder / "result.json"


def _need_run(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'; give the folder that a training run wrote")
    if not any((folder / name).exists() for name in ("config.toml", "metrics.jsonl", "result.json")):
        raise UserError(
            f"'{folder}' is not a run's folder (it has no config.toml); give the folder that a training run wrote"
        )


def _bytes(file: Path, *, missing: bytes | None = b"") -> bytes:
    """The bytes of a file; of one that is not there, what is given for it."""
    try:
        return file.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and missing is not None:
            return missing
        raise UserError(f"'{file}' cannot be read ({error.strerror}); check what it is and who may read it") from None


@lenient
class StoredScore(TypedDict):
    """Accuracy and cost of one width, with one kind of norm statistics, on one split."""

    width: WidthText
    accuracy: float  # mean over clients
    bases: NotRequired[Count]
    norm: NotRequired[str]
    split: NotRequired[str]
    pooled: NotRequired[float | None]  # over all images
    domains: NotRequired[dict[str, float | None]]
    clients: NotRequired[list[float | None]]
    parameters: NotRequired[Count | None]
    macs: NotRequired[Count | None]
    ms: NotRequired[float | None]  # per image, in a batch of one


@lenient
class StoredClient(TypedDict):
    """A client, its budget, and how many images it has."""

    client: Count
    domain: str
    budget: WidthText
    train: NotRequired[Count]
    val: NotRequired[Count]
    test: NotRequired[Count]


@lenient
class StoredScaling(TypedDict):
    """Mean and deviation of each feature over the training rows, and the features' names."""

    mean: list[float]
    deviation: list[float]
    columns: NotRequired[list[str]]


@lenient
class Result(TypedDict):
    """The content of `result.json`; the order of the fields is that in which `--json` shows them."""

    schema: int
    scores: list[StoredScore]
    clients: list[StoredClient]
    task: NotRequired[str]
    data: NotRequired[str]
    method: NotRequired[str]
    net: NotRequired[str]
    atom: NotRequired[WidthText]
    norm: NotRequired[str]
    norm_text: NotRequired[str]
    chosen_by: NotRequired[dict[str, float]]  # validation accuracy of the widest mix, by norm statistics
    seed: NotRequired[int]
    rounds: NotRequired[Count]
    best_round: NotRequired[int]
    order: NotRequired[str]
    bases: NotRequired[list[int]]
    times: NotRequired[dict[WidthText, list[Count]]]  # that the bases of a mix count, where that is not once each
    weights_sha256: NotRequired[str]
    seconds: NotRequired[float]
    workers: NotRequired[Count]
    threads: NotRequired[Count]
    versions: NotRequired[dict[str, str]]
    command: NotRequired[str]
    domains: NotRequired[list[str]]
    objective: NotRequired[str]
    image: NotRequired[list[int]]  # the shape of one sample
    kind: NotRequired[str]  # what a sample is: image, features, signal or tokens
    classes: NotRequired[list[str]]  # their names, where they are known
    scaling: NotRequired[StoredScaling]  # that features went through
    rescaled: NotRequired[list[str]]
    stacked: NotRequired[str]
    epsilon: NotRequired[float]  # with privacy: what the weights may tell of a client, but for a chance of `delta`
    delta: NotRequired[float]


def read_result(folder: Path) -> Result:
    """What a finished run measured; a sentence for the user if the folder is none, unfinished or damaged."""
    file, again = need_finished(folder), "train again into another folder"
    result = read_record(file, Result, remedy=again, newer="use the version that wrote it")
    if not result["scores"]:
        raise UserError(f"'{file}' has no scores; {again}")
    return result


def score_groups(result: Result) -> dict[tuple[str, str], list[StoredScore]]:
    """The scores by (norm statistics, split), each group by width; the first group is the run's main one."""
    groups: dict[tuple[str, str], dict[str, StoredScore]] = {}
    for score in result["scores"]:
        groups.setdefault((score.get("norm", "stored"), score.get("split", "test")), {})[score["width"]] = score
    return {key: [group[width] for width in sorted(group, key=parse_width)] for key, group in groups.items()}


def main_scores(result: Result) -> list[StoredScore]:
    """The scores to show first, by width."""
    return next(iter(score_groups(result).values()))


def domain_names(result: Result) -> list[str]:
    """The run's domains in its order, then any other that a client has (such as 'mixed')."""
    return list(dict.fromkeys([*result.get("domains", []), *(client["domain"] for client in result["clients"])]))


def scored_clients(result: Result) -> list[StoredClient]:
    """The clients whose accuracies a main score lists: all, or those with test images; none if they do not match."""
    counts = {len(score.get("clients", [])) for score in main_scores(result)}
    for clients in (result["clients"], [client for client in result["clients"] if client.get("test")]):
        if counts == {len(clients)}:
            return clients
    return []


@lenient
class StoredTrial(TypedDict):
    """The accuracy at one dial, with or without an attack, that a round is chosen by."""

    robust: float
    attack: str | None
    accuracy: float


class StoredAbsence(TypedDict):
    """A client that did not answer, and why."""

    client: Count
    reason: str


class StoredRejection(StoredAbsence):
    """An answer that did not count, and why."""

    kind: str


@lenient
class AttendanceRow(TypedDict):
    """Who was asked in one try of a round, and what went wrong."""

    cohort: list[Count]
    clipped: list[Count]
    rejected: list[StoredRejection]
    missing: list[StoredAbsence]


@lenient
class MetricRow(TypedDict):
    """A row of `metrics.jsonl`: a finished round and who took part in it, or the score of one width after it."""

    kind: Literal["round", "score"]
    round: Annotated[int, Strict()]
    lr: NotRequired[float]
    clients: NotRequired[int]
    loss: NotRequired[float]
    parameters: NotRequired[int]
    seconds: NotRequired[float]
    bytes_down: NotRequired[int]
    bytes_up: NotRequired[int]
    cohort: NotRequired[list[Count]]
    clipped: NotRequired[list[Count]]
    rejected: NotRequired[list[StoredRejection]]
    missing: NotRequired[list[StoredAbsence]]
    repeated: NotRequired[list[AttendanceRow]]
    epsilon: NotRequired[float]
    split: NotRequired[str]
    norm: NotRequired[str]  # which statistics the norms used; not said: those of the batch, or running ones
    width: NotRequired[WidthText]
    bases: NotRequired[int]
    accuracy: NotRequired[float]
    pooled: NotRequired[float | None]
    domains: NotRequired[dict[str, float | None]]
    trials: NotRequired[list[StoredTrial]]
    judged: NotRequired[float]


def read_metrics(folder: Path) -> list[MetricRow]:
    """The rows of a run by round; where a resumed run wrote a row again, the later one counts."""
    _need_run(folder)
    rows: dict[tuple[str, ...], MetricRow] = {}
    for line in _bytes(folder / "metrics.jsonl").split(b"\n"):
        row = _metric_row(line)
        if row is not None:
            rows[tuple(str(row.get(key)) for key in ("kind", "round", "split", "width", "norm"))] = row
    return sorted(rows.values(), key=lambda row: row["round"])


def cohorts_asked(rows: Iterable[MetricRow], rounds: int) -> list[Sequence[int]]:
    """The clients that were asked in each of the first so many rounds of which the rows tell it."""
    return [row["cohort"] for row in rows if row["kind"] == "round" and row["round"] < rounds and "cohort" in row]


def round_seconds(rows: Iterable[MetricRow]) -> float:
    """How long the rounds of a run took, in however many sittings."""
    return float(sum(row.get("seconds", 0.0) for row in rows if row["kind"] == "round"))


def _metric_row(line: bytes) -> MetricRow | None:
    """A line of metrics, or None if it is empty, torn or makes no sense."""
    try:
        row = parse_record(line, MetricRow)
    except DamagedError:
        return None
    return row if row["kind"] == "round" or {"width", "accuracy"} <= row.keys() else None
