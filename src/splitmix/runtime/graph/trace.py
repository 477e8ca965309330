"""From PyTorch to a graph: a net is run on made-up samples, and every operator that runs is written down.

It is run on two numbers of samples: what differs between the two is the number of samples, and nothing else may be.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from splitmix.core.errors import UserError
from splitmix.core.net import entries_of
from splitmix.nets.cost import OperatorWatcher, plainly
from splitmix.runtime.graph.operators import OPERATORS
from splitmix.runtime.graph.record import (
    MOST_STEPS,
    NORM_ENTRIES,
    SAMPLE,
    ConstantRecord,
    Graph,
    NormRecord,
    StepRecord,
)
from splitmix.runtime.graph.windows import WINDOWS
from splitmix.runtime.graph.writers import WRITERS
from splitmix.runtime.strict import LONGEST_NAME, what_is_wrong

SAMPLES = (2, 3)  # how many it is run on
KNOWN = WRITERS | WINDOWS
SAME = ("detach", "clone", "alias", "contiguous", "lift_fresh_copy", "_to_copy")
MADE = ("new_ones", "new_zeros", "new_full", "new_empty", "ones_like", "zeros_like", "full_like")  # of a shape alone


def traced_graph(module: nn.Module, entries: Mapping[str, Sequence[int]], sample: Sequence[int], whole: bool) -> Graph:
    """The graph of a module whose entries have these names and shapes: norms may have noisy twins beside them."""
    if long := [name for name in entries if len(name) > LONGEST_NAME]:
        raise UserError(
            f"the net cannot be bundled: the name of its entry '{long[0]}' has {len(long[0])} characters, and a device "
            f"takes {LONGEST_NAME}; nest its modules less deeply, or name them shorter"
        )
    try:
        first, second = (Trace(module, _samples(count, sample, whole)) for count in SAMPLES)
        return _graph(first, second, entries, sample)
    except ValidationError as error:
        raise UserError(f"the net cannot be bundled: {what_is_wrong(error)}") from None


def _graph(first: "Trace", second: "Trace", entries: Mapping[str, Sequence[int]], sample: Sequence[int]) -> Graph:
    if [(step.op, step.takes, step.gives) for step in first.steps] != [
        (step.op, step.takes, step.gives) for step in second.steps
    ] or first.constants.keys() != second.constants.keys():
        raise UserError(OTHERWISE)
    constants, spreads = _one_for_all(first, second)
    steps = [*spreads, *(_merged(*pair) for pair in zip(first.steps, second.steps, strict=True))]
    needed = _needed(steps, first.answer)
    steps = [step for step in steps if needed & {*step.gives}]
    if len(steps) > MOST_STEPS:
        raise UserError(
            f"the net cannot be bundled: it takes {len(steps):,} steps for a sample, and a device at most "
            f"{MOST_STEPS:,}; give a recurrent layer fewer places, such as by a convolution of stride 2 before it"
        )
    return Graph(
        sample=list(sample),
        whole=SAMPLE in first.whole,
        entries={name: list(shape) for name, shape in entries.items()},
        norms=[NormRecord(clean=name, noisy=_twin(name, entries), eps=eps) for name, eps in first.norms.items()],
        constants={name: value for name, value in constants.items() if name in needed},
        steps=steps,
        answer=first.answer,
    )


OTHERWISE = "the net cannot be bundled: it does other things for two samples than for three"


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
        self.made = 0
        self.whole: set[str] = {SAMPLE} if x.dtype == torch.int64 else set()  # names of whole numbers
        self._entries = entries_of(module)
        for name, value in self._entries.items():
            self.call(name, value)
        self.call(SAMPLE, x)
        module.eval()
        with (
            torch.enable_grad(),
            plainly(),
            ChannelNorms(),
            self,
        ):  # with gradients no layer takes a short cut of its own
            logits = module(x)
        if not isinstance(logits, Tensor) or id(logits) not in self._names:
            raise UserError("the net cannot be bundled: its answer does not depend on the sample")
        self.answer = self._names[id(logits)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.func, kind = func, func._overloadpacket.__name__
        if not any(id(value) in self._names for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)):
            return func(*args, **(kwargs or {}))  # made of no sample and no weight: a constant, if it is ever used
        if kind.endswith("_"):
            self.name(args[0])  # a constant is known by what it was before it is written to
        stays = kind == "as_strided_" and _stays(*args)
        out = func(*args, **(kwargs or {}))
        if kind in MADE:
            return out
        plain = kind.removesuffix("_")  # in place or not is all the same here
        if stays or plain in SAME or (plain == "expand" and out.shape == args[0].shape):
            if args[0].dtype != out.dtype and self.name(args[0]) in self.whole:
                raise self.refusal(f"{kind} to {out.dtype}")
            self.call(self.name(args[0]), out)
        elif plain in KNOWN:
            try:
                KNOWN[plain](self, out, *args, **(kwargs or {}))
            except (TypeError, IndexError):
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
        if OPERATORS[op].gives_whole(names[0] in self.whole):
            self.whole |= {*gives}
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
        prefix = names[0].rpartition(".")[0] if names else ""
        if names != [f"{prefix}.{entry}" for entry in NORM_ENTRIES]:
            raise UserError(
                f"the net cannot be bundled: its batch norm '{prefix or '?'}' has no affine or statistics of its own"
            )
        self.norms[prefix] = eps
        return names[0]

    def _constant(self, value: Tensor) -> str:
        if value.dtype not in (torch.float32, torch.float64, torch.int64, torch.bool):
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
        self.whole |= {name} if whole else set()
        return name

    def _fresh(self) -> str:
        self.made += 1
        return f"%{self.made}"


class ChannelNorms(TorchFunctionMode):
    """Norms of each channel of a sample as other norms that do the same, and of which a graph has a form."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_channel_norm if func is F.instance_norm else func)(*args, **(kwargs or {}))


