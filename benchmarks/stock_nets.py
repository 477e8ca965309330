"""Plain nets of stock layers, at any width: what a reference and other simulators train. Needs PyTorch alone."""

from fractions import Fraction

import torch
from torch import Tensor, nn


def simple_cnn(width: float | Fraction = 1) -> nn.Module:
    """The CNN of pfl-research's CIFAR-10 benchmark: two convolutions, dropout, 1.6 M parameters, Glorot's start."""
    c1, c2, f = (int(c * width) for c in (32, 64, 128))
    net = nn.Sequential(
        *(nn.Conv2d(3, c1, 3), nn.ReLU(), nn.Conv2d(c1, c2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(c2 * 14 * 14, f), nn.ReLU(), nn.Dropout(0.5), nn.Linear(f, 10)),
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return net


def digit_net(width: float | Fraction) -> nn.Module:
    c1, c2, c3, f1, f2 = (int(c * width) for c in (64, 64, 128, 2048, 512))
    return nn.Sequential(
        *(nn.Conv2d(3, c1, 5, padding=2), nn.BatchNorm2d(c1, track_running_stats=False), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(c1, c2, 5, padding=2), nn.BatchNorm2d(c2, track_running_stats=False), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(c2, c3, 5, padding=2), nn.BatchNorm2d(c3, track_running_stats=False), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(c3 * 49, f1), nn.BatchNorm1d(f1, track_running_stats=False), nn.ReLU()),
        *(nn.Linear(f1, f2), nn.BatchNorm1d(f2, track_running_stats=False), nn.ReLU()),
        nn.Linear(f2, 10),
    )


def mobilenet(width: float | Fraction) -> nn.Module:
    c = int(32 * width)
    stem = (nn.Conv2d(3, c, 3, 2, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU6())
    body = (*inverted(c, 2 * c, 1), *inverted(2 * c, 4 * c, 2), *inverted(4 * c, 4 * c, 1))
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * c, 10))


def inverted(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    """Four times the channels, each convolved by itself, and back."""
    c = 4 * inputs
    wide = (nn.Conv2d(inputs, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU6())
    depthwise = (nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False), nn.BatchNorm2d(c), nn.ReLU6())
    return (*wide, *depthwise, nn.Conv2d(c, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


def perceptron(width: float | Fraction) -> nn.Module:
    c = int(512 * width)
    return nn.Sequential(nn.Linear(64, c), nn.ReLU(), nn.Linear(c, c), nn.ReLU(), nn.Linear(c, 10))


class Block(nn.Module):
    """A pre-activation residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.n1 = nn.BatchNorm2d(inputs, track_running_stats=False)
        self.n2 = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.n1(x))
        skip = x if self.shortcut is None else self.shortcut(a)
        return self.conv2(torch.relu(self.n2(self.conv1(a)))) + skip


def preresnet18(width: float | Fraction) -> nn.Module:
    sizes = [int(c * width) for c in (64, 64, 128, 256, 512)]
    blocks = [
        Block(sizes[stage] if part == 0 else sizes[stage + 1], sizes[stage + 1], 2 if stage and part == 0 else 1)
        for stage in range(4)
        for part in range(2)
    ]
    last = nn.BatchNorm2d(sizes[4], track_running_stats=False)
    end = (last, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[4], 10))
    return nn.Sequential(nn.Conv2d(3, sizes[0], 3, 1, 1, bias=False), *blocks, *end)


def small_cnn(width: float | Fraction) -> nn.Module:
    """Three convolutions, for pictures of 32x32 pixels: 11k parameters at width 1/8."""
    c1, c2, c3 = (int(c * width) for c in (64, 128, 256))
    stages = [stage for sizes in ((3, c1), (c1, c2), (c2, c3)) for stage in convolved(*sizes)]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(c3 * 16, 10))


def convolved(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
