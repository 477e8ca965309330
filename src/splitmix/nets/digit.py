"""The Digit CNN (28x28 images): three convolutions and three linears, each but the last behind a batch norm."""

from fractions import Fraction
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from splitmix.nets.layers import Conv, Linear, MakeNorm, ScaledNet, scaled


class Digit(ScaledNet):
    """FedBN's CNN for digits at any width."""

    blocks: ClassVar = {"fc1.weight": 49}  # the last feature map is 7x7
    behind: ClassVar = {"norm1": "conv1", "norm2": "conv2", "norm3": "conv3", "norm4": "fc1", "norm5": "fc2"}
    image = (28, 28, 3)

    def make_layers(self, width: Fraction, classes: int, norm: MakeNorm) -> None:
        c1, c2, c3, f1, f2 = (scaled(c, width) for c in (64, 64, 128, 2048, 512))
        self.conv1, self.norm1 = Conv(3, c1, 5, padding=2), norm(c1)
        self.conv2, self.norm2 = Conv(c1, c2, 5, padding=2), norm(c2)
        self.conv3, self.norm3 = Conv(c2, c3, 5, padding=2), norm(c3)
        self.fc1, self.norm4 = Linear(c3 * 49, f1), norm(f1)
        self.fc2, self.norm5 = Linear(f1, f2), norm(f2)
        self.fc3 = Linear(f2, classes)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        # pooling before the ReLU gives the same values and a quarter of its work
        x = F.relu_(F.max_pool2d(self.norm1(self.conv1(x), robust), 2))
        x = F.relu_(F.max_pool2d(self.norm2(self.conv2(x), robust), 2))
        x = F.relu_(self.norm3(self.conv3(x), robust))
        x = F.relu_(self.norm4(self.fc1(x.flatten(1)), robust))
        x = F.relu_(self.norm5(self.fc2(x), robust))
        return self.fc3(x)
