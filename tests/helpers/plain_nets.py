"""Nets as users write them: plain PyTorch at any width, with nothing of ours in them, and samples that they take."""

import torch
from torch import nn
from torch.nn import functional as F

IMAGE, TABLE, SIGNAL, TOKENS = (3, 8, 8), (12,), (3, 8), (5, 8)


class Residual(nn.Module):
    """The usual block of a ResNet, with a convolution of points where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if stride == 1 else nn.Sequential(*shortcut)

    def forward(self, x):
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.shortcut(x))


def resnet(width):
    c = int(16 * width)
    stem = (nn.Conv2d(3, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True))
    body = (Residual(c, c, 1), Residual(c, 2 * c, 2))
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * c, 3))


def mobilenet(width):
    c = int(32 * width)
    stem = (nn.Conv2d(3, c, 3, 1, 1), nn.BatchNorm2d(c), nn.ReLU6())
    depthwise = (nn.Conv2d(c, c, 3, 1, 1, groups=c, bias=False), nn.BatchNorm2d(c), nn.ReLU6())
    pointwise = (nn.Conv2d(c, 2 * c, 1), nn.BatchNorm2d(2 * c), nn.Hardswish())
    return nn.Sequential(*stem, *depthwise, *pointwise, nn.Flatten(), nn.Dropout(0.1), nn.Linear(2 * c * 64, 3))


def group_norm_net(width):
    c = int(32 * width)
    layers = (nn.Conv2d(3, c, 3, 1, 1), nn.GroupNorm(2, c), nn.ReLU(), nn.Conv2d(c, c, 3, 1, 1), nn.GroupNorm(2, c))
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 3))


def mlp(width):
    c = int(64 * width)
    return nn.Sequential(nn.Linear(12, c), nn.ReLU(), nn.Linear(c, c), nn.ReLU(), nn.Linear(c, 3))


def signal_net(width):
    c = int(32 * width)
    layers = (nn.Conv1d(3, c, 3, padding=1), nn.BatchNorm1d(c), nn.ReLU(), nn.Conv1d(c, c, 5), nn.BatchNorm1d(c))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * c, 3))


class Transformer(nn.Module):
    """One encoder layer over five tokens."""

    def __init__(self, width):
        super().__init__()
        size = int(64 * width)
        self.embed = nn.Linear(8, size)
        self.layer = nn.TransformerEncoderLayer(size, 2, 2 * size, dropout=0.0, batch_first=True)
        self.head = nn.Linear(size, 3)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


class ManyOperators(nn.Module):
    """A net with what the others lack: a way up, a choice by value, and a row that stands before each sample's own."""

    def __init__(self, width):
        super().__init__()
        c = int(16 * width)
        self.down, self.up = nn.Conv2d(3, c, 3, 2, 1), nn.ConvTranspose2d(c, c, 3, 2, 1, output_padding=1)
        self.token, self.head = nn.Parameter(torch.zeros(1, 1, c)), nn.Linear(c, 3)

    def forward(self, x):
        x = self.up(self.down(x))
        x = torch.where(x > 0, x, x.masked_fill(x == -1, 0.5)).flatten(2).transpose(1, 2)
        return self.head(torch.cat([self.token.expand(len(x), -1, -1), x], 1).mean(1))


class OddEntries(nn.Module):
    """A net with a weight that stands in two places, a frozen one, whole numbers, and norms of single channels."""

    def __init__(self, width):
        super().__init__()
        c = int(16 * width)
        self.stem, self.norm = nn.Conv2d(3, c, 3, 1, 1), nn.InstanceNorm2d(c, affine=True)
        self.one, self.other, self.head = nn.Linear(c, c), nn.Linear(c, c), nn.Linear(c, 3)
        self.other.weight = self.one.weight
        self.register_buffer("places", torch.arange(8))
        self.row = nn.Embedding(8, c).requires_grad_(False)

    def forward(self, x):
        x = self.norm(self.stem(x)) + self.row(self.places).T[:, None]
        return self.head(F.relu(self.other(F.relu(self.one(x.amax((2, 3)))))))


PLAIN_NETS = {
    **{"resnet": (resnet, IMAGE), "mobilenet": (mobilenet, IMAGE), "group-norm": (group_norm_net, IMAGE)},
    **{"mlp": (mlp, TABLE), "signal": (signal_net, SIGNAL), "transformer": (Transformer, TOKENS)},
}


def samples(name, count=4):
    """Made-up samples for a net."""
    return torch.rand(count, *PLAIN_NETS[name][1], generator=torch.Generator().manual_seed(0))
