"""The Digit CNN (28x28 images): three convolutions and three linears, each but the last behind a batch norm."""

from fractions import Fraction
from typing import ClassVar

from torch import Tensor

from splitmix.nets.images import flat
from splitmix.nets.layers import Conv, Linear, MakeNorm, ScaledNet, scaled


class Digit(ScaledNet):
    """FedBN's CNN for digits at any width."""

    blocks: ClassVar = {"fc1.weight": 49}  # the last feature map is 7x7
    behind: ClassVar = {"norm1": "conv1", "norm2": "conv2", "norm3": "conv3", "norm4": "fc1", "norm5": "fc2"}
    image = (28, 28, 3)
    staged = True

    def make_layers(self, width: Fraction, classes: int, norm: MakeNorm) -> None:
        c1, c2, c3, f1, f2 = (scaled(c, width) for c in (64, 64, 128, 2048, 512))
        self.conv1, self.norm1 = Conv(3, c1, 5, padding=2), norm(c1)
        self.conv2, self.norm2 = Conv(c1, c2, 5, padding=2), norm(c2)
        self.conv3, self.norm3 = Conv(c2, c3, 5, padding=2), norm(c3)
        self.fc1, self.norm4 = Linear(c3 * 49, f1), norm(f1)
        self.fc2, self.norm5 = Linear(f1, f2), norm(f2)
        self.fc3 = Linear(f2, classes)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        x = self.stages.conv(x, self.conv1, self.norm1, robust, pool=True)
        x = self.stages.conv(x, self.conv2, self.norm2, robust, pool=True)
        x = self.stages.conv(x, self.conv3, self.norm3, robust)
        x = self.stages.linear(flat(x), self.fc1, self.norm4, robust)
        x = self.stages.linear(x, self.fc2, self.norm5, robust)
        return self.fc3(x)
