"""The net of a run as a graph that devices run without its code, checked against PyTorch before it is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn

from splitmix.core.errors import UserError
from splitmix.core.net import Build, Net
from splitmix.core.types import Weights
from splitmix.core.width import Width
from splitmix.nets.cost import Cost, count
from splitmix.nets.swap import Swap
from splitmix.runtime.export import difference
from splitmix.runtime.graph.record import Graph
from splitmix.runtime.graph.trace import traced_graph
from splitmix.runtime.onnx_bases import OnnxBases

MIXING = ("splitmix", "fedensemble")  # methods whose widths are mixes of bases: these can be bundled
MOST = 1e-4  # that logits may differ from PyTorch's; of the largest of them, where that is above 1
CHECKED_SAMPLES = 5


@dataclass(frozen=True)
class Sampled:
    """A run's net at the width of one base, and what one sample is to it."""

    build: Build
    atom: Width
    sample: tuple[int, ...]  # as the net takes it: images have their channels first
    whole: bool = False  # tokens

    @classmethod
    def of(cls, build: Build, atom: Width, image: Sequence[int], kind: str) -> "Sampled":
        """The net of a run, whose images have their channels last."""
        sample = (*image[-1:], *image[:-1]) if len(image) == 3 else tuple(image)
        return cls(build, atom, sample, kind == "tokens")

    def traced(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """The graph of one base, from the shapes of its entries."""
        return traced_graph(
            self.module(), {name: tuple(shape) for name, shape in shapes.items()}, self.sample, self.whole
        )

    def made_up(self, samples: int) -> Tensor:
        """Samples to compare on."""
        rng = torch.Generator().manual_seed(1)
        if self.whole:
            return torch.randint(0, 2, (samples, *self.sample), generator=rng)  # that every vocabulary has
        return torch.rand(samples, *self.sample, generator=rng)

    def module(self) -> nn.Module:
        """One base as its author wrote it: a dial stands in the entries alone."""
        plain = self.build.build if isinstance(self.build, Swap) else self.build
        return plain(self.atom).eval()

    def classes(self) -> int:
        with torch.no_grad():
            return int(self.module()(self.made_up(2)).shape[-1])

    def cost(self) -> Cost:
        """Of one base, for one sample."""
        module, x = self.module(), self.made_up(1)
        macs, activations = count(lambda: module(x))
        return Cost(sum(p.numel() for p in self.build(self.atom).parameters()), macs, activations)


def graph_of(net: Sampled, weights: Weights, order: Sequence[int], *, own: bool) -> Graph | None:
    """The graph of one base, if ONNX Runtime answers with it as PyTorch does: at all widths, and at all dials.

    Without ONNX Runtime there is none: a net of ours can be served without, by its name.
    """
    if find_spec("onnxruntime") is None:
        if own:
            raise UserError(
                "bundling a net of your own needs onnxruntime, which is not installed; "
                'run: pip install "splitmix[device]"'
            )
        return None
    graph = net.traced({name: value.shape[1:] for name, value in weights.items()})
    _check(graph, net, {name: value[list(order)] for name, value in weights.items()})
    return graph


def _check(graph: Graph, net: Sampled, weights: Weights) -> None:
    count, x = len(next(iter(weights.values()))), net.made_up(CHECKED_SAMPLES)
    rows = ({name: value[i].numpy() for name, value in weights.items()} for i in range(count))
    bases = OnnxBases.of(graph, rows)
    reference = Net(net.build)
    reference.axes = len(net.sample)
    for dial in (0.0, 0.5, 1.0) if graph.dual else (0.0,):
        with torch.no_grad():
            expected = reference.run(net.atom, weights, x, dial).numpy()
        votes = bases.votes(0, bases.count, x.numpy(), dial)
        if not np.allclose(bases.votes(0, 1, x[:1].numpy(), dial)[:, 0], votes[:1, 0], rtol=MOST, atol=MOST):
            raise UserError("the net cannot be bundled: what it says of a sample depends on the others in the batch")
        for width in range(1, bases.count + 1):
            found = difference(votes[:width].mean(0), expected[:width].mean(0))
            if not found <= MOST or not np.isfinite(votes).all():  # so that NaN is too much
                raise UserError(
                    f"the net cannot be bundled: at robust {dial:g} its graph differs from PyTorch by {found:.1e}, "
                    f"allowed is {MOST:g}; it may do other things for other samples"
                )
