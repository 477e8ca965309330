"""Jobs and answers as Flower messages: a line of JSON, and one array record for each base that travels."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from splitmix.core.client import parts_of
from splitmix.core.types import Calibrate, Job, Part, Plan, Question, Score, Tally, Train, Update, Weights
from splitmix.engines.flower.records import from_text, to_text

JOBS = (Train, Score, Calibrate, Part, Plan, Question)
ANSWERS = (Update, Tally, Part)
SPARE = 1 << 20  # bytes for names and shapes, in the largest answer


@dataclass(frozen=True)
class Garbled:
    """An answer that cannot be read, and why."""

    reason: str


def pack_job(job: Job, download: Weights, settings: str) -> RecordDict:
    """A job, the bases it needs, and the settings of the run, without which a client cannot know its net."""
    said = ConfigRecord({"job": to_text(job), "settings": settings})
    return RecordDict({"about": said, **pack_bases(parts_of(job), download)})


def unpack_job(content: RecordDict, attacks: Collection[type] = ()) -> tuple[Job, Weights, str]:
    """The job, its download, and the settings; `attacks` are the kinds of records that a question may hold."""
    job: Job = from_text(text_of(content, "job"), (*JOBS, *attacks))
    return job, unpack_bases(parts_of(job), content), text_of(content, "settings")


def pack_answer(job: Job, answer: Update | Tally) -> RecordDict:
    """What a client sends back: counts, or the bases that it trained."""
    if isinstance(answer, Tally):
        return RecordDict({"about": ConfigRecord({"answer": to_text(answer)})})
    said = ConfigRecord({"answer": to_text(answer, without=("weights", "weight"))})  # the server weighs, not the client
    return RecordDict({"about": said, **pack_bases(parts_of(job), answer.weights)})


def unpack_answer(job: Job, content: RecordDict, limit: int) -> Update | Tally | Garbled:
    """The answer to a job, if it can be read at all; of no more than `limit` bytes of tensors."""
    try:
        if size_of(content) > limit:
            return Garbled(f"it is larger than {limit} bytes")
        text = text_of(content, "answer")
        if isinstance(job, Score):
            return from_text(text, ANSWERS)
        return from_text(text, ANSWERS, weights=unpack_bases(parts_of(job), content), weight=1)
    except ValueError as error:
        return Garbled(str(error)[:200])


def pack_bases(parts: Sequence[Part], weights: Weights) -> dict[str, ArrayRecord]:
    """Stacked weights, one record for each base: its entries with names, types and shapes, as safetensors."""
    records = {}
    for row, part in enumerate(parts):
        data = save({name: value[row].contiguous() for name, value in weights.items()})
        records[f"base-{part.base}"] = ArrayRecord({"entries": Array("uint8", (len(data),), "safetensors", data)})
    return records


def unpack_bases(parts: Sequence[Part], content: RecordDict) -> Weights:
    """The weights of exactly these bases, stacked in their order."""
    wanted = [f"base-{part.base}" for part in parts]
    found = content.array_records
    if set(found) != set(wanted):
        raise ValueError(f"it holds {len(found)} bases, not the {len(wanted)} that were asked for")
    rows = [_entries(found[name]) for name in wanted]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError("its bases have different entries")
    try:
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    except (RuntimeError, TypeError):
        raise ValueError("its bases have different shapes") from None


def text_of(content: RecordDict, key: str) -> str:
    """A line of text that a message holds under this name."""
    about: Any = content.config_records.get("about") or {}
    said = about.get(key)
    if not isinstance(said, str):
        raise ValueError(f"it holds no {key}")
    return said


def size_of(content: RecordDict) -> int:
    """Bytes of the tensors in a message."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _entries(record: ArrayRecord) -> Weights:
    if set(record) != {"entries"} or record["entries"].stype != "safetensors":
        raise ValueError("a base is not in the form of safetensors")
    try:
        return load(record["entries"].data)
    except SafetensorError as error:
        raise ValueError(f"a base cannot be read ({error})") from None
