"""All that travels, as Flower messages: JSON of which only known records are made, and an array record for each base.

Whatever a client sends is read here, and nowhere else; what cannot be read is no answer.
"""

import json
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from splitmix.core.admission import Rejected
from splitmix.core.client import parts_of
from splitmix.core.errors import UserError, printable
from splitmix.core.inputs import Kind
from splitmix.core.types import Calibrate, Job, Part, Plan, Question, Score, Tally, Train, Update, Weights
from splitmix.core.width import Width, parse_width
from splitmix.nets import NETS
from splitmix.runs.config import Config, make_config

LONGEST = 1 << 20  # characters of one record
MANY = 10**9  # images: no client has so many
CLASSES = 10**4  # at most
PIXELS = 1 << 20  # numbers in an image, at most


def to_text(record: Any, *, without: Collection[str] = ()) -> str:
    """A record as JSON, exact to the last bit of its numbers; fields named in `without` are left out."""
    return json.dumps(_plain(record, without))


def from_text(text: str, kinds: Collection[type], **given: Any) -> Any:
    """The record that a text describes, of one of these kinds (and, inside of it, of those); `given` fields are set.

    Whatever is wrong with the text is a ValueError: it may come from a stranger.
    """
    if len(text) > LONGEST:
        raise ValueError(f"a record of {len(text)} characters is too long")
    try:
        return _record(json.loads(text), {kind.__name__: kind for kind in kinds}, given)
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"it is no record ({type(error).__name__})") from None
    except UserError as error:  # a record that refuses its settings
        raise ValueError(str(error)) from None


def _plain(value: Any, without: Collection[str] = ()) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.name not in without]
        return {"is": type(value).__name__, **{name: _plain(getattr(value, name)) for name in names}}
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(f"{type(value).__name__} cannot be sent to a client; use records of numbers, text and widths")


def _record(said: Any, kinds: Mapping[str, type], given: Mapping[str, Any] | None = None) -> Any:
    kind = kinds[said["is"]]
    hints, read = _hints(kind), dict(given or {})
    for field in fields(kind):
        if field.name in said and field.name not in read:
            read[field.name] = _value(hints[field.name], said[field.name], kinds)
    unknown = said.keys() - hints.keys() - {"is"}
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if unknown or needed - read.keys():
        raise ValueError(f"{kind.__name__} has other fields")
    return kind(**read)


def _value(hint: Any, said: Any, kinds: Mapping[str, type]) -> Any:
    """What was said, if it is of the kind that the field asks for."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if said is None and NoneType in inner:
            return None
        return _value(next(kind for kind in inner if kind is not NoneType), said, kinds)
    if origin is tuple and isinstance(said, list):
        each = [inner[0]] * len(said) if len(inner) == 2 and inner[1] is ... else list(inner)
        return tuple(_value(kind, item, kinds) for kind, item in zip(each, said, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(said, dict):
        return {_value(inner[0], key, kinds): _value(inner[1], item, kinds) for key, item in said.items()}
    if origin is Literal and isinstance(said, str) and said in inner:
        return said
    if hint is Fraction and isinstance(said, str):
        return parse_width(said)
    if hint is float and type(said) in (int, float):
        return float(said)
    if hint in (int, str, bool) and type(said) is hint:
        return said
    if isinstance(said, dict) and (kind := kinds[said["is"]]) and (not is_dataclass(hint) or kind is hint):
        return _record(said, kinds)
    raise ValueError(f"{str(said)[:40]!r} is no {getattr(hint, '__name__', hint)}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


JOBS = (Train, Score, Calibrate, Part, Plan, Question)
ANSWERS = (Update, Tally, Part)
SPARE = 1 << 20  # bytes for names and shapes, in the largest answer
AXES = 8  # of an entry, at most
HEADER = 8  # bytes that tell how long the description is that begins a safetensors file


@dataclass(frozen=True)
class Member:
    """What a node says of the client that it is; it never sends an image."""

    client: int
    train: int  # images
    val: int
    test: int
    classes: int
    image: tuple[int, ...]
    domain: str
    net: str | None = None  # of the table: what its task is learnt with, if the run names none
    budget: Width | None = None  # None: as the run's settings say
    class_names: tuple[str, ...] = ()  # where they are known
    kind: Kind = "image"


@dataclass(frozen=True)
class Agreement:
    """What server and clients of a run agree on; classes and net are known once the nodes have spoken."""

    config: Config
    classes: int | None = None
    net: str | None = None

    def text(self) -> str:
        return json.dumps({"config": self.config.model_dump(mode="json"), "classes": self.classes, "net": self.net})

    @staticmethod
    def read(text: str) -> "Agreement":
        """An agreement in which the run's settings alone, and no node, may name a net that is in no table."""
        said = json.loads(text)
        agreed = Agreement(make_config(said["config"], own=("task",)), said["classes"], said["net"])
        if agreed.net not in (None, agreed.config.net, *NETS):
            raise UserError(f"the net {agreed.net!r} is none of {', '.join(NETS)}, and not named by the run's settings")
        return agreed


