"""What a bundle says of itself: the net, its classes and images, the hashes of its files, and what was measured."""

import hashlib
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from splitmix.core.errors import UserError
from splitmix.core.inputs import Kind, Scaling
from splitmix.core.width import Width
from splitmix.runtime.graph.record import Graph
from splitmix.runtime.strict import ManifestRecord, Name, Text, strict_json, what_is_wrong

if TYPE_CHECKING:
    from splitmix.core.net import Build

NAMED, GRAPHED = 1, 2  # schemas: the net by its name in our table, or also as a graph
MOST_BYTES = 2 << 30  # of all bases together
MOST_MANIFEST = 4 << 20
HEADER_BYTES = 64 << 10  # bytes that the header of a base's file may take

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
UnitShare = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
NormKind = Literal["global", "tracked"]
Storage = Literal["float32", "float16"]
PIXELS = {  # how samples of a kind are given
    "image": "uint8 divided by 255, or float from 0 to 1",
    "features": "numbers as they stand in the table",
    "signal": "numbers as in training",
    "tokens": "whole numbers",
}
TensorSpec = tuple[tuple[int, ...], str]  # shape and type of a tensor, as safetensors names it
ITEM = {"F32": 4, "F16": 2}  # bytes of a number
STORED = {"float32": "F32", "float16": "F16"}
WidthText = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,2}(/[1-9][0-9]{0,2})?$")]


class NetRecord(ManifestRecord):
    """The name of a net, and what it is built with if it is one of our table."""

    name: Name
    classes: Annotated[int, Field(ge=1, le=10_000)]
    dual: bool
    rescale_layers: bool

    def build(self) -> "Build":
        """The function that makes it at a width; only nets of our table can be named, and PyTorch is needed."""
        try:
            from splitmix.nets import NETS
        except ImportError:
            raise UserError("this needs PyTorch, which is not installed; install torch, or do it where it is") from None
        if self.name not in NETS:
            raise UserError(
                f"its net '{self.name}' is none of {', '.join(NETS)}, and nothing is imported because a bundle "
                "says so; by its graph it runs on ONNX Runtime, but attacks, and so the calibration of noisy norms, "
                "need PyTorch and a net of ours"
            )
        return partial(NETS[self.name], classes=self.classes, dual=self.dual, rescale_layers=self.rescale_layers)


class ScalingRecord(ManifestRecord):
    """Mean and deviation of each feature in training: what is given to the model is scaled by them."""

    mean: Annotated[list[float], Field(max_length=1 << 20)]
    deviation: Annotated[list[Annotated[float, Field(gt=0)]], Field(max_length=1 << 20)]
    columns: Annotated[list[Text], Field(max_length=1 << 20)] = Field(default_factory=list)

    def __repr__(self) -> str:
        return f"ScalingRecord({len(self.mean)} features)"


class BaseRecord(ManifestRecord):
    """The file of one base, `base-i.safetensors`: which base of the training it is, and how its bytes hash."""

    trained_as: Annotated[int, Field(ge=0, le=1000)]
    bytes: Annotated[int, Field(ge=8, le=MOST_BYTES)]
    sha256: Sha


class CostRecord(ManifestRecord):
    """What a width costs, for one image."""

    width: WidthText
    bases: Count
    parameters: Count
    macs: Count
    bytes: Count  # of its files


class ScoreRecord(ManifestRecord):
    """Measured accuracy at one dial, with the ends of its interval where they are known."""

    width: WidthText
    robust: UnitShare
    clean: UnitShare
    clean_low: UnitShare | None = None
    clean_high: UnitShare | None = None
    attacked: UnitShare | None = None
    attacked_low: UnitShare | None = None
    attacked_high: UnitShare | None = None


class TableRecord(ManifestRecord):
    """The measured table widths x robustness, and how it was measured."""

    split: Name
    norm: Name
    clients: Count
    samples: Count | None = None
    attack: Text | None = None
    weak: bool = False  # the attack proves little
    interval: Text | None = None  # what the ends of the intervals mean
    rows: Annotated[list[ScoreRecord], Field(max_length=5000)]

    def __repr__(self) -> str:
        return f"TableRecord({len(self.rows)} rows, split {self.split}, norm {self.norm})"