def _channel_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """What PyTorch's function of these names gives."""
    if use_input_stats:
        return F.group_norm(x, x.shape[1], weight, bias, eps)
    return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)


def _stays(x: Tensor, size: Sequence[int], stride: Sequence[int], *place: int) -> bool:
    """Whether other strides change nothing: PyTorch gives what it pools to one pixel those of channels-last images."""
    steps = zip(x.shape, x.stride(), stride, strict=True) if tuple(size) == x.shape and not place else ()
    return bool(steps) and all(side == 1 or old == new for side, old, new in steps)


def _merged(first: StepRecord, second: StepRecord) -> StepRecord:
    """One step for any number of samples: a size that differs is worked out from the others, or is their number."""
    if first.settings == second.settings:
        return first
    sizes, others = first.settings.get("shape"), second.settings.get("shape")
    shape = _open(sizes, others) if isinstance(sizes, list) and isinstance(others, list) else []
    if first.op == "Reshape" and shape.count(-1) == 1:
        return first.model_copy(update={"settings": {"shape": shape}})
    if first.op == "Expand" and shape.count(-1) == 1 and sizes == _closed(shape, SAMPLES[0]):
        return first.model_copy(update={"op": "Spread", "takes": [*first.takes, SAMPLE], "settings": {"shape": shape}})
    raise UserError(f"the net cannot be bundled: its step '{first.op}' depends on the number of samples")


def _open(sizes: Sequence[int], others: Sequence[int]) -> list[int]:
    """The sizes that two have in common, and -1 for others."""
    alike = len(sizes) == len(others)
    return [one if one == two else -1 for one, two in zip(sizes, others, strict=True)] if alike else []


def _closed(shape: Sequence[int], size: int) -> list[int]:
    return [size if side == -1 else side for side in shape]


def _one_for_all(first: Trace, second: Trace) -> tuple[dict[str, ConstantRecord], list[StepRecord]]:
    """Constants for any number of samples: what is the same for each of them is kept once, and spread over them."""
    constants, spreads = dict(first.constants), []
    for place, (name, one) in enumerate(first.constants.items()):
        other = second.constants[name]
        if one == other:
            continue
        shape = _open(one.shape, other.shape)
        if shape.count(-1) != 1 or one.shape != _closed(shape, SAMPLES[0]):
            raise UserError(OTHERWISE)
        few, many = (np.array(each.numbers).reshape(each.shape) for each in (one, other))
        single = few.take([0], shape.index(-1))
        if one.whole or not all((values == single).all() for values in (few, many)):
            raise UserError(OTHERWISE)
        spare = f"%{first.made + place + 1}"
        constants[spare] = ConstantRecord(shape=list(single.shape), numbers=single.flatten().tolist())
        del constants[name]
        spreads.append(StepRecord(op="Spread", takes=[spare, SAMPLE], gives=[name], settings={"shape": shape}))
    return constants, spreads


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
