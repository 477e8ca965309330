"""The net of one base, written down: which operators it takes, in which order, on which of its weights.

Nothing in it is code and nothing is a file's name. What it says is checked before anything is made of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated

from pydantic import Field, model_validator

from splitmix.runtime.graph.operators import OPERATORS, Setting, Shape, checked_settings
from splitmix.runtime.strict import ManifestRecord, Name

SAMPLE = "%0"  # the name of what goes in
MOST_STEPS = 4096
MOST_NUMBERS = 1 << 26  # of one value, for one sample
MOST_MACS = 1 << 37  # of one sample: some seconds
FEW, MANY = 1, 3  # samples with which shapes are worked out: what grows must grow as they do

Side = Annotated[int, Field(ge=0, le=1 << 31)]
Sides = Annotated[list[Side], Field(max_length=8)]
Value = Annotated[str, Field(pattern=r"^%[0-9]{1,6}$")]  # what a step makes; no entry of a net is called so


class ConstantRecord(ManifestRecord):
    """A few numbers that are no weights."""

    shape: Sides
    numbers: Annotated[list[int] | list[float], Field(max_length=1 << 16)]

    @property
    def whole(self) -> bool:
        """Whether they are places to look up."""
        return all(type(number) is int for number in self.numbers)


class NormRecord(ManifestRecord):
    """A batch norm: under which names its entries are, and those of its noisy twin."""

    clean: Name
    noisy: Name | None = None
    eps: Annotated[float, Field(ge=0, le=1)]


class StepRecord(ManifestRecord):
    """One operator of ONNX with its settings, or `Norm`, which takes a value and the `weight` of a norm."""

    op: Name
    takes: Annotated[list[Name], Field(min_length=1, max_length=64)]
    gives: Annotated[list[Value], Field(min_length=1, max_length=64)]
    settings: dict[Name, Setting] = Field(default_factory=dict)


class Graph(ManifestRecord):
    """All of it: a sample as the net takes it, entries by name and shape, and the steps from one to the other."""

    sample: Annotated[list[Annotated[int, Field(ge=1, le=1 << 20)]], Field(min_length=1, max_length=4)]
    whole: bool  # whether a sample is of whole numbers, tokens
    entries: Annotated[dict[Name, Sides], Field(max_length=5000)]
    norms: Annotated[list[NormRecord], Field(max_length=1000)]
    constants: Annotated[dict[Value, ConstantRecord], Field(max_length=1000)]
    steps: Annotated[list[StepRecord], Field(min_length=1, max_length=MOST_STEPS)]
    answer: Value

    def __repr__(self) -> str:
        return f"Graph({len(self.steps)} steps, {len(self.entries)} entries, sample {tuple(self.sample)})"

    @property
    def dual(self) -> bool:
        return any(norm.noisy is not None for norm in self.norms)

    @cached_property
    def classes(self) -> int:
        return self.outline.shapes[self.answer][1]

    def norm_entries(self) -> set[str]:
        """Entries of norms: statistics and affine."""
        return {f"{prefix}.{entry}" for norm in self.norms for prefix in twins(norm) for entry in NORM_ENTRIES}

    def channels(self, norm: NormRecord) -> int:
        return self.entries[f"{norm.clean}.weight"][0]

    @cached_property
    def outline(self) -> "Outline":
        """The shapes of all values, for one sample."""
        return worked_out(self, FEW)

    @model_validator(mode="after")
    def _can_be_run(self) -> "Graph":
        _check_names(self)
        _check_norms(self)
        few, many = self.outline, worked_out(self, MANY)
        for name, shape in few.shapes.items():
            if prod(many.shapes[name]) > MANY * prod(shape):
                raise ValueError(f"its value {name} grows faster than the number of samples")
        answers = few.shapes.get(self.answer), many.shapes.get(self.answer)
        if answers != ((FEW, few.shapes[self.answer][-1]), (MANY, few.shapes[self.answer][-1])):
            raise ValueError("its answer is not one row of logits for each sample")
        return self


NORM_ENTRIES = ("weight", "bias", "running_mean", "running_var")


def twins(norm: NormRecord) -> Iterator[str]:
    """The names of a norm, and of its noisy twin if it has one."""
    yield norm.clean
    if norm.noisy is not None:
        yield norm.noisy


@dataclass(frozen=True)
class Outline:
    """What running a graph on some samples means: the shape of every value, and the most numbers that live at once."""

    shapes: dict[str, Shape]
    peak: int

    @cached_property
    def largest(self) -> int:
        """Numbers of the largest value."""
        return max(prod(shape) for shape in self.shapes.values())


def worked_out(graph: Graph, samples: int) -> Outline:
    """Work out the shape of each value in turn; a ValueError says which step cannot be."""
    shapes: dict[str, Shape] = {SAMPLE: (samples, *graph.sample)}
    shapes |= {name: tuple(constant.shape) for name, constant in graph.constants.items()}
    entries = {name: tuple(shape) for name, shape in graph.entries.items()}
    last = {name: place for place, step in enumerate(graph.steps) for name in step.takes}
    fixed = {*entries, *graph.constants}  # what depends on no sample is made once, in the place of a weight
    macs, living, peak = 0, prod(shapes[SAMPLE]), 0
    for place, step in enumerate(graph.steps):
        given = [shapes[name] if name in shapes else entries[name] for name in step.takes]
        try:
            made, work = OPERATORS[step.op].rule(given, step.settings)
        except (ValueError, IndexError) as error:
            raise ValueError(f"its step {place} ({step.op}) cannot be run: {error}") from None
        macs += work
        if len(made) != len(step.gives) or any(prod(s) > samples * MOST_NUMBERS or min(s, default=1) < 1 for s in made):
            raise ValueError(f"its step {place} ({step.op}) gives too much, or nothing")
        shapes |= dict(zip(step.gives, made, strict=True))
        if fixed.issuperset(step.takes):
            fixed |= {*step.gives}
            continue
        living += sum(map(prod, made))
        peak = max(peak, living)
        ended = (name for name in {*step.takes, *step.gives} - fixed if last.get(name, 0) <= place)
        living -= sum(prod(shapes[name]) for name in ended)
    if macs > samples * MOST_MACS:
        raise ValueError("it takes too many multiplications for one sample")
    return Outline(shapes, peak)


def _check_names(graph: Graph) -> None:
    """Every value is made once and before it is used; whole numbers are only looked up."""
    if any(name.startswith("%") for name in graph.entries):
        raise ValueError("it has an entry whose name is kept for values")
    if any(len(c.numbers) != prod(c.shape) for c in graph.constants.values()):
        raise ValueError("it has constants that do not fill their shape")
    whole = {SAMPLE} if graph.whole else set()
    whole |= {name for name, constant in graph.constants.items() if constant.whole}
    known = {SAMPLE, *graph.entries, *graph.constants}
    if SAMPLE in graph.constants:
        raise ValueError("it has a constant in the place of the sample")
    for place, step in enumerate(graph.steps):
        where = f"its step {place}"
        if step.op not in OPERATORS:
            raise ValueError(f"{where} is '{step.op}', which is none of the operators that are run")
        operator = OPERATORS[step.op]
        checked_settings(operator, step.settings, where)
        if not operator.least <= len(step.takes) <= operator.most:
            raise ValueError(f"{where} ({step.op}) takes {len(step.takes)} values")
        if not set(step.takes) <= known:
            raise ValueError(f"{where} ({step.op}) takes what is not there")
        if len({*step.gives}) < len(step.gives) or known & {*step.gives}:
            raise ValueError(f"{where} ({step.op}) gives what is there already")
        if not operator.takes_whole([name in whole for name in step.takes]):
            raise ValueError(f"{where} ({step.op}) mixes whole numbers and others")
        known |= {*step.gives}
        whole |= {*step.gives} if operator.gives_whole(step.takes[0] in whole) else set()
    if graph.answer not in known - whole - {*graph.constants}:
        raise ValueError("its answer is not there")


def _check_norms(graph: Graph) -> None:
    for norm in graph.norms:
        shapes = [graph.entries.get(f"{prefix}.{entry}") for prefix in twins(norm) for entry in NORM_ENTRIES]
        if shapes[0] is None or len(shapes[0]) != 1 or any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"its norm '{norm.clean}' lacks entries, or they are of another shape")
    if len(names := [f"{norm.clean}.weight" for norm in graph.norms]) > len({*names}):
        raise ValueError("it names a norm twice")
    if {step.takes[1] for step in graph.steps if step.op == "Norm"} - {*names}:
        raise ValueError("it has a step with a norm that is not there")
