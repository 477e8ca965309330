"""From PyTorch to a graph: a net is run on made-up samples, and every operator that runs is written down.

It is run on two numbers of samples: what differs between the two is the number of samples, and nothing else may be.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from splitmix.core.errors import UserError
from splitmix.nets.cost import OperatorWatcher
from splitmix.runtime.graph.record import NORM_ENTRIES, SAMPLE, ConstantRecord, Graph, NormRecord, StepRecord
from splitmix.runtime.graph.writers import WRITERS
from splitmix.runtime.strict import what_is_wrong

SAMPLES = (2, 3)  # how many it is run on
SAME = ("detach", "clone", "alias", "contiguous", "lift_fresh_copy", "_to_copy")
MADE = ("new_ones", "new_zeros", "new_full", "new_empty", "ones_like", "zeros_like", "full_like")  # of a shape alone


def traced_graph(module: nn.Module, entries: Mapping[str, Sequence[int]], sample: Sequence[int], whole: bool) -> Graph:
    """The graph of a module whose entries have these names and shapes: norms may have noisy twins beside them."""
    first, second = (Trace(module, _samples(count, sample, whole)) for count in SAMPLES)
    if [(step.op, step.takes, step.gives) for step in first.steps] != [
        (step.op, step.takes, step.gives) for step in second.steps
    ] or first.constants != second.constants:
        raise UserError("the net cannot be bundled: it does other things for two samples than for three")
    steps = [_merged(*pair) for pair in zip(first.steps, second.steps, strict=True)]
    needed = _needed(steps, first.answer)
    norms = [NormRecord(clean=name, noisy=_twin(name, entries), eps=eps) for name, eps in first.norms.items()]
    try:
        return Graph(
            sample=list(sample),
            whole=whole,
            entries={name: list(shape) for name, shape in entries.items()},
            norms=norms,
            constants={name: value for name, value in first.constants.items() if name in needed},
            steps=[step for step in steps if needed & {*step.gives}],
            answer=first.answer,
        )
    except ValidationError as error:
        raise UserError(f"the net cannot be bundled: {what_is_wrong(error)}") from None


def _samples(count: int, sample: Sequence[int], whole: bool) -> Tensor:
    if whole:
        return torch.zeros(count, *sample, dtype=torch.int64)  # a token that every vocabulary has
    return torch.rand(count, *sample, generator=torch.Generator().manual_seed(0))


class Trace(OperatorWatcher):
    """One run of a module, step by step; values are known by the tensors that they were here."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.steps: list[StepRecord] = []
        self.constants: dict[str, ConstantRecord] = {}
        self.norms: dict[str, float] = {}
        self._names: dict[int, str] = {}
        self._alive: list[Tensor] = []  # so that no other tensor takes the place of one
        self._leads = bool(getattr(module, "stackable", False))  # entries have a leading base axis of one
        self._made = 0
        self._entries = dict(module.state_dict(keep_vars=True))
        for name, value in self._entries.items():
            self.call(name, value)
        self.call(SAMPLE, x)
        module.eval()
        with torch.enable_grad(), self:  # with gradients no layer takes a short cut of its own
            logits = module(x)
        if not isinstance(logits, Tensor) or id(logits) not in self._names:
            raise UserError("the net cannot be bundled: its answer does not depend on the sample")
        self.answer = self._names[id(logits)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not any(id(value) in self._names for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)):
            return out  # made of no sample and no weight: a constant, if it is ever used
        kind = func._overloadpacket.__name__
        if kind in MADE:
            return out
        plain = kind.removesuffix("_")  # in place or not is all the same here
        if plain in SAME or (plain == "expand" and out.shape == args[0].shape):
            if args[0].dtype != out.dtype:
                raise self.refusal(f"{kind} to {out.dtype}")
            self.call(self.name(args[0]), out)
        elif plain in WRITERS:
            try:
                WRITERS[plain](self, out, *args, **(kwargs or {}))
            except TypeError:
                raise self.refusal(f"{kind} with settings of its own") from None
        elif self.is_entry(args[0], out):
            self.call(self.name(args[0]), out)
        elif not isinstance(out, Tensor) or out.numel():
            raise self.refusal(kind)
        return out

    def call(self, name: str, value: Tensor) -> None:
        """Know a tensor by a name from now on."""
        self._names[id(value)] = name
        self._alive.append(value)

    def refusal(self, what: str) -> UserError:
        return UserError(
            f"the net cannot be bundled, as its operator '{what}' is none of those that a device runs; "
            "write it with others, or serve the run with PyTorch"
        )

    def name(self, value: Any) -> str:
        """The name of a tensor or number; what was not known is a constant."""
        if isinstance(value, Tensor):
            if id(value) not in self._names:
                self.call(self._constant(value), value)
            return self._names[id(value)]
        return self._constant(torch.tensor(float(value)))

    def step(self, op: str, takes: Sequence[Any], count: int = 1, **settings: Any) -> Any:
        """Write down one step; the name of what it gives, or the names."""
        gives = [self._fresh() for _ in range(count)]
        names = [value if isinstance(value, str) else self.name(value) for value in takes]
        kept = {key: list(map(int, value)) if isinstance(value, Sequence) else value for key, value in settings.items()}
        self.steps.append(StepRecord(op=op, takes=names, gives=gives, settings=kept))
        return gives[0] if count == 1 else gives

    def reshaped(self, value: Any, shape: Sequence[int]) -> str:
        return str(self.step("Reshape", [value], shape=shape))

    def is_entry(self, value: Tensor, out: Tensor) -> bool:
        """Whether a view is an entry as its file has it: without the axis of bases."""
        name = self._names.get(id(value), "")
        return self._leads and name in self._entries and out.shape == self._entries[name].shape[1:]

    def norm(self, weight: Tensor, *others: Tensor, eps: float) -> str:
        """The name of the weight of a norm all of whose entries are the net's."""
        names = [self._names.get(id(value), "") for value in (weight, *others) if value is not None]
        prefix = names[0].removesuffix(".weight") if names else ""
        if names != [f"{prefix}.{entry}" for entry in NORM_ENTRIES]:
            raise UserError(
                f"the net cannot be bundled: its batch norm '{prefix or '?'}' has no affine or statistics of its own"
            )
        self.norms[prefix] = eps
        return names[0]

    def _constant(self, value: Tensor) -> str:
        if value.dtype not in (torch.float32, torch.float64, torch.int64):
            raise self.refusal(f"a constant of {value.dtype}")
        if value.numel() > 1 << 16:
            raise UserError(
                f"the net cannot be bundled: it makes {value.numel():,} constant numbers; keep them as a buffer"
            )
        numbers = value.detach().flatten().tolist()
        whole = value.dtype == torch.int64
        finite = (
            numbers if whole else [max(-3e38, min(3e38, float(number))) for number in numbers]
        )  # also -inf of masks
        name = self._fresh()
        self.constants[name] = ConstantRecord(shape=list(value.shape), numbers=finite)
        return name

    def _fresh(self) -> str:
        self._made += 1
        return f"%{self._made}"


