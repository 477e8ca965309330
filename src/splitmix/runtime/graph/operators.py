"""The operators that a graph may take: how many values each takes, its settings, and the shapes that it gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import numpy as np
from pydantic import Field

Setting = int | float | Annotated[list[int], Field(max_length=16)]
Settings = Mapping[str, Setting]
Shape = tuple[int, ...]
Made = tuple[list[Shape], int]  # the shapes that an operator gives, and its multiplications
Rule = Callable[[list[Shape], Any], Made]

WHOLE = 1 << 31
BOUNDS: dict[str, tuple[type, float, float]] = {  # what a setting is, and from where to where it goes
    **{"axis": (int, -8, 7), "group": (int, 1, 1 << 20), "keepdims": (int, 0, 1), "count_include_pad": (int, 0, 1)},
    **{
        "kernel_shape": (list, 1, 4096),
        "strides": (list, 1, 4096),
        "pads": (list, 0, 4096),
        "dilations": (list, 1, 4096),
        "output_padding": (list, 0, 4096),
    },
    **{"perm": (list, 0, 7), "axes": (list, 0, 7), "shape": (list, -1, WHOLE), "sizes": (list, 1, WHOLE)},
    **{"starts": (list, 0, WHOLE), "ends": (list, 0, WHOLE), "steps": (list, 1, WHOLE)},
    **{"alpha": (float, -1e9, 1e9), "beta": (float, -1e9, 1e9), "epsilon": (float, 0, 1)},
    **{"min": (float, -4e38, 4e38), "max": (float, -4e38, 4e38), "value": (float, -1e9, 1e9)},
}


@dataclass(frozen=True)
class Operator:
    """What is known of one operator: its settings are these, no fewer and no more."""

    rule: Rule
    settings: frozenset[str] = frozenset()
    least: int = 1
    most: int = 1
    moves: bool = False  # numbers only move, so they may be whole ones

    compares: bool = False  # numbers that are both whole or both not

    def takes_whole(self, given: Sequence[bool]) -> bool:
        """Whether each value is whole, or not, as it must be."""
        if self is OPERATORS["Gather"]:
            return list(given) == [False, True]
        if self is OPERATORS["Spread"]:
            return not given[0]
        return not any(given) or (all(given) and (self.moves or self.compares))

    def gives_whole(self, first: bool) -> bool:
        return first and self.moves


def checked_settings(operator: Operator, settings: Settings, where: str) -> None:
    """Refuse other settings than an operator has, and numbers that are out of bounds."""
    if settings.keys() != operator.settings:
        raise ValueError(f"{where} has not the settings of its operator")
    for name, value in settings.items():
        kind, low, high = BOUNDS[name]
        if type(value) is not kind or not all(
            low <= v <= high for v in (value if isinstance(value, list) else [value])
        ):
            raise ValueError(f"{where} has a setting '{name}' that is out of bounds")


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _same(given: list[Shape], settings: Any) -> Made:
    return [given[0]], 0


def _along(given: list[Shape], settings: Any) -> Made:
    given[0][settings["axis"]]
    return [given[0]], 0


def _broadcast(given: list[Shape], settings: Any) -> Made:
    return [np.broadcast_shapes(*given)], 0


def _one_way(given: list[Shape], settings: Any) -> Made:
    """The second is spread over the first."""
    _need(np.broadcast_shapes(*given) == given[0], "its shapes do not fit")
    return [given[0]], 0


def _norm(given: list[Shape], settings: Any) -> Made:
    x, *channels = given
    _need(len(x) >= 2 and all(shape == x[1:2] for shape in channels), "its channels do not fit")
    return [x], 0


def _layer_norm(given: list[Shape], settings: Any) -> Made:
    x, *affine = given
    _need(settings["axis"] < 0 and all(shape == x[settings["axis"] :] for shape in affine), "its features do not fit")
    return [x], 0


def _product(given: list[Shape], settings: Any) -> Made:
    a, b = given
    _need(len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2], "its shapes do not fit")
    shape = (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
    return [shape], prod(shape) * a[-1]


def _gemm(given: list[Shape], settings: Any) -> Made:
    _need(len(given[0]) == len(given[1]) == 2, "its shapes do not fit")
    (shape,), macs = _product(given[:2], settings)
    _need(len(given) < 3 or np.broadcast_shapes(given[2], shape) == shape, "its bias does not fit")
    return [shape], macs


def _windows(sides: Shape, settings: Any, kernel: Sequence[int]) -> Shape:
    """How often a window fits along each side."""
    strides, pads, dilations = settings["strides"], settings["pads"], settings.get("dilations") or [1] * len(sides)
    _need(len(sides) == len(kernel) == len(strides) == len(dilations) == len(pads) / 2, "its windows have other sides")
    around = list(zip(pads[: len(sides)], pads[len(sides) :], strict=True))
    spans = [s + sum(two) - d * (k - 1) - 1 for s, two, d, k in zip(sides, around, dilations, kernel, strict=True)]
    _need(min(spans, default=0) >= 0, "its windows are larger than what they look at")
    return tuple(span // stride + 1 for span, stride in zip(spans, strides, strict=True))


def _conv(given: list[Shape], settings: Any) -> Made:
    x, w, *bias = given
    group, kernel = settings["group"], tuple(settings["kernel_shape"])
    _need(len(x) == len(w) >= 3 and w[2:] == kernel and all(b == w[:1] for b in bias), "its weights do not fit")
    _need(w[0] % group == 0 and w[0] > 0 and x[1] == w[1] * group, "its groups do not fit")
    shape = (x[0], w[0], *_windows(x[2:], settings, kernel))
    return [shape], prod(shape) * prod(w[1:])


def _conv_transpose(given: list[Shape], settings: Any) -> Made:
    x, w, *bias = given
    group, kernel, sides = settings["group"], tuple(settings["kernel_shape"]), len(given[0]) - 2
    _need(len(x) == len(w) >= 3 and w[2:] == kernel and x[1] == w[0] and w[0] % group == 0, "its weights do not fit")
    _need(all(b == (w[1] * group,) for b in bias), "its bias does not fit")
    strides, pads, dilations, more = (settings[key] for key in ("strides", "pads", "dilations", "output_padding"))
    _need(len(strides) == len(dilations) == len(more) == len(pads) / 2 == sides, "its windows have other sides")
    _need(all(m < max(two) for m, *two in zip(more, strides, dilations, strict=True)), "its padding is too much")
    cut = [sum(two) for two in zip(pads[:sides], pads[sides:], strict=True)]
    spans = zip(x[2:], strides, cut, dilations, kernel, more, strict=True)
    shape = (x[0], w[1] * group, *((side - 1) * s - c + d * (k - 1) + m + 1 for side, s, c, d, k, m in spans))
    return [shape], prod(x) * prod(w[1:])


def _pool(given: list[Shape], settings: Any) -> Made:
    (x,) = given
    _need(len(x) >= 3 and max(settings["pads"]) < max(2, min(settings["kernel_shape"])), "its shapes do not fit")
    sides = _windows(x[2:], settings, settings["kernel_shape"])
    return [(*x[:2], *sides)], prod(x[:2]) * prod(sides) * prod(settings["kernel_shape"])


def _reshape(given: list[Shape], settings: Any) -> Made:
    size, shape = prod(given[0]), list(settings["shape"])
    if -1 in shape:
        known = prod(side for side in shape if side != -1)
        _need(shape.count(-1) == 1 and known > 0 and size % known == 0, "its sizes do not fit")
        shape[shape.index(-1)] = size // known
    _need(prod(shape) == size and len(shape) <= 8, "its sizes do not fit")
    return [tuple(shape)], 0


def _transpose(given: list[Shape], settings: Any) -> Made:
    _need(sorted(settings["perm"]) == list(range(len(given[0]))), "its axes do not fit")
    return [tuple(given[0][axis] for axis in settings["perm"])], 0


def _concat(given: list[Shape], settings: Any) -> Made:
    axis = range(len(given[0]))[settings["axis"]]
    rest = [shape[:axis] + shape[axis + 1 :] for shape in given]
    _need(
        all(len(s) == len(given[0]) and r == rest[0] for s, r in zip(given, rest, strict=True)), "its shapes do not fit"
    )
    return [(*rest[0][:axis], sum(shape[axis] for shape in given), *rest[0][axis:])], 0


def _split(given: list[Shape], settings: Any) -> Made:
    x, sizes = given[0], settings["sizes"]
    axis = range(len(x))[settings["axis"]]
    _need(sum(sizes) == x[axis], "its sizes do not fit")
    return [(*x[:axis], size, *x[axis + 1 :]) for size in sizes], 0


def _slice(given: list[Shape], settings: Any) -> Made:
    shape, (axes, starts, ends, steps) = list(given[0]), (settings[key] for key in ("axes", "starts", "ends", "steps"))
    _need(len({*axes}) == len(axes) == len(starts) == len(ends) == len(steps), "its axes do not fit")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        shape[axis] = len(range(shape[axis])[start:end:step])
    return [tuple(shape)], 0


def _gather(given: list[Shape], settings: Any) -> Made:
    x, picks = given
    axis = range(len(x))[settings["axis"]]
    return [(*x[:axis], *picks, *x[axis + 1 :])], 0


def _reduce(given: list[Shape], settings: Any) -> Made:
    x, axes = given[0], settings["axes"]
    _need(0 < len(axes) == len({*axes}) and max(axes) < len(x), "its axes do not fit")
    if settings["keepdims"]:
        return [tuple(1 if axis in axes else side for axis, side in enumerate(x))], 0
    return [tuple(side for axis, side in enumerate(x) if axis not in axes)], 0


def _expand(given: list[Shape], settings: Any) -> Made:
    _need(min(settings["shape"], default=1) > 0, "its sizes do not fit")
    shape = np.broadcast_shapes(given[0], tuple(settings["shape"]))
    _need(shape == tuple(settings["shape"]), "its sizes do not fit")
    return [shape], 0


def _spread(given: list[Shape], settings: Any) -> Made:
    """The first once for each sample of the second, whose number stands where the shape has -1."""
    (x, sample), shape = given, list(settings["shape"])
    _need(shape.count(-1) == 1 and 0 not in shape, "its sizes do not fit")
    whole = tuple(sample[0] if side == -1 else side for side in shape)
    _need(np.broadcast_shapes(x, whole) == whole, "its sizes do not fit")
    return [whole], 0


def _pad(given: list[Shape], settings: Any) -> Made:
    x, pads = given[0], settings["pads"]
    _need(len(pads) == 2 * len(x), "its sides do not fit")
    return [tuple(side + sum(pads[axis :: len(x)]) for axis, side in enumerate(x))], 0


def _named(names: str, rule: Rule, *settings: str, **more: Any) -> dict[str, Operator]:
    return {name: Operator(rule, frozenset(settings), **more) for name in names.split()}


WINDOW = ("kernel_shape", "strides", "pads")
OPERATORS: dict[str, Operator] = {
    **_named("Relu Sigmoid Tanh Softplus HardSwish Erf Exp Log Sqrt Reciprocal Abs Neg Sin Cos Identity", _same),
    **_named("LeakyRelu Elu", _same, "alpha"),
    **_named("HardSigmoid", _same, "alpha", "beta"),
    **_named("Clip", _same, "min", "max"),
    **_named("Softmax LogSoftmax", _along, "axis"),
    **_named("Add Sub Mul Div Pow Min Max", _broadcast, least=2, most=2),
    **_named("PRelu", _one_way, least=2, most=2),
    **_named("MatMul", _product, least=2, most=2),
    **_named("Gemm", _gemm, least=2, most=3),
    **_named("Conv", _conv, *WINDOW, "dilations", "group", least=2, most=3),
    **_named("ConvTranspose", _conv_transpose, *WINDOW, "dilations", "group", "output_padding", least=2, most=3),
    **_named("MaxPool", _pool, *WINDOW, "dilations"),
    **_named("AveragePool", _pool, *WINDOW, "count_include_pad"),
    **_named("ReduceMean ReduceSum ReduceMax ReduceMin", _reduce, "axes", "keepdims"),
    **_named("Reshape", _reshape, "shape", moves=True),
    **_named("Transpose", _transpose, "perm", moves=True),
    **_named("Slice", _slice, "axes", "starts", "ends", "steps", moves=True),
    **_named("Concat", _concat, "axis", most=64),
    **_named("Split", _split, "axis", "sizes"),
    **_named("Gather", _gather, "axis", least=2, most=2),
    **_named("Expand", _expand, "shape"),
    **_named("Spread", _spread, "shape", least=2, most=2),
    **_named("Equal Greater Less", _broadcast, least=2, most=2, compares=True),  # 1 or 0
    **_named("Where", _broadcast, least=3, most=3),
    **_named("Pad", _pad, "pads", "value"),
    **_named("Norm", _norm, least=2, most=2),
    **_named("LayerNormalization", _layer_norm, "axis", "epsilon", least=2, most=3),
    **_named("InstanceNormalization", _norm, "epsilon", least=3, most=3),
}