def pack_query(agreed: str) -> RecordDict:
    """The question who a node is, in the run of an agreement."""
    return RecordDict({"about": ConfigRecord({"settings": agreed})})


def unpack_query(content: RecordDict) -> str:
    return text_of(content, "settings")


def pack_member(said: Member) -> RecordDict:
    return RecordDict({"about": ConfigRecord({"member": to_text(said)})})


def unpack_member(content: RecordDict, count: int) -> Member:
    """Who a node says it is, if it can be one of so many clients."""
    return read_member(text_of(content, "member"), count)


def read_member(line: str, count: int) -> Member:
    """A member whose words make sense, as it travels and as a run's folder keeps it: a line of JSON."""
    said: Member = from_text(line, [Member])
    if not 0 <= said.client < count:
        raise ValueError(f"it is client {said.client}, but the run has clients 0 to {count - 1}")
    if not (2 <= said.train < MANY and 0 <= said.val < MANY and 0 <= said.test < MANY):
        raise ValueError(f"client {said.client} says that it has {said.train} training images")
    if not 1 <= said.classes <= CLASSES:
        raise ValueError(f"client {said.client} says that its labels need {said.classes} classes; {CLASSES} may be")
    if len(said.class_names) not in (0, said.classes) or any(len(name) > 100 for name in said.class_names):
        raise ValueError(f"client {said.client} names {len(said.class_names)} classes of {said.classes}, or too long")
    if not 1 <= len(said.image) <= AXES or min(said.image) < 1 or math.prod(said.image) > PIXELS:
        raise ValueError(f"client {said.client} says that its images are {said.image[:3]}; {PIXELS} numbers may be")
    if said.net not in (None, *NETS):
        raise ValueError(
            f"client {said.client} names the net {str(said.net)[:40]!r}, which is none of {', '.join(NETS)}"
        )
    if said.budget is not None:
        parse_width(said.budget)
    names = tuple(printable(name) for name in said.class_names)
    return replace(said, domain=printable(said.domain[:60]), class_names=names)


def pack_job(job: Job, download: Weights, agreed: str) -> RecordDict:
    """A job, the bases it needs, and the agreement of the run, without which a client cannot know its net."""
    return pack_bases(parts_of(job), download, job=to_text(job), settings=agreed)


def unpack_job(content: RecordDict, attacks: Collection[type] = ()) -> tuple[Job, Weights, str]:
    """The job, its download, and the agreement; `attacks` are the kinds of records that a question may hold."""
    job: Job = from_text(text_of(content, "job"), (*JOBS, *attacks))
    return job, unpack_bases(parts_of(job), content), text_of(content, "settings")


