"""A stand-in for tests: a few 8x8 pictures of ten patterns in four tints, and a net to match."""

from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from splitmix.core.reproducible import rng_for
from splitmix.data.prepare.store import write_arrays
from splitmix.nets.layers import Conv, Linear, MakeNorm, ScaledNet, scaled

NET = "splitmix_paper.stand_in:SmallNet"
DOMAINS = {"amber": (1.0, 0.7, 0.3), "blue": (0.3, 0.5, 1.0), "green": (0.4, 1.0, 0.4), "rose": (1.0, 0.4, 0.6)}
TRAIN, TEST = 24, 12  # pictures of a domain


class SmallNet(ScaledNet):
    """One convolution and two linears at any width."""

    blocks: ClassVar = {"fc1.weight": 16}  # the feature map is 4x4
    image = (8, 8, 3)

    def make_layers(self, width: Fraction, classes: int, norm: MakeNorm) -> None:
        channels, features = scaled(16, width), scaled(32, width)
        self.conv1, self.norm1 = Conv(3, channels, 3, padding=1), norm(channels)
        self.fc1, self.norm2 = Linear(channels * 16, features), norm(features)
        self.fc2 = Linear(features, classes)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        x = F.relu_(F.max_pool2d(self.norm1(self.conv1(x), robust), 2))
        x = F.relu_(self.norm2(self.fc1(x.flatten(1)), robust))
        return self.fc2(x)


def stand_in_folder(folder: Path) -> Path:
    """The folder of the stand-in's pictures, made if need be."""
    patterns = rng_for(0, "tiny patterns").random((10, 8, 8, 1))
    for domain, tint in DOMAINS.items():
        file = folder / f"{domain}.npz"
        if file.exists():
            continue
        rng = rng_for(0, "tiny pictures", domain)
        labels = np.arange(TRAIN + TEST) % 10
        pixels = patterns[labels] * np.array(tint) + 0.1 * rng.random((len(labels), 8, 8, 3))
        images = np.clip(230 * pixels, 0, 255).astype(np.uint8)
        trained = {"x_train": images[:TRAIN], "y_train": labels[:TRAIN]}
        write_arrays(file, {**trained, "x_test": images[TRAIN:], "y_test": labels[TRAIN:]})
    return folder
