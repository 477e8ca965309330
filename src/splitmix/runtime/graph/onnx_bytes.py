"""A checked graph and the weights of one base as an ONNX file in memory: all that ONNX Runtime is ever given.

Written by hand, as a device has no `onnx` package: the format is a few nested records (protocol buffers), and only
writing is needed. Tests read it back with the `onnx` package.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.runtime.graph.record import SAMPLE, Graph, NormRecord, StepRecord

Arrays = Mapping[str, NDArray[Any]]
Pieces = list[Any]  # bytes, or memory that is read as such
OPSET, IR = 17, 8  # of 2022: nothing newer is needed
NORMS, LOGITS = "norms", "logits"  # what goes in besides the sample, and what comes out
FLOAT, INT64, BOOL = 1, 7, 9  # types of tensors
AS_INPUTS = {  # settings that ONNX wants as tensors behind the other inputs
    **{"Reshape": ("shape",), "Expand": ("shape",), "Split": ("sizes",), "Pad": ("pads", "value")},
    **{"Slice": ("starts", "ends", "axes", "steps"), "Clip": ("min", "max"), "ReduceSum": ("axes",)},
}

COMPOSED = {  # what takes several nodes, and what writes them
    **{"Equal": "_compared", "Greater": "_compared", "Less": "_compared", "Where": "_chosen", "Spread": "_spread"},
}


def onnx_bytes(graph: Graph, weights: Arrays, *, measuring: bool = False) -> bytes:
    """A file from samples `%0` and `norms`, the scales of all norms and then their shifts, to `logits`.

    When measuring, norms use the batch at hand: the numbers in `norms` are their own affine, and mean and variance of
    each norm come out as well, under `mean i` and `var i`.
    """
    writer = _Writer(graph, weights, measuring)
    nodes = list(writer.nodes())
    kind = INT64 if graph.whole else FLOAT
    inputs = [_value(SAMPLE, kind, ["samples", *graph.sample])]
    if graph.norms:
        inputs.append(_value(NORMS, FLOAT, [2 * sum(map(graph.channels, graph.norms))]))
    outputs = [_value(LOGITS, FLOAT, ["samples", graph.classes])]
    if measuring:
        outputs += [_value(name, FLOAT, [graph.channels(norm)]) for name, norm in writer.statistics()]
    body = [
        *(piece for node in nodes for piece in _field(1, node)),
        *_field(2, [b"splitmix"]),
        *(piece for tensor in writer.tensors() for piece in _field(5, tensor)),
        *(piece for value in inputs for piece in _field(11, value)),
        *(piece for value in outputs for piece in _field(12, value)),
    ]
    return b"".join([_number(1, IR), *_field(7, body), *_field(8, [*_field(1, []), _number(2, OPSET)])])


class _Writer:
    """Writes node after node; what ONNX wants as tensors is kept for the end."""

    def __init__(self, graph: Graph, weights: Arrays, measuring: bool) -> None:
        self.graph, self.weights, self.measuring = graph, weights, measuring
        self.places = {f"{norm.clean}.weight": place for place, norm in enumerate(graph.norms)}
        self.kept: dict[str, NDArray[Any]] = {}

    def nodes(self) -> Iterator[Pieces]:
        sizes = [self.graph.channels(norm) for norm in self.graph.norms]
        if sizes:
            names = [f"{what} {i}" for what in ("scale", "shift") for i in range(len(sizes))]
            yield _node("Split", [NORMS, self._keep("sizes", np.array(sizes * 2))], names, {"axis": 0})
        for number, step in enumerate(self.graph.steps):
            if step.op in COMPOSED:
                yield from getattr(self, COMPOSED[step.op])(number, step)
            else:
                yield self._norm(step) if step.op == "Norm" else self._plain(number, step)
        yield _node("Identity", [self.graph.answer], [LOGITS], {})

    def tensors(self) -> Iterator[Pieces]:
        used = {name for step in self.graph.steps for name in step.takes}
        for name in used & self.graph.entries.keys() - self.places.keys():
            yield _tensor(name, self.weights[name])
        for name, constant in self.graph.constants.items():
            numbers = np.array(constant.numbers, np.int64 if constant.whole else np.float32)
            yield _tensor(name, numbers.reshape(constant.shape))
        for name, value in self.kept.items():
            yield _tensor(name, value)

    def statistics(self) -> Iterator[tuple[str, NormRecord]]:
        """The names of what is measured."""
        for what in ("mean", "var"):
            for place, norm in enumerate(self.graph.norms):
                yield f"{what} {place}", norm

    def _plain(self, number: int, step: StepRecord) -> Pieces:
        settings = dict(step.settings)
        behind = [settings.pop(key) for key in AS_INPUTS.get(step.op, ())]
        kept = [np.array(value, np.float32 if isinstance(value, float) else np.int64) for value in behind]
        names = [self._keep(f"{number} {place}", value) for place, value in enumerate(kept)]
        return _node(step.op, [*step.takes, *names], step.gives, settings)

    def _compared(self, number: int, step: StepRecord) -> Iterator[Pieces]:
        """What holds is 1, else 0: ONNX has truths in the place of numbers."""
        yield _node(step.op, step.takes, [f"{number} holds"], {})
        yield _node("Cast", [f"{number} holds"], step.gives, {"to": FLOAT})

    def _chosen(self, number: int, step: StepRecord) -> Iterator[Pieces]:
        yield _node("Cast", step.takes[:1], [f"{number} holds"], {"to": BOOL})
        yield _node("Where", [f"{number} holds", *step.takes[1:]], step.gives, {})

    def _spread(self, number: int, step: StepRecord) -> Iterator[Pieces]:
        """Expanded to a shape with the number of samples in it."""
        shape: Any = step.settings["shape"]
        place = shape.index(-1)
        sides = [
            self._keep(f"{number} {i}", np.array(part, np.int64))
            for i, part in enumerate((shape[:place], shape[place + 1 :]))
        ]
        yield _node("Shape", step.takes[1:], [f"{number} all"], {"start": 0, "end": 1})
        yield _node("Concat", [sides[0], f"{number} all", sides[1]], [f"{number} shape"], {"axis": 0})
        yield _node("Expand", [step.takes[0], f"{number} shape"], step.gives, {})

    def _norm(self, step: StepRecord) -> Pieces:
        """a*x + b as a norm of mean 0 and variance 1: one pass, where a product and a sum would take two."""
        place = self.places[step.takes[1]]
        norm = self.graph.norms[place]
        channels = self.graph.channels(norm)
        zeros = self._keep(f"zeros {channels}", np.zeros(channels, np.float32))
        ones = self._keep(f"ones {channels}", np.ones(channels, np.float32))
        takes = [step.takes[0], f"scale {place}", f"shift {place}", zeros, ones]
        if not self.measuring:
            return _node("BatchNormalization", takes, step.gives, {"epsilon": 0.0})
        settings = {"epsilon": norm.eps, "momentum": 0.0, "training_mode": 1}
        return _node("BatchNormalization", takes, [*step.gives, f"mean {place}", f"var {place}"], settings)

    def _keep(self, name: str, value: NDArray[Any]) -> str:
        self.kept[name] = value
        return name


def _node(op: str, takes: Iterable[str], gives: Iterable[str], settings: Mapping[str, Any]) -> Pieces:
    return [
        *(piece for name in takes for piece in _text(1, name)),
        *(piece for name in gives for piece in _text(2, name)),
        *_text(4, op),
        *(piece for key, value in settings.items() for piece in _field(5, _attribute(key, value))),
    ]


def _attribute(name: str, value: float | Sequence[int]) -> Pieces:
    """One setting: a fraction, a whole number, or several of these."""
    if isinstance(value, float):
        return [*_text(1, name), _tag(2, 5), struct.pack("<f", value), _number(20, 1)]
    if isinstance(value, int):
        return [*_text(1, name), _number(3, value), _number(20, 2)]
    return [*_text(1, name), *(_number(8, one) for one in value), _number(20, 7)]


def _tensor(name: str, value: NDArray[Any]) -> Pieces:
    kind = INT64 if value.dtype == np.int64 else FLOAT
    numbers = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return [*(_number(1, side) for side in value.shape), _number(2, kind), *_text(8, name), *_field(9, [numbers])]


def _value(name: str, kind: int, shape: Sequence[int | str]) -> Pieces:
    sides = ([_number(1, side)] if isinstance(side, int) else _text(2, side) for side in shape)
    tensor = [_number(1, kind), *_field(2, [piece for side in sides for piece in _field(1, side)])]
    return [*_text(1, name), *_field(2, _field(1, tensor))]


def _text(number: int, text: str) -> Pieces:
    return _field(number, [text.encode()])


def _field(number: int, pieces: Pieces) -> Pieces:
    """A record within another; pieces are joined only once, at the very end, as weights are large."""
    return [_tag(number, 2) + _varint(sum(map(len, pieces))), *pieces]


def _number(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(value & (1 << 64) - 1)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