def _merged(first: StepRecord, second: StepRecord) -> StepRecord:
    """One step for any number of samples: a size that differs is worked out from the others."""
    if first.settings == second.settings:
        return first
    sizes, others = first.settings.get("shape"), second.settings.get("shape")
    differing = []
    if first.op == "Reshape" and isinstance(sizes, list) and isinstance(others, list) and len(sizes) == len(others):
        differing = [place for place, two in enumerate(zip(sizes, others, strict=True)) if two[0] != two[1]]
    if not isinstance(sizes, list) or len(differing) != 1:
        raise UserError(f"the net cannot be bundled: its step '{first.op}' depends on the number of samples")
    shape = [-1 if place in differing else size for place, size in enumerate(sizes)]
    return first.model_copy(update={"settings": {"shape": shape}})


def _needed(steps: Sequence[StepRecord], answer: str) -> set[str]:
    """The values that lead to the answer."""
    needed = {answer}
    for step in reversed(steps):
        if needed & {*step.gives}:
            needed |= {*step.takes}
    return needed


def _twin(clean: str, entries: Mapping[str, Sequence[int]]) -> str | None:
    found = (f"{name}.noisy" for name in (clean, clean.removesuffix(".clean")))
    return next((name for name in found if f"{name}.weight" in entries), None)
