"""Nets for what is no picture: a perceptron for rows of features, and convolutions along signals.

They are plain modules, such as users bring, and are treated alike: stacked by a swap, bundled as a graph.
"""

from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor, nn

from splitmix.nets.layers import scaled


class Perceptron(nn.Sequential):
    """Two hidden layers of 256 for rows of features."""

    image: tuple[int, ...] = (64,)  # of a sample

    def __init__(self, width: Fraction, *, classes: int = 10, sample: Sequence[int] = image) -> None:
        c = scaled(256, width)
        layers = (nn.Linear(sample[0], c), nn.ReLU(), nn.Linear(c, c), nn.ReLU(), nn.Linear(c, classes))
        super().__init__(*layers)
        self.image = tuple(sample)


class SignalCNN(nn.Module):
    """Three convolutions along signals (channel, place), each at half the places of the one before, and their mean."""

    image: tuple[int, ...] = (3, 128)

    def __init__(self, width: Fraction, *, classes: int = 10, sample: Sequence[int] = image) -> None:
        super().__init__()
        self.image = tuple(sample)
        sizes = [sample[0], *(scaled(c, width) for c in (64, 128, 128))]
        blocks = zip(sizes[:-1], sizes[1:], (7, 5, 3), strict=True)
        self.blocks = nn.Sequential(*(layer for block in blocks for layer in _block(*block)))
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(2))


def _block(inputs: int, outputs: int, kernel: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv1d(inputs, outputs, kernel, stride=2, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm1d(outputs), nn.ReLU()
