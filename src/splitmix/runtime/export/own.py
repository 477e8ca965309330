"""The graph of a bundle as one ONNX file: for nets of a user's own, whose code is not here.

Each base goes in as it is run on a device, with its weights and its norms; only what they share is written here.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.core.inputs import Scaling
from splitmix.runtime.export.formats import onnx_file
from splitmix.runtime.graph.onnx_bytes import LOGITS, NORMS, onnx_bytes
from splitmix.runtime.graph.record import SAMPLE, Graph
from splitmix.runtime.model import Model
from splitmix.runtime.norms import Array, Folded, fold

MOST_BYTES = 2_000_000_000  # of one file: protocol buffers end at 2 GiB
Constants = dict[str, NDArray[Any]]


def write_graph(model: Model, graph: Graph, bases: range, robust: float | None, about: Mapping[str, str]) -> bytes:
    """The file of some bases, with the same inputs and output as those of our nets."""
    from onnx import compose, helper, load_model_from_string, numpy_helper

    if 4 * len(bases) * sum(map(prod, graph.entries.values())) > MOST_BYTES:
        raise UserError(
            f"{len(bases)} bases are too large for one ONNX file; choose a smaller width, or a file for each"
        )
    constants: Constants = {}
    nodes, tensors, votes = _sample_nodes(model.image, model.manifest.scale(), constants), [], []
    shares = model.manifest.shares(len(bases)) or [1 / len(bases)] * len(bases)
    for base, share in zip(bases, shares, strict=True):
        weights, own = model.bundle.read_base(base), f"base-{base}/"
        body = load_model_from_string(onnx_bytes(graph, weights)).graph
        compose.add_prefix_graph(body, own, rename_inputs=False, inplace=True, name_map={NORMS: own + NORMS})
        nodes += [*_norm_nodes(own, _folded(model, graph, base, weights), robust, constants), *body.node]
        tensors += body.initializer
        constants[f"{own}share"] = np.array(share, np.float32)
        votes.append(f"{own}vote")
        nodes.append(helper.make_node("Mul", [own + LOGITS, f"{own}share"], votes[-1:]))
    nodes.append(helper.make_node("Sum", votes, [LOGITS]))
    tensors += [numpy_helper.from_array(value, name) for name, value in constants.items()]
    dial = ["robust"] if graph.dual and robust is None else []
    return onnx_file(nodes, tensors, ["x", *dial], model.image, graph.classes, about, whole=graph.whole)


def _sample_nodes(sample: tuple[int, ...], scaling: Scaling | None, constants: Constants) -> list[Any]:
    """From `x`, as users give samples, to what a net takes: channels first, features scaled."""
    from onnx import helper

    if len(sample) == 3:
        return [helper.make_node("Transpose", ["x"], [SAMPLE], perm=[0, 3, 1, 2])]
    if scaling is None:
        return [helper.make_node("Identity", ["x"], [SAMPLE])]
    mean = np.array(scaling.mean)
    constants["mean"] = mean.astype(np.float32)
    constants["rest"] = (mean - constants["mean"]).astype(np.float32)  # a mean may be far larger than a deviation
    constants["deviation"] = np.array(scaling.deviation, np.float32)
    steps = (("Sub", "x", "mean", "near"), ("Sub", "near", "rest", "centred"), ("Div", "centred", "deviation", SAMPLE))
    return [helper.make_node(op, [value, constant], [made]) for op, value, constant, made in steps]


def _folded(model: Model, graph: Graph, base: int, weights: Mapping[str, Array]) -> Folded:
    """The norms of one base, with the statistics that the model has."""
    norms = {name: weights[name][None] for name in graph.norm_entries()}
    measured = model.calibration
    if measured is not None and base < measured.bases:
        norms |= {name: value[base : base + 1] for name, value in measured.statistics.items()}
    return fold(graph, norms, 1)


def _norm_nodes(own: str, folded: Folded, robust: float | None, constants: Constants) -> list[Any]:
    """The scales and shifts of a base's norms: at the dial that goes in, or once and for all."""
    from onnx import helper

    if folded.rise is None or robust is not None:
        constants |= {own + NORMS: folded.at(robust or 0.0)[0]} if folded.start.size else {}
        return []
    constants |= {"0": np.array(0, np.float32), "1": np.array(1, np.float32)}
    constants |= {f"{own}start": folded.start[0], f"{own}rise": folded.rise[0]}
    return [
        helper.make_node("Clip", ["robust", "0", "1"], [f"{own}dial"]),
        helper.make_node("Mul", [f"{own}dial", f"{own}rise"], [f"{own}risen"]),
        helper.make_node("Add", [f"{own}start", f"{own}risen"], [own + NORMS]),
    ]
