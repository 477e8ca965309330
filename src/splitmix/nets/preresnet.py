"""PreResNet18 (32x32 images): a residual net whose norms stand before its convolutions."""

from fractions import Fraction

from torch import Tensor, nn
from torch.nn import functional as F

from splitmix.nets.layers import Conv, Linear, MakeNorm, ScaledNet, scaled


class PreResNet18(ScaledNet):
    """HeteroFL's ResNet for small images at any width: four stages of two blocks."""

    stack = 2  # more bases side by side gain nothing in training, or lose, depending on the processor
    image = (32, 32, 3)

    def make_layers(self, width: Fraction, classes: int, norm: MakeNorm) -> None:
        sizes = [scaled(c, width) for c in (64, 64, 64, 128, 128, 256, 256, 512, 512)]
        strides = (1, 1, 2, 1, 2, 1, 2, 1)
        # whatever flows into a norm here, the sums of the residual stream included, is a multiple of 1/width
        self.conv = Conv(3, sizes[0], 3, padding=1, bias=False)
        self.body = nn.ModuleList(
            Block(inputs, outputs, norm=norm, stride=stride)
            for inputs, outputs, stride in zip(sizes[:-1], sizes[1:], strides, strict=True)
        )
        self.norm = norm(sizes[-1])
        self.fc = Linear(sizes[-1], classes)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        x = self.conv(x)
        for block in self.body:
            x = block(x, robust)
        logits: Tensor = self.fc(F.relu_(self.norm(x, robust)).mean((2, 3)))
        return logits


class Block(nn.Module):
    """Two 3x3 convolutions added to the residual stream; a 1x1 convolution carries it over a change of shape."""

    def __init__(self, inputs: int, outputs: int, *, norm: MakeNorm, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(inputs), norm(outputs)
        self.conv1 = Conv(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = Conv(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else Conv(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        a = F.relu_(self.norm1(x, robust))
        y: Tensor = self.conv2(F.relu_(self.norm2(self.conv1(a), robust)))
        return y.add_(x if self.shortcut is None else self.shortcut(a))  # no gradient needs y itself