def pack_answer(job: Job, answer: Update | Tally) -> RecordDict:
    """What a client sends back: counts, or the bases that it trained."""
    if isinstance(answer, Tally):
        return RecordDict({"about": ConfigRecord({"answer": to_text(answer)})})
    said = to_text(answer, without=("weights", "weight"))  # the server weighs, not the client
    return pack_bases(parts_of(job), answer.weights, answer=said)


def unpack_answer(job: Job, content: RecordDict, limit: int) -> Update | Tally | Rejected:
    """The answer to a job, if it can be read at all; of no more than `limit` bytes of tensors."""
    try:
        if tensor_bytes(content) > limit:
            raise ValueError(f"it is larger than {limit} bytes")
        text = text_of(content, "answer")
        if isinstance(job, Score):
            return from_text(text, ANSWERS)
        return from_text(text, ANSWERS, weights=unpack_bases(parts_of(job), content), weight=1)
    except Exception as error:  # whatever a stranger's message raises is about that message alone
        return Rejected(job.client, "kind", printable(str(error) or type(error).__name__)[:200])


def pack_bases(parts: Sequence[Part], weights: Weights, **said: str) -> RecordDict:
    """Stacked weights and some text. Each base is a safetensors file without its beginning, the description of its
    entries: that is the same for all, and travels once."""
    files = [save({name: value[row].contiguous() for name, value in weights.items()}) for row in range(len(parts))]
    begin = HEADER + int.from_bytes(files[0][:HEADER], "little")
    about = ConfigRecord({**said, "entries": zlib.compress(files[0][:begin])})
    return RecordDict({"about": about, **{_name(p): _numbers(f[begin:]) for p, f in zip(parts, files, strict=True)}})


def unpack_bases(parts: Sequence[Part], content: RecordDict) -> Weights:
    """The weights of exactly these bases, stacked in their order."""
    wanted, found = [_name(part) for part in parts], content.array_records
    if set(found) != set(wanted):
        raise ValueError(f"it holds {len(found)} bases, not the {len(wanted)} that were asked for")
    begin = _description(content)
    rows = [_entries(begin, found[name]) for name in wanted]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def text_of(content: RecordDict, key: str) -> str:
    """A line of text that a message holds under this name."""
    return str(_said(content, key, str))


def tensor_bytes(content: RecordDict) -> int:
    """Bytes of the tensors in a message."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _said(content: RecordDict, key: str, kind: type) -> Any:
    about: Any = content.config_records.get("about") or {}
    said = about.get(key)
    if not isinstance(said, kind):
        raise ValueError(f"it holds no {key}")
    return said


def _name(part: Part) -> str:
    return f"base-{part.base}"


def _numbers(numbers: bytes) -> ArrayRecord:
    return ArrayRecord({"entries": Array("uint8", (len(numbers),), "raw", numbers)})


def _description(content: RecordDict) -> bytes:
    """How the files of all bases begin."""
    unpacker = zlib.decompressobj()
    try:
        begin = unpacker.decompress(_said(content, "entries", bytes), SPARE)
    except zlib.error as error:
        raise ValueError(f"the description of its entries cannot be read ({error})") from None
    if not unpacker.eof:
        raise ValueError("the description of its entries is cut off, or too long")
    if HEADER + int.from_bytes(begin[:HEADER], "little") != len(begin):
        raise ValueError("the description of its entries is not as long as it says")
    for name, entry in json.loads(begin[HEADER:]).items():  # before anything is made of them
        shape = entry["shape"]
        if len(shape) > AXES or not all(type(n) is int and n > 0 for n in shape):
            raise ValueError(f"{name[:40]!r} has a shape that no entry has")
    return begin


def _entries(begin: bytes, record: ArrayRecord) -> Weights:
    if set(record) != {"entries"} or record["entries"].stype != "raw":
        raise ValueError("a base is not one row of bytes")
    try:
        return load(begin + record["entries"].data)
    except (SafetensorError, KeyError) as error:  # a type that PyTorch does not have is a KeyError
        raise ValueError(f"a base cannot be read ({error})") from None
