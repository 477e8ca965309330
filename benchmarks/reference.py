"""A plain reference to measure against: the round as one would first write it.

One process with all threads, stock `nn` layers, one base after the other, a stock DataLoader with a per-sample
transform, one optimizer over all bases of the client, and a merge that keeps every update until the end.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    """One client's images, as stock image sets give them: each becomes a PIL image, then a tensor as by ToTensor."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[i])
        pixels = torch.from_numpy(np.array(image, copy=True)).permute(2, 0, 1).contiguous()
        return pixels.float().div(255), int(self.labels[i])


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
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.n2 = nn.BatchNorm2d(outputs, track_running_stats=False)
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


def plain_round(
    bases: list[nn.Module],
    clients: Sequence[tuple[np.ndarray, np.ndarray]],
    assigned: Sequence[Sequence[int]],
    *,
    batch: int,
    lr: float,
) -> None:
    """Train every client's bases in turn and average what comes back into `bases`."""
    updates: list[tuple[int, int, dict[str, Tensor]]] = []
    for (images, labels), chosen in zip(clients, assigned, strict=True):
        loader = DataLoader(Images(images, labels), batch_size=batch, shuffle=True)
        local = _copies(bases, chosen)
        optimizer = torch.optim.SGD(
            [p for net in local for p in net.parameters()], lr=lr, momentum=0.9, weight_decay=5e-4
        )
        for x, y in loader:
            optimizer.zero_grad()
            for net in local:
                nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        updates += [(base, len(labels), net.state_dict()) for base, net in zip(chosen, local, strict=True)]
    for number, base in enumerate(bases):
        mine = [(samples, state) for which, samples, state in updates if which == number]
        total = sum(samples for samples, _ in mine)
        if mine:
            base.load_state_dict(
                {name: sum(s * state[name] for s, state in mine) / total for name in base.state_dict()}
            )


def _copies(bases: list[nn.Module], chosen: Sequence[int]) -> list[nn.Module]:
    from copy import deepcopy

    return [deepcopy(bases[i]).train() for i in chosen]
