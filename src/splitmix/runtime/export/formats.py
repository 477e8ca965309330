"""A plain graph as a file: ONNX, a dozen kinds of nodes named after the layers of the net; a program for ExecuTorch."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F

from splitmix.core.errors import UserError
from splitmix.runtime.export.plain import Array, DialLayer, Fixed, RunFile, Scale, Side, has_dial

OPSET, IR = 17, 8  # of 2022: nothing newer is needed, and older runtimes read it too


class Onnx:
    """Files for ONNX Runtime and all others that read ONNX; run here with ONNX Runtime."""

    suffix, extra = "onnx", "onnx"

    def write(self, graph: fx.GraphModule, image: Sequence[int], about: Mapping[str, str]) -> bytes:
        """The file of a plain graph, with what there is to say about it in its metadata.

        Its inputs are those of the graph: `x`, any number of images, and `robust` if it has a dial; its output is
        `logits`.
        """
        writer = _Writer(graph)
        classes = writer.write(image)
        inputs = [str(node.target) for node in graph.graph.find_nodes(op="placeholder")]
        return onnx_file(writer.nodes, writer.tensors, inputs, image, classes, about)

    def open(self, data: bytes) -> RunFile:
        """The file at work: logits of images at a dial."""
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1  # small nets do not gain by more
        session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]

        def run(x: Array, robust: float) -> Array:
            given = {"x": x, "robust": np.array([robust], np.float32)}
            (logits,) = session.run(["logits"], {name: given[name] for name in names})
            return logits

        return run


class Pte:
    """Programs for ExecuTorch, with kernels of XNNPACK; phones look at one image at a time, so a batch is one."""

    suffix, extra = "pte", "executorch"

    def write(self, graph: fx.GraphModule, image: Sequence[int], about: Mapping[str, str]) -> bytes:
        """The program of a plain graph: `forward(x)`, or `forward(x, robust)` if it has a dial.

        What there is to say about it are methods of it that take nothing and give a text.
        """
        import executorch.exir as exir  # type: ignore[import-not-found, unused-ignore]
        from executorch.backends.xnnpack.partition import xnnpack_partitioner  # type: ignore[import-not-found, unused-ignore]

        inputs = (torch.zeros(1, *image), torch.zeros(1))[: 1 + has_dial(graph)]
        with warnings.catch_warnings():  # what the exporter has to say about PyTorch's own insides
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            program = torch.export.export(graph, inputs)
            facts = {name.replace(".", "_"): text for name, text in about.items()}
            partition = [xnnpack_partitioner.XnnpackPartitioner()]
            edge = exir.to_edge_transform_and_lower(program, partitioner=partition, constant_methods=facts)
            return bytes(edge.to_executorch().buffer)

    def open(self, data: bytes) -> RunFile:
        """The program at work, image after image."""
        from executorch.runtime import Runtime  # type: ignore[import-not-found, unused-ignore]

        program = Runtime.get().load_program(data)
        method = program.load_method("forward")
        inputs = method.metadata.num_inputs()

        def run(x: Array, robust: float) -> Array:
            dial = torch.tensor([robust], dtype=torch.float32)
            answers = [method.execute([image.clone(), dial][:inputs])[0] for image in torch.from_numpy(x).split(1)]
            return torch.cat(answers).numpy()

        return run


def onnx_file(
    nodes: Sequence[Any],
    tensors: Sequence[Any],
    inputs: Sequence[str],
    sample: Sequence[int],
    classes: int,
    about: Mapping[str, str],
    *,
    whole: bool = False,
) -> bytes:
    """Nodes and their tensors as a checked file from some of `x` and `robust` to `logits`; tokens are `whole`."""
    from onnx import TensorProto, checker, helper

    kinds = {"x": TensorProto.INT64 if whole else TensorProto.FLOAT, "robust": TensorProto.FLOAT}
    shapes: dict[str, list[str | int | None]] = {"x": ["batch", *sample], "robust": [1]}
    made = helper.make_graph(
        nodes,
        "splitmix",
        [helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in inputs],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        tensors,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=IR, producer_name="splitmix")
    helper.set_model_props(model, dict(about))
    checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


class _Writer:
    """Writes node after node; each value has the name of the step that makes it."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.answer = next(node.all_input_nodes[0] for node in module.graph.find_nodes(op="output"))

    def write(self, image: Sequence[int]) -> int:
        """All of it; returns the number of classes."""
        steps = self.module.graph.nodes
        dial = [torch.zeros(1)] * (len(self.module.graph.find_nodes(op="placeholder")) - 1)
        with torch.no_grad():
            ShapeProp(self.module).propagate(torch.zeros(1, *image), *dial)
        for step in steps:
            if step.op not in ("placeholder", "output"):
                self._writer(step)(self, step)
        return int(self.answer.meta["tensor_meta"].shape[1])

    def name(self, step: Any) -> str:
        """The value that a step makes."""
        if step.target is getitem:
            return f"{step.args[0].name}_{step.args[1]}"
        return "logits" if step is self.answer else str(step.name)

    def layer(self, step: fx.Node) -> Any:
        return self.module.get_submodule(str(step.target))

    def node(self, kind: str, inputs: Sequence[str], outputs: str | Sequence[str], **settings: Any) -> None:
        from onnx import helper

        outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, name=outputs[0], **settings))

    def keep(self, name: str, value: Tensor) -> str:
        from onnx import numpy_helper

        self.tensors.append(numpy_helper.from_array(value.detach().contiguous().numpy(), name))
        return name

    def _writer(self, step: fx.Node) -> Callable[["_Writer", fx.Node], None]:
        kind = type(self.layer(step)) if step.op == "call_module" else step.target
        if kind not in NODE_WRITERS:
            said = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
            raise UserError(
                f"the net has a step '{said}', which no ONNX file is written for yet; serve it with PyTorch"
            )
        return NODE_WRITERS[kind]


