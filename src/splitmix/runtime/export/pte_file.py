"""A plain graph as an ExecuTorch program (.pte) for phones: kernels of XNNPACK, one image at a time."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import fx

from splitmix.runtime.export.plain import Array, RunFile, has_dial


class Pte:
    """Programs for ExecuTorch; its batch is fixed when it is written, and phones look at one image at a time."""

    suffix, extra = "pte", "executorch"

    def write(self, graph: fx.GraphModule, image: Sequence[int], about: Mapping[str, str]) -> bytes:
        """The program of a plain graph: `forward(x)`, or `forward(x, robust)` if it has a dial.

        What there is to say about it are methods of it that take nothing and give a text.
        """
        import executorch.exir as exir  # type: ignore[import-not-found, unused-ignore]
        from executorch.backends.xnnpack.partition import xnnpack_partitioner  # type: ignore[import-not-found, unused-ignore]

        inputs = (torch.zeros(1, *image), torch.zeros(1))[: 1 + has_dial(graph)]
        with _quiet():
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter has to say about PyTorch's own insides."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        yield
