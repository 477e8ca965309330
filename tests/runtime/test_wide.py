"""Narrow convolutions before a pool: made wide where that is the same, and left alone where it is not."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers.bundles import noisy, own_bundle, random_bundle
from splitmix import Model
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets.swap import Swap
from splitmix.runtime.graph.wide import widened

pytest.importorskip("onnxruntime", reason="graphs run on ONNX Runtime")
ATOM = Width(1, 4)


class Chain(nn.Module):
    """Layers one after the other, and a linear at the end."""

    def __init__(self, *layers):
        super().__init__()
        self.layers, self.last = nn.Sequential(*layers), nn.LazyLinear(3)

    def forward(self, x):
        return self.last(self.layers(x).flatten(1))


class Skip(Chain):
    """What the convolution gives is needed twice."""

    def forward(self, x):
        conv, *rest = self.layers
        x = conv(x)
        return self.last(torch.cat([nn.Sequential(*rest)(x).flatten(1), x.flatten(1)], 1))


class Twice(Chain):
    """One convolution before a pool, and again without one."""

    def forward(self, x):
        conv, pool = self.layers
        return self.last(conv(pool(conv(x))).flatten(1))


def conv(channels=4, side=5, **settings):
    return nn.Conv2d(3, channels, side, **{"padding": 2, **settings})


NETS = {  # and whether a convolution of theirs is made wide
    "norm, pool, relu": (lambda: Chain(conv(), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU()), True),
    "norm, relu, pool": (lambda: Chain(conv(), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), True),
    "relu, pool": (lambda: Chain(conv(12, bias=False), nn.ReLU(), nn.MaxPool2d(2)), True),
    "pool": (lambda: Chain(conv(side=(5, 7), padding=(0, 3)), nn.MaxPool2d(2)), True),
    "used again": (lambda: Twice(conv(3), nn.MaxPool2d(2)), True),
    "two of them": (lambda: Chain(conv(3), nn.MaxPool2d(2), conv(4), nn.ReLU(), nn.MaxPool2d(2)), True),
    "odd sides": (lambda: Chain(conv(padding=(2, 1), side=(5, 6)), nn.MaxPool2d(2)), False),
    "a pool of 3x3": (lambda: Chain(conv(), nn.MaxPool2d(3, 2, 1)), False),
    "mean": (lambda: Chain(conv(), nn.AvgPool2d(2)), False),
    "sigmoid": (lambda: Chain(conv(), nn.Sigmoid(), nn.MaxPool2d(2)), False),
    "stride": (lambda: Chain(conv(stride=2), nn.MaxPool2d(2)), False),
    "dilation": (lambda: Chain(conv(dilation=2, padding=4), nn.MaxPool2d(2)), False),
    "groups": (lambda: Chain(conv(6, groups=3), nn.MaxPool2d(2)), False),
    "many channels": (lambda: Chain(conv(13), nn.MaxPool2d(2)), False),
    "small kernel": (lambda: Chain(conv(side=3, padding=1), nn.MaxPool2d(2)), False),
    "needed twice": (lambda: Skip(conv(), nn.MaxPool2d(2)), False),
}


@pytest.mark.parametrize("name", NETS)
def test_a_narrow_convolution_before_a_pool_is_made_wide_and_answers_as_it_did(tmp_path, name):
    make, wide = NETS[name]

    def build(width):
        net = make()
        net(torch.zeros(1, 3, 12, 12))  # its last layer sees how many features there are
        return net

    dual = "norm" in name
    bundle = own_bundle(tmp_path / "b", build, (3, 12, 12), dual=dual)
    graph, weights = widened(bundle.manifest.graph, bundle.read_base(0))
    assert (graph.steps != bundle.manifest.graph.steps) == wide
    assert set(weights) >= {key for step in graph.steps for key in step.takes if key in graph.entries}
    x = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    reference, model = Net(Swap(build, stacked=False, dual=True) if dual else build), Model.load(bundle.path)
    for robust in (0.0, 0.3, 1.0) if dual else (0.0,):
        with torch.no_grad():
            expected = reference.run(ATOM, noisy(reference, Layout(2, ATOM)), x, robust)
        found = model.logits_by_base(x.permute(0, 2, 3, 1), robust=robust)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_the_digit_net_has_both_of_its_pooled_convolutions_made_wide(tmp_path):
    bundle = random_bundle(tmp_path / "b", bases=1)
    graph, weights = widened(bundle.manifest.graph, bundle.read_base(0))
    assert [step.settings["strides"] for step in graph.steps if step.op == "Conv"] == [[2, 2], [2, 2], [1, 1]]
    assert weights["%wide conv1.weight"].shape == (32, 3, 6, 6)
    before, after = (4 * sum(map(np.size, found.values())) for found in (bundle.read_base(0), weights))
    assert after < 1.06 * before
