"""What each operator of PyTorch is in the operators of a graph; one that is not here is refused by its name."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

LARGE = 3e38  # where there is no bound
MOST_SPLIT, MOST_JOINED = 16, 64  # values that one step gives, or takes
Write = Callable[..., None]
WRITERS: dict[str, Write] = {}


def writes_in(table: dict[str, Write], *names: str) -> Callable[[Write], Write]:
    """Puts a writer into a table, under the names of PyTorch's operators."""

    def registered(write: Write) -> Write:
        table.update(dict.fromkeys(names, write))
        return write

    return registered


_writes = partial(writes_in, WRITERS)


# --- one number at a time ---

for _theirs, _ours in {
    **{"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish", "erf": "Erf", "exp": "Exp"},
    **{
        "log": "Log",
        "sqrt": "Sqrt",
        "reciprocal": "Reciprocal",
        "abs": "Abs",
        "neg": "Neg",
        "sin": "Sin",
        "cos": "Cos",
    },
}.items():
    WRITERS[_theirs] = lambda to, out, x, _op=_ours: to.call(to.step(_op, [x]), out)


WRITERS |= {
    "leaky_relu": lambda to, out, x, slope=0.01: to.call(to.step("LeakyRelu", [x], alpha=float(slope)), out),
    "hardsigmoid": lambda to, out, x: to.call(to.step("HardSigmoid", [x], alpha=1 / 6, beta=0.5), out),
    "silu": lambda to, out, x: to.call(to.step("Mul", [x, to.step("Sigmoid", [x])]), out),
    "mish": lambda to, out, x: to.call(to.step("Mul", [x, to.step("Tanh", [to.step("Softplus", [x])])]), out),
    "rsqrt": lambda to, out, x: to.call(to.step("Reciprocal", [to.step("Sqrt", [x])]), out),
    "clamp_max": lambda to, out, x, top: to.call(to.step("Clip", [x], min=-LARGE, max=float(top)), out),
    "_prelu_kernel": lambda to, out, x, slope: to.call(to.step("PRelu", [x, slope]), out),
}


@_writes("hardtanh", "clamp", "clamp_min")
def _clip(to: Any, out: Tensor, x: Tensor, min: Any = None, max: Any = None, **more: Any) -> None:
    low, high = more.get("min_val", min), more.get("max_val", max)
    bounds = {"min": -LARGE if low is None else float(low), "max": LARGE if high is None else float(high)}
    to.call(to.step("Clip", [x], **bounds), out)