def _conv(to: _Writer, step: fx.Node) -> None:
    layer = to.layer(step)
    settings = {"kernel_shape": layer.kernel_size, "strides": layer.stride, "pads": layer.padding * 2}
    weight, bias = to.keep(f"{step.name}.weight", layer.weight), to.keep(f"{step.name}.bias", layer.bias)
    to.node("Conv", [to.name(step.args[0]), weight, bias], to.name(step), group=layer.groups, **settings)


def _linear(to: _Writer, step: fx.Node) -> None:
    _gemm(to, to.layer(step), step.name, to.name(step.args[0]), to.name(step))


def _side(to: _Writer, step: fx.Node) -> None:
    parts = to.layer(step).parts
    pieces, made = ([f"{step.name}_{what}_{i}" for i in range(len(parts))] for what in ("in", "out"))
    to.node("Split", [to.name(step.args[0])], pieces, axis=1)
    for part, piece, one in zip(parts, pieces, made, strict=True):
        _gemm(to, part, one, piece, one)
    to.node("Concat", made, to.name(step), axis=1)


def _gemm(to: _Writer, layer: nn.Linear, name: str, x: str, y: str) -> None:
    to.node("Gemm", [x, to.keep(f"{name}.weight", layer.weight), to.keep(f"{name}.bias", layer.bias)], y, transB=1)


def _dial(to: _Writer, step: fx.Node) -> None:
    layer, name = to.layer(step), step.name
    ends = [to.keep(f"{name}.{end}", torch.tensor(float(end))) for end in (0, 1)]
    to.node("Clip", [to.name(step.args[0]), *ends], f"{name}.clipped")
    to.node("Mul", [f"{name}.clipped", to.keep(f"{name}.rise", layer.rise)], f"{name}.risen")
    to.node("Add", [to.keep(f"{name}.start", layer.start), f"{name}.risen"], name)
    sizes = to.keep(f"{name}.sizes", torch.tensor(layer.sizes))
    to.node("Split", [name, sizes], [f"{name}_{i}" for i in range(len(layer.sizes))], axis=0)


def _scale(to: _Writer, step: fx.Node) -> None:
    _norm(to, step, [to.name(value) for value in step.args[1:]])


def _fixed(to: _Writer, step: fx.Node) -> None:
    layer = to.layer(step)
    _norm(to, step, [to.keep(f"{step.name}.a", layer.a), to.keep(f"{step.name}.b", layer.b)])


def _norm(to: _Writer, step: fx.Node, numbers: Sequence[str]) -> None:
    """a*x + b as a norm of mean 0 and variance 1: one pass, where a product and a sum would take two."""
    channels = int(step.meta["tensor_meta"].shape[1])
    mean, var = to.keep(f"{step.name}.mean", torch.zeros(channels)), to.keep(f"{step.name}.var", torch.ones(channels))
    to.node("BatchNormalization", [to.name(step.args[0]), *numbers, mean, var], to.name(step), epsilon=0.0)


def _max_pool(to: _Writer, step: fx.Node) -> None:
    size = step.args[1]
    settings = {"kernel_shape": [size] * 2, "strides": [step.kwargs.get("stride") or size] * 2}
    to.node("MaxPool", [to.name(step.args[0])], to.name(step), **settings)


def _average_pool(to: _Writer, step: fx.Node) -> None:
    """Means over windows that may overlap: a product with a fixed matrix along the height, and one along the width."""
    x, size = step.args
    height, width = x.meta["tensor_meta"].shape[2:]  # type: ignore[union-attr]
    rows = to.keep(f"{step.name}.rows", _means(height, size))
    columns = to.keep(f"{step.name}.columns", _means(width, size).t())
    to.node("MatMul", [rows, to.name(x)], f"{step.name}.lower")
    to.node("MatMul", [f"{step.name}.lower", columns], to.name(step))


def _means(inputs: int, outputs: Any) -> Tensor:
    """The matrix (output, input) of the means that adaptive pooling takes along one axis."""
    return F.adaptive_avg_pool1d(torch.eye(inputs).unsqueeze(0), outputs)[0].t()


def _mean(to: _Writer, step: fx.Node) -> None:
    to.node("GlobalAveragePool", [to.name(step.args[0])], f"{step.name}.pooled")
    to.node("Flatten", [f"{step.name}.pooled"], to.name(step), axis=1)


def _plain(kind: str) -> Callable[[_Writer, fx.Node], None]:
    def written(to: _Writer, step: fx.Node) -> None:
        to.node(kind, [to.name(value) for value in step.all_input_nodes], to.name(step))

    return written


NODE_WRITERS: dict[Any, Callable[[_Writer, fx.Node], None]] = {
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    Side: _side,
    DialLayer: _dial,
    Scale: _scale,
    Fixed: _fixed,
    F.max_pool2d: _max_pool,
    F.adaptive_avg_pool2d: _average_pool,
    torch.relu_: _plain("Relu"),
    getitem: lambda to, step: None,  # a piece of a split, which has its name already
    "add_": _plain("Add"),
    "flatten": lambda to, step: to.node("Flatten", [to.name(step.args[0])], to.name(step), axis=1),
    "mean": _mean,
    "permute": lambda to, step: to.node("Transpose", [to.name(step.args[0])], to.name(step), perm=step.args[1:]),
}
