"""Small things that the tests share: nets on 6x6 images, clients that hold a few of those, and their federation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from splitmix.core.batches import ClientData, Split
from splitmix.core.net import Net
from splitmix.core.objective import Objective
from splitmix.core.rounds import Federation, federate
from splitmix.core.types import Layout, Part, Plan, Profile
from splitmix.core.width import Width
from splitmix.engines.simulator import Simulator
from splitmix.methods.bases import SplitMix
from splitmix.nets.layers import Conv, Linear, Norm, scaled
from splitmix.objectives.losses import Plain

ATOM, HALF, FULL = Width(1, 4), Width(1, 2), Width(1)
METHOD = SplitMix(ATOM, count=4, seed=3)
LAYOUT = METHOD.layout
PLAN = Plan(lr=0.1, epochs=1, batch=4)


class Tiny(nn.Module):
    """A convolution and two linears on images of 6x6, each but the last behind a norm."""

    stackable = True
    blocks: ClassVar = {"fc1.weight": 9}  # the last feature map is 3x3

    def __init__(self, width: Width, *, dual: bool = False) -> None:
        super().__init__()
        channels = scaled(8, width)
        self.conv, self.norm1 = Conv(1, channels, 3, padding=1), Norm(channels, dual=dual)
        self.fc1, self.norm2 = Linear(9 * channels, channels), Norm(channels, dual=dual)
        self.fc2 = Linear(channels, 3)

    def forward(self, x, robust=0.0):
        x = F.relu(F.max_pool2d(self.norm1(self.conv(x), robust), 2))
        return self.fc2(F.relu(self.norm2(self.fc1(x.flatten(1)), robust)))


class Slim(nn.Module):
    """Four channels: a weight for each, and a linear on the two pixels of each; small enough to work by hand."""

    stackable = True
    blocks: ClassVar = {"fc.weight": 2}

    def __init__(self, width: Width) -> None:
        super().__init__()
        channels = scaled(4, width)
        self.conv = Conv(1, channels, 1, bias=False)
        self.fc = Linear(2 * channels, 1)


def plain_build(width: Width) -> nn.Module:
    """A net as a user writes it."""
    channels = int(8 * width)
    layers = (nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(16 * channels, 3))


class Exact(Objective):
    """An objective in float64, where rounding hides nothing and turns no sign."""

    def __init__(self, objective=None):
        self.objective = objective or Plain()

    def __call__(self, forward, x, y, rng):
        return self.objective(forward, x.double(), y, rng)


def bases(*numbers: int, width: Width = ATOM) -> tuple[Part, ...]:
    return tuple(Part(number, width) for number in numbers)


def toy_split(samples: int, seed: int = 0) -> Split:
    """Noise on which one of three stripes is bright: the class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (samples,), generator=rng)
    images = torch.randint(0, 100, (samples, 6, 6, 1), generator=rng)
    images += 100 * (torch.arange(6) // 2 == labels[:, None])[:, None, :, None]
    return Split(images.to(torch.uint8), labels, torch.arange(samples))


@dataclass(frozen=True)
class ToyClients:
    """Four clients of uneven size and budget."""

    sizes: tuple[int, ...] = (13, 9, 16, 8)
    budgets: tuple[Width, ...] = (ATOM, ATOM, HALF, FULL)

    def profiles(self, round):
        return [Profile(i, *pair) for i, pair in enumerate(zip(self.budgets, self.sizes, strict=True))]

    def data(self, client):
        train, val, test = (toy_split(self.sizes[client], 10 * client + i) for i in range(3))
        return ClientData(train, val, test)


def toy_simulator(clients=None, *, net=None, workers=1, objective=None, layout: Layout = LAYOUT) -> Simulator:
    return Simulator(net or Net(Tiny), layout, clients or ToyClients(), objective or Plain(), workers=workers)


def toy_weights(net=None, *, seed=0, tracked=False):
    return (net or Net(Tiny)).init(LAYOUT, seed, tracked=tracked)


def toy_federation(*, rounds=3, seed=0, cohort=3, local_norms=False) -> Federation:
    return Federation(rounds, PLAN, cohort=cohort, seed=seed, local_norms=local_norms)


def toy_run(how=None, *, workers=1, weights=None, **settings):
    """The weights after all rounds."""
    with toy_simulator(workers=workers) as engine:
        return federate(METHOD, engine, engine.net, weights or toy_weights(), how or toy_federation(), **settings)


def to_bytes(weights) -> dict[str, bytes]:
    """For comparing to the bit, whatever the order of the names."""
    return {name: value.numpy().tobytes() for name, value in weights.items()}
