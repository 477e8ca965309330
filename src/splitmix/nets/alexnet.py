"""AlexNet with batch norms (256x256 images, or any other size): five convolutions and three linears."""

from fractions import Fraction
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from splitmix.nets.layers import Conv, Linear, MakeNorm, ScaledNet, scaled


class AlexNet(ScaledNet):
    """FedBN's AlexNet for photographs and drawings at any width."""

    blocks: ClassVar = {"fc1.weight": 36}  # the last feature map is pooled to 6x6
    behind: ClassVar = {
        "norm1": "conv1",
        "norm2": "conv2",
        "norm3": "conv3",
        "norm4": "conv4",
        "norm5": "conv5",
        "norm6": "fc1",
        "norm7": "fc2",
    }
    image = (256, 256, 3)
    any_size = True  # the adaptive pool makes a map of 6x6 of any image

    def make_layers(self, width: Fraction, classes: int, norm: MakeNorm) -> None:
        c1, c2, c3, c4, c5, f1, f2 = (scaled(c, width) for c in (64, 192, 384, 256, 256, 4096, 4096))
        self.conv1, self.norm1 = Conv(3, c1, 11, stride=4, padding=2), norm(c1)
        self.conv2, self.norm2 = Conv(c1, c2, 5, padding=2), norm(c2)
        self.conv3, self.norm3 = Conv(c2, c3, 3, padding=1), norm(c3)
        self.conv4, self.norm4 = Conv(c3, c4, 3, padding=1), norm(c4)
        self.conv5, self.norm5 = Conv(c4, c5, 3, padding=1), norm(c5)
        self.fc1, self.norm6 = Linear(c5 * 36, f1), norm(f1)
        self.fc2, self.norm7 = Linear(f1, f2), norm(f2)
        self.fc3 = Linear(f2, classes)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        # pooling before the ReLU gives the same values and a quarter of its work
        x = F.relu_(F.max_pool2d(self.norm1(self.conv1(x), robust), 3, 2))
        x = F.relu_(F.max_pool2d(self.norm2(self.conv2(x), robust), 3, 2))
        x = F.relu_(self.norm3(self.conv3(x), robust))
        x = F.relu_(self.norm4(self.conv4(x), robust))
        x = F.relu_(F.max_pool2d(self.norm5(self.conv5(x), robust), 3, 2))
        x = F.adaptive_avg_pool2d(x, 6).flatten(1)
        x = F.relu_(self.norm6(self.fc1(x), robust))
        x = F.relu_(self.norm7(self.fc2(x), robust))
        logits: Tensor = self.fc3(x)
        return logits
