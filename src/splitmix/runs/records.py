"""Reading what a run left in its folder: the rows of `metrics.jsonl`, `result.json` and `config.toml`.

These files may come from a crash or from a stranger. So rows that make no sense are skipped, and characters that
cannot be printed (which could steer a terminal) are replaced, here, once.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.core.errors import UserError
from splitmix.core.width import parse_width

Row = dict[str, Any]
Count = Annotated[int, Field(ge=0, lt=2**63)]
WidthText = Annotated[str, BeforeValidator(lambda value: str(parse_width(value)))]


@with_config(ConfigDict(extra="allow"))
class Score(TypedDict):
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


@with_config(ConfigDict(extra="allow"))
class Client(TypedDict):
    """A client, its budget, and how many images it has."""

    client: Count
    domain: str
    budget: WidthText
    train: NotRequired[Count]
    val: NotRequired[Count]
    test: NotRequired[Count]


@with_config(ConfigDict(extra="allow"))
class Result(TypedDict):
    """The content of `result.json`."""

    schema: int
    scores: list[Score]
    clients: list[Client]
    task: NotRequired[str]
    data: NotRequired[str]
    method: NotRequired[str]
    net: NotRequired[str]
    atom: NotRequired[WidthText]
    norm: NotRequired[str]
    norm_text: NotRequired[str]
    seed: NotRequired[int]
    rounds: NotRequired[Count]
    best_round: NotRequired[int]
    order: NotRequired[str]
    bases: NotRequired[list[int]]
    weights_sha256: NotRequired[str]
    seconds: NotRequired[float]
    workers: NotRequired[Count]
    threads: NotRequired[Count]
    versions: NotRequired[dict[str, str]]
    command: NotRequired[str]
    domains: NotRequired[list[str]]


_RESULT: TypeAdapter[Result] = TypeAdapter(Result)


def read_metrics(folder: Path) -> list[Row]:
    """The rows of a run by round; where a resumed run wrote a row again, the later one counts."""
    _need_run(folder)
    rows: dict[tuple[str, ...], Row] = {}
    for line in (_bytes(folder / "metrics.jsonl") or b"").split(b"\n"):
        row = _row(line)
        if row is not None:
            rows[tuple(str(row.get(key)) for key in ("kind", "round", "split", "width", "norm"))] = row
    return sorted(rows.values(), key=lambda row: int(row["round"]))


def round_seconds(rows: Iterable[Row]) -> float:
    """How long the rounds of a run took, in however many sittings."""
    return float(sum(row.get("seconds", 0.0) for row in rows if row["kind"] == "round"))


def read_result(folder: Path) -> Result:
    """What a finished run measured; a sentence for the user if the folder is none, unfinished or damaged."""
    _need_run(folder)
    file = folder / "result.json"
    data = _bytes(file)
    if data is None:
        raise UserError(f"the run in '{folder}' is not finished: it has no result.json; continue it with --resume")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise UserError(f"'{file}' is damaged (it is not JSON); train again into another folder") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != 1:
        raise UserError(f"'{file}' has the schema {schema!r}, but this version reads 1; use the version that wrote it")
    try:
        result = _RESULT.validate_python(printable(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"'{file}' is damaged (at {place}: {first['msg']}); train again into another folder") from None
    if not result["scores"]:
        raise UserError(f"'{file}' has no scores; train again into another folder")
    return result


def read_config(folder: Path) -> str:
    """The text of `config.toml`, or nothing if it is not there."""
    text = (_bytes(folder / "config.toml") or b"").decode(errors="replace")
    return "\n".join(printable(line) for line in text.splitlines())


def score_groups(result: Result) -> dict[tuple[str, str], list[Score]]:
    """The scores by (norm statistics, split), each group by width; the first group is the run's main one."""
    groups: dict[tuple[str, str], dict[str, Score]] = {}
    for score in result["scores"]:
        groups.setdefault((score.get("norm", "stored"), score.get("split", "test")), {})[score["width"]] = score
    return {key: [group[width] for width in sorted(group, key=parse_width)] for key, group in groups.items()}


def main_scores(result: Result) -> list[Score]:
    """The scores to show first, by width."""
    return next(iter(score_groups(result).values()))


def domain_names(result: Result) -> list[str]:
    """The run's domains in its order, then any other that a client has (such as 'mixed')."""
    return list(dict.fromkeys([*result.get("domains", []), *(client["domain"] for client in result["clients"])]))


def scored_clients(result: Result) -> list[Client]:
    """The clients whose accuracies a main score lists: all, or those with test images; none if they do not match."""
    counts = {len(score.get("clients", [])) for score in main_scores(result)}
    for clients in (result["clients"], [client for client in result["clients"] if client.get("test")]):
        if counts == {len(clients)}:
            return clients
    return []


def _row(line: bytes) -> Row | None:
    """A line of metrics, or None if it is empty, torn or of no known kind."""
    try:
        row = json.loads(line)
        if row["kind"] not in ("round", "score") or type(row["round"]) is not int:
            return None
        if row["kind"] == "score":
            row |= {"width": str(parse_width(row["width"])), "accuracy": float(row["accuracy"])}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    cleaned: Row = printable(row)
    return cleaned


def printable(value: Any) -> Any:
    """The same value, where each space is plain and other characters that cannot be printed become U+FFFD."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item) for item in value]
    return value


def _need_run(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'; give the folder that a training run wrote")
    if not any((folder / name).exists() for name in ("config.toml", "metrics.jsonl", "result.json")):
        raise UserError(
            f"'{folder}' is not a run's folder (it has no config.toml); give the folder that a training run wrote"
        )


def _bytes(file: Path) -> bytes | None:
    """The bytes of a file, or None if there is none."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"'{file}' cannot be read ({error.strerror}); check what it is and who may read it") from None