class Manifest(ManifestRecord):
    """All of it. Files have fixed names, so that nothing in here is a path."""

    kind: Literal["splitmix bundle"] = "splitmix bundle"
    schema_version: Annotated[int, Field(alias="schema")]
    net: NetRecord
    atom: WidthText
    sample: Kind = "image"
    image: Annotated[list[Annotated[int, Field(ge=1, le=1 << 20)]], Field(min_length=1, max_length=4)]
    pixels: Text = PIXELS["image"]
    classes: Annotated[list[Name], Field(max_length=10_000)]
    norm: NormKind
    norm_text: Text
    storage: Storage  # of convolutions and linears; norms are always float32
    bases: Annotated[list[BaseRecord], Field(min_length=1, max_length=64)]
    costs: Annotated[list[CostRecord], Field(max_length=64)]
    table: TableRecord
    times: dict[WidthText, list[Annotated[int, Field(ge=0, le=1000)]]] = Field(default_factory=dict)
    graph: Graph | None = None  # of one base
    scaling: ScalingRecord | None = None  # of features
    trained: dict[Name, Text]
    versions: dict[Name, Name]
    sha256: Sha = "0" * 64  # of all the rest

    def __repr__(self) -> str:
        what = f"{self.sample} of shape {tuple(self.image)}, {len(self.classes)} classes"
        return f"Manifest({self.net.name}: {what}, {len(self.bases)} x width {self.atom}, {self.storage})"

    @cached_property
    def width(self) -> Width:
        """The width of one base."""
        return Fraction(self.atom)

    @cached_property
    def widths(self) -> tuple[Width, ...]:
        """The widths of the whole bundle, whatever has arrived of it."""
        return tuple(self.width * bases for bases in range(1, len(self.bases) + 1))

    @property
    def unsaid(self) -> set[str]:
        """Keys that its file leaves out: older versions read a bundle whose bases all count alike."""
        later = {"scaling"} if self.graph else {"graph", "sample", "scaling"}
        later -= {"scaling"} if self.scaling else set()
        return later if self.times else later | {"times"}

    def shares(self, bases: int) -> tuple[float, ...]:
        """What each of the first bases counts in their mean; nothing, if all count alike."""
        times = self.times.get(str(self.width * bases), []) if self.times else []
        return tuple(count / sum(times) for count in times)

    def scale(self) -> Scaling | None:
        """What features go through before the net sees them."""
        said = self.scaling
        return None if said is None else Scaling(tuple(said.mean), tuple(said.deviation), tuple(said.columns))

    def cost(self, width: Width) -> CostRecord:
        return self.costs[int(width / self.width) - 1]

    def build(self) -> "Build":
        """The function that makes its net at a width."""
        return self.net.build()

    def entries(self) -> dict[str, TensorSpec]:
        """Shape and type of every entry of one base; nothing is allocated to find out."""
        if self.graph is None:
            return _entries(self.net, self.width, self.storage)
        norms, rest = self.graph.norm_entries(), STORED[self.storage]
        return {name: (tuple(shape), "F32" if name in norms else rest) for name, shape in self.graph.entries.items()}

    @model_validator(mode="after")
    def _fits_together(self) -> "Manifest":
        checks = (_check_schema, _check_net, _check_bases, _check_classes, _check_costs, _check_table, _check_times)
        for check in checks:
            check(self)
        return self


@lru_cache(maxsize=16)
def _entries(net: NetRecord, atom: Width, storage: str) -> dict[str, TensorSpec]:
    build = net.build()
    from splitmix.core.net import Net
    from splitmix.nets.cost import weightless

    made = Net(weightless(build))
    norms = made.norm_names(atom)  # always in full
    return {
        name: (tuple(shape), "F32" if name in norms else STORED[storage]) for name, shape in made.shapes(atom).items()
    }


def _check_schema(said: Manifest) -> None:
    if said.schema_version not in (NAMED, GRAPHED):
        raise ValueError(f"its schema is {said.schema_version}, but this version of splitmix reads up to {GRAPHED}")
    if (said.graph is not None) != (said.schema_version == GRAPHED):
        raise ValueError(f"its schema is {said.schema_version}, and only one of {GRAPHED} has a graph")


def _check_net(said: Manifest) -> None:
    if said.sample == "image" and (len(said.image) != 3 or max(said.image) > 2048):
        raise ValueError("its images have no height, width and channels of at most 2048")
    if said.pixels != PIXELS[said.sample]:
        raise ValueError(f"its {said.sample} are given in another way than this version of splitmix knows")
    if said.scaling and not [len(said.scaling.mean)] == [len(said.scaling.deviation)] == said.image:
        raise ValueError("its scaling is not one of its features")
    if said.graph is None:
        _check_named(said)
        return
    sample = said.image[-1:] + said.image[:-1] if len(said.image) == 3 else said.image  # channels first
    if said.graph.sample != sample or said.graph.whole != (said.sample == "tokens"):
        raise ValueError(f"its samples of {said.image} do not fit its graph, which takes {said.graph.sample}")
    if (said.graph.classes, said.graph.dual) != (said.net.classes, said.net.dual):
        raise ValueError("its graph has another number of classes, or another dial")