@_writes("elu")
def _elu(to: Any, out: Tensor, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> None:
    if input_scale != 1:
        raise to.refusal("elu of another scale")
    to.call(to.step("Mul", [to.step("Elu", [x], alpha=float(alpha)), float(scale)]), out)


@_writes("softplus")
def _softplus(to: Any, out: Tensor, x: Tensor, beta: float = 1, threshold: float = 20) -> None:
    if beta != 1:
        raise to.refusal(f"softplus with beta {beta}")
    to.call(to.step("Softplus", [x]), out)


@_writes("gelu")
def _gelu(to: Any, out: Tensor, x: Tensor, approximate: str = "none") -> None:
    if approximate == "tanh":
        cube = to.step("Mul", [to.step("Mul", [x, x]), x])
        inside = to.step("Add", [x, to.step("Mul", [cube, 0.044715])])
        bent = to.step("Tanh", [to.step("Mul", [inside, math.sqrt(2 / math.pi)])])
    else:
        bent = to.step("Erf", [to.step("Mul", [x, math.sqrt(0.5)])])
    to.call(to.step("Mul", [to.step("Mul", [x, to.step("Add", [bent, 1.0])]), 0.5]), out)


def _softmax(op: str) -> Write:
    return lambda to, out, x, axis, half: to.call(to.step(op, [x], axis=axis), out)


WRITERS |= {"_softmax": _softmax("Softmax"), "_log_softmax": _softmax("LogSoftmax")}


@_writes("_safe_softmax")
def _safe_softmax(to: Any, out: Tensor, x: Tensor, axis: int, half: Any = None) -> None:
    """Zeros where all is masked."""
    there = to.step("Greater", [to.step("ReduceMax", [x], axes=[axis % x.dim()], keepdims=1), -LARGE / 2])
    to.call(to.step("Mul", [to.step("Softmax", [x], axis=axis), there]), out)


# --- two values ---


def _sum(op: str) -> Write:
    def write(to: Any, out: Tensor, a: Any, b: Any, alpha: float = 1) -> None:
        to.call(to.step(op, [a, b if alpha == 1 else to.step("Mul", [b, float(alpha)])]), out)

    return write


@_writes("glu")
def _glu(to: Any, out: Tensor, x: Tensor, axis: int = -1) -> None:
    one, other = to.step("Split", [x], 2, axis=axis % x.dim(), sizes=[out.shape[axis]] * 2)
    to.call(to.step("Mul", [one, to.step("Sigmoid", [other])]), out)


WRITERS |= {"add": _sum("Add"), "sub": _sum("Sub")}
WRITERS["rsub"] = lambda to, out, a, b, alpha=1: WRITERS["sub"](to, out, b, a, alpha)
for _theirs, _ours in {
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "minimum": "Min",
    "maximum": "Max",
    "mm": "MatMul",
    "bmm": "MatMul",
}.items():
    WRITERS[_theirs] = lambda to, out, a, b, _op=_ours: to.call(to.step(_op, [a, b]), out)


@_writes("addmm")
def _gemm(to: Any, out: Tensor, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> None:
    if (beta, alpha) != (1, 1):
        raise to.refusal("addmm with factors")
    to.call(to.step("Gemm", [a, b, bias]), out)


@_writes("baddbmm")
def _batched(to: Any, out: Tensor, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> None:
    product = to.step("MatMul", [a, b])
    product = product if alpha == 1 else to.step("Mul", [product, float(alpha)])
    to.call(product if beta == 0 else to.step("Add", [product, bias]), out)


@_writes("_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention")
def _attention(
    to: Any, out: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, **more: Any
) -> None:
    """softmax(q k' / sqrt(d) + mask) v."""
    scale, mask = more.get("scale"), more.get("attn_mask")
    turned = to.step("Transpose", [k], perm=[*range(k.dim() - 2), k.dim() - 1, k.dim() - 2])
    scores = to.step("Mul", [to.step("MatMul", [q, turned]), float(scale or q.shape[-1] ** -0.5)])
    if is_causal:
        mask = torch.full((q.shape[-2], k.shape[-2]), -LARGE).triu(1)
    scores = scores if mask is None else to.step("Add", [scores, mask])
    found = to.step("MatMul", [to.step("Softmax", [scores], axis=-1), v])
    to.call(found, out if isinstance(out, Tensor) else out[0])


@_writes("embedding")
def _embedding(to: Any, out: Tensor, weight: Tensor, places: Tensor, *more: Any, **others: Any) -> None:
    to.call(to.step("Gather", [weight, places], axis=0), out)


# --- norms ---


@_writes("native_batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit")
def _batch_norm(to: Any, out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *settings: Any) -> None:
    name = to.norm(weight, bias, mean, var, eps=float(settings[-1]))
    to.call(to.step("Norm", [x, name]), out[0])


@_writes("native_layer_norm")
def _layer_norm(to: Any, out: Any, x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> None:
    given = [x, torch.ones(tuple(shape)) if weight is None else weight, *([] if bias is None else [bias])]
    to.call(to.step("LayerNormalization", given, axis=-len(shape), epsilon=float(eps)), out[0])


@_writes("native_group_norm")
def _group_norm(
    to: Any, out: Any, x: Tensor, weight: Any, bias: Any, n: int, channels: int, sides: int, groups: int, eps: float
) -> None:
    """A norm of each group as one of each channel of as many, and then the affine of the real channels."""
    flat = to.reshaped(x, (x.shape[0], groups, x.numel() // (x.shape[0] * groups)))
    with torch.utils._python_dispatch._disable_current_modes():
        ones, zeros = torch.ones(groups), torch.zeros(groups)
    made = to.step("InstanceNormalization", [flat, ones, zeros], epsilon=float(eps))
    made, along = to.reshaped(made, x.shape), (channels,) + (1,) * (x.dim() - 2)
    made = made if weight is None else to.step("Mul", [made, to.reshaped(weight, along)])
    to.call(made if bias is None else to.step("Add", [made, to.reshaped(bias, along)]), out[0])


# --- sums ---


def _reduced(op: str) -> Write:
    def write(to: Any, out: Tensor, x: Tensor, axes: Any = None, keepdim: bool = False, **more: Any) -> None:
        chosen = range(x.dim()) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
        places = sorted(axis % x.dim() for axis in chosen)
        to.call(to.step(op, [x], axes=places, keepdims=int(keepdim)), out)

    return write


for _theirs, _ours in {"mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin"}.items():
    WRITERS[_theirs] = _reduced(_ours)


@_writes("max", "min")
def _extreme(to: Any, out: Any, x: Tensor, axis: int, keepdim: bool = False) -> None:
    """The largest along an axis; where it stands is not known on a device."""
    op = "ReduceMax" if to.func._overloadpacket.__name__ == "max" else "ReduceMin"
    to.call(to.step(op, [x], axes=[axis % x.dim()], keepdims=int(keepdim)), out[0])


@_writes("linalg_vector_norm")
def _length(to: Any, out: Tensor, x: Tensor, order: float = 2, axes: Any = None, keepdim: bool = False) -> None:
    if order != 2:
        raise to.refusal(f"a norm of order {order}")
    places = sorted(axis % x.dim() for axis in axes or range(x.dim()))
    squares = to.step("ReduceSum", [to.step("Mul", [x, x])], axes=places, keepdims=int(keepdim))
    to.call(to.step("Sqrt", [squares]), out)


# --- what holds: 1 where it does, 0 where not ---


def _compares(op: str, *, otherwise: bool = False) -> Write:
    def write(to: Any, out: Tensor, a: Any, b: Any) -> None:
        if not isinstance(b, Tensor) and to.name(a) in to.whole:
            b = torch.tensor(int(b)) if b == int(b) else b
        found = to.step(op, [a, b])
        to.call(to.step("Sub", [1.0, found]) if otherwise else found, out)

    return write


WRITERS |= {
    **{"eq": _compares("Equal"), "ne": _compares("Equal", otherwise=True)},
    **{"gt": _compares("Greater"), "le": _compares("Greater", otherwise=True)},
    **{"lt": _compares("Less"), "ge": _compares("Less", otherwise=True)},
    "logical_not": lambda to, out, x: to.call(to.step("Sub", [1.0, x]), out),
    "where": lambda to, out, holds, a, b: to.call(to.step("Where", [holds, a, b]), out),
    "masked_fill": lambda to, out, x, holds, value: to.call(to.step("Where", [holds, value, x]), out),
}
for _names, _ours in (("logical_and", "bitwise_and"), "Mul"), (("logical_or", "bitwise_or"), "Max"):
    for _theirs in _names:
        WRITERS[_theirs] = lambda to, out, a, b, _op=_ours: to.call(to.step(_op, [a, b]), out)
WRITERS["bitwise_not"] = WRITERS["logical_not"]  # of what holds; other whole numbers are refused


# --- shapes ---


@_writes("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten", "unflatten")
def _view(to: Any, out: Tensor, x: Tensor, *settings: Any, **more: Any) -> None:
    to.call(to.name(x) if to.is_entry(x, out) else to.reshaped(x, out.shape), out)


@_writes("permute")
def _permute(to: Any, out: Tensor, x: Tensor, axes: Sequence[int]) -> None:
    to.call(to.step("Transpose", [x], perm=[axis % x.dim() for axis in axes]), out)


@_writes("transpose", "t")
def _transpose(to: Any, out: Tensor, x: Tensor, one: int = 0, other: int = 1) -> None:
    axes = list(range(x.dim()))
    axes[one], axes[other] = axes[other], axes[one]
    to.call(to.step("Transpose", [x], perm=axes), out)


@_writes("expand")
def _expand(to: Any, out: Tensor, x: Tensor, *settings: Any, **more: Any) -> None:
    to.call(to.step("Expand", [x], shape=out.shape), out)


@_writes("repeat")
def _repeat(to: Any, out: Tensor, x: Tensor, times: Sequence[int]) -> None:
    sides = (1,) * (len(times) - x.dim()) + tuple(x.shape)
    if any(side > 1 < count for side, count in zip(sides, times, strict=True)):
        raise to.refusal("repeat of more than single entries")
    to.call(to.step("Expand", [x], shape=out.shape), out)


@_writes("cat")
def _cat(to: Any, out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> None:
    _joined(to, out, [to.name(part) for part in parts], axis)


@_writes("stack")
def _stack(to: Any, out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> None:
    place = axis % out.dim()
    rows = [to.reshaped(part, (*part.shape[:place], 1, *part.shape[place:])) for part in parts]
    _joined(to, out, rows, place)


def _joined(to: Any, out: Tensor, parts: Sequence[str], axis: int) -> None:
    while len(parts) > MOST_JOINED:  # some at a time, such as the places of a long signal
        starts = range(0, len(parts), MOST_JOINED)
        parts = [to.step("Concat", parts[start : start + MOST_JOINED], axis=axis) for start in starts]
    to.call(to.step("Concat", parts, axis=axis), out)


@_writes("split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_chunk")
def _split(to: Any, out: Sequence[Tensor], x: Tensor, *settings: Any, **more: Any) -> None:
    flat = out[0].dim() < x.dim()  # unbind drops the axis
    axis = more.get("dim", settings[-1] if len(settings) > (not flat) else 0) % x.dim()
    sizes = [1 if flat else part.shape[axis] for part in out]
    if len(out) <= MOST_SPLIT:
        names = to.step("Split", [x], len(out), axis=axis, sizes=sizes)
        names = [names] if len(out) == 1 else names
    else:
        names = [_cut(to, x, axis, end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    for name, part in zip(names, out, strict=True):
        to.call(to.reshaped(name, part.shape) if flat else name, part)


def _cut(to: Any, x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Any:
    return to.step("Slice", [x], axes=[axis], starts=[start], ends=[end], steps=[step])


@_writes("select")
def _select(to: Any, out: Tensor, x: Tensor, axis: int, place: int) -> None:
    axis, place = axis % x.dim(), place % x.shape[axis]
    to.call(to.reshaped(_cut(to, x, axis, place, place + 1), out.shape), out)


@_writes("slice")
def _slice(to: Any, out: Tensor, x: Tensor, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> None:
    if out.shape == x.shape and step == 1:
        to.call(to.name(x), out)
        return
    axis = axis % x.dim()
    first, last, _ = slice(start, end).indices(x.shape[axis])
    to.call(_cut(to, x, axis, first, last, step), out)


@_writes("constant_pad_nd")
def _pad(to: Any, out: Tensor, x: Tensor, pads: Sequence[int], value: float = 0) -> None:
    before, after = [0] * x.dim(), [0] * x.dim()
    for place in range(len(pads) // 2):
        before[-1 - place], after[-1 - place] = pads[2 * place], pads[2 * place + 1]
    if min(*before, *after) < 0:
        raise to.refusal("a cut by negative padding")
    to.call(to.step("Pad", [x], pads=[*before, *after], value=float(value)), out)
