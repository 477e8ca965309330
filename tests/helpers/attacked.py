"""A small net that has learned, and what it is attacked on."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from helpers.toys import toy_split
from splitmix.core.batches import Optimizer
from splitmix.core.types import Plan


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@cache
def toy_net():
    """A small net that has learned the stripes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh(), nn.Linear(16, 3))
    x, y = toy_batch()
    optimizer = Optimizer(dict(net.named_parameters()), (), Plan(lr=0.3, momentum=0.9))
    for _ in range(60):
        optimizer.step(F.cross_entropy(net(x), y))
    net.zero_grad()
    return net


def toy_batch(samples=64):
    return toy_split(samples, seed=7).batch(torch.arange(samples))