def _check_named(said: Manifest) -> None:
    said.net.build()
    from splitmix.nets import NETS

    own: tuple[int, ...] = NETS[said.net.name].image  # type: ignore[attr-defined]
    if tuple(said.image) != own and not (getattr(NETS[said.net.name], "any_size", False) and said.image[2] == own[2]):
        raise ValueError(f"its images of {said.image} do not fit the net {said.net.name}, which takes {own}")


def _check_bases(said: Manifest) -> None:
    numerator, _, denominator = said.atom.partition("/")
    if numerator != "1" or not 1 <= int(denominator or 1) <= 64:
        raise ValueError(f"its atom {said.atom} is not one over a whole number up to 64")
    if len(said.bases) > int(denominator or 1):
        raise ValueError(f"it has {len(said.bases)} bases of width {said.atom}, more than make up width 1")
    if len({base.trained_as for base in said.bases}) < len(said.bases):
        raise ValueError("it names a base twice")
    most = HEADER_BYTES + sum(ITEM[dtype] * math.prod(shape) for shape, dtype in said.entries().values())
    if any(not most - HEADER_BYTES <= base.bytes <= most for base in said.bases):
        raise ValueError(f"its files are said to have a size that a base of {said.net.name} cannot have")
    if most * len(said.bases) > MOST_BYTES:
        raise ValueError(f"its bases take more than {MOST_BYTES:,} bytes")


def _check_classes(said: Manifest) -> None:
    if len(said.classes) != said.net.classes or len(set(said.classes)) < len(said.classes):
        raise ValueError(f"it must name {said.net.classes} classes, each once")


def _check_costs(said: Manifest) -> None:
    if [Fraction(cost.width) for cost in said.costs] != list(said.widths):
        raise ValueError("its costs are not those of its widths")


def _check_table(said: Manifest) -> None:
    dials = [(Fraction(row.width), row.robust) for row in said.table.rows]
    if len(set(dials)) < len(dials) or not {width for width, _ in dials} <= set(said.widths):
        raise ValueError("its table has a row twice, or rows of widths that it has not")
    if not said.net.dual and any(robust for _, robust in dials):
        raise ValueError("its table has robust rows, but its net has no robustness dial")
    for row in said.table.rows:
        clean = [row.clean_low, row.clean, row.clean_high]
        attacked = [row.attacked_low, row.attacked, row.attacked_high]
        for ends in (clean, attacked):
            known = [end for end in ends if end is not None]
            if any(low > high + 1e-6 for low, high in pairwise(known)):  # they may have been rounded
                raise ValueError("its table has an accuracy outside its own interval")


def _check_times(said: Manifest) -> None:
    counts = {str(width): bases for bases, width in enumerate(said.widths, start=1)}
    if any(counts.get(width) != len(times) or not any(times) for width, times in said.times.items()):
        raise ValueError("it does not say of each base of a width how many times it counts")


def to_bytes(manifest: Manifest) -> bytes:
    """The manifest as a file, with the hash of the rest in it; a graph has a line for each of its steps."""
    said = manifest.model_dump(mode="json", by_alias=True, exclude=manifest.unsaid)
    text = json.dumps({**said, "sha256": digest(said), **({"graph": 0} if manifest.graph else {})}, indent=1) + "\n"
    return text.replace('\n "graph": 0', f'\n "graph": {_lines(said.get("graph"))}', 1).encode()


def _lines(said: Any, deep: int = 2) -> str:
    """JSON with the first levels one below the other, and the rest in one line."""
    if not deep or not said or not isinstance(said, dict | list):
        return json.dumps(said)
    if isinstance(said, list):
        return "[\n" + ",\n".join(f"   {_lines(value, deep - 1)}" for value in said) + "]"
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_lines(value, deep - 1)}" for key, value in said.items()) + "}"


def from_bytes(data: bytes, where: str) -> Manifest:
    """A checked manifest; whatever is wrong with it is one sentence."""
    said = strict_json(data, where)
    if not isinstance(said, dict):
        raise UserError(f"{where} is not a bundle's manifest; fetch it again")
    schema = said.get("schema")
    if type(schema) is int and GRAPHED < schema < 1000:
        raise UserError(f"{where} has schema {schema}, but this version of splitmix reads up to {GRAPHED}")
    try:
        if said.get("sha256") != digest(said):
            raise UserError(f"{where} is damaged: it does not match its own hash; fetch it again")
        return Manifest.model_validate(said)
    except ValidationError as error:
        raise UserError(f"{where} cannot be used: {what_is_wrong(error)}; bundle the run again") from None
    except RecursionError:
        raise UserError(f"{where} is nested too deeply; fetch it again") from None


def digest(said: Mapping[str, object]) -> str:
    """The hash of a manifest: of all its keys but the hash itself, whatever the spaces between them."""
    rest = {key: value for key, value in said.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
