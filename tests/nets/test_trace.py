"""Users' own nets: what a batch norm follows, where channels are flattened, and which channels can be shifted."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import splitmix
from helpers.plain_nets import PLAIN_NETS, resnet, samples
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets.layers import Conv
from splitmix.nets.trace import channels_roll, rescaled_names, trace

NARROW, FULL = Width(1, 4), Width(1)
BODY = {"3.conv1", "3.conv2", "4.conv1", "4.conv2", "4.shortcut.0"}
KNOWN = {  # entries that start smaller, pixels of each channel at the flattened input, whether channels can be shifted
    "resnet": ({f"{layer}.weight" for layer in BODY}, {"7.weight": 1}, True),
    "mobilenet": ({"6.weight", "6.bias"}, {"11.weight": 64}, True),
    "group-norm": (set(), {"8.weight": 1}, False),
    "mlp": (set(), {}, True),
    "signal": ({"3.weight", "3.bias"}, {"6.weight": 4}, True),
    "transformer": (set(), {}, False),
}


@pytest.mark.parametrize("name", PLAIN_NETS)
def test_only_what_a_batch_norm_follows_starts_smaller(name):
    build, _ = PLAIN_NETS[name]
    net = Net(build)
    net.rescaled = rescaled_names(net, NARROW, trace(build(NARROW), samples(name)))
    assert net.rescaled == KNOWN[name][0]
    assert rescaled_names(net, FULL, trace(build(FULL), samples(name))) == set()
    small, plain = (net.init(Layout(1, NARROW), 0, rescale=rescale) for rescale in (True, False))
    for entry, value in plain.items():
        assert_close(small[entry], value * 0.5 if entry in net.rescaled else value)


@pytest.mark.parametrize("name", PLAIN_NETS)
def test_channels_can_be_shifted_where_the_net_stays_the_same(name):
    build, _ = PLAIN_NETS[name]
    net, x = Net(build), samples(name)
    net.known_blocks = trace(build(FULL), x).blocks
    assert net.known_blocks == KNOWN[name][1]
    assert channels_roll(net, FULL, net.init(Layout(1, FULL), 0), x) == KNOWN[name][2]


def test_a_wrong_block_is_seen():
    net = Net(PLAIN_NETS["mobilenet"][0])
    assert not channels_roll(net, FULL, net.init(Layout(1, FULL), 0), samples("mobilenet"))


def small_task():
    rng = np.random.default_rng(0)
    return splitmix.task_from_arrays({"here": (rng.random((60, 8, 8, 3)), rng.integers(0, 3, 60))}, clients=2)


def test_a_run_says_what_started_smaller():
    made = splitmix.train(small_task(), resnet, rounds=1, atom="1/4", budgets="1/4", workers=1, progress=False)
    assert made.result["rescaled"] == sorted(KNOWN["resnet"][0])


def test_shifted_windows_are_refused_where_channels_cannot_be_shifted():
    build = PLAIN_NETS["group-norm"][0]
    with pytest.raises(UserError, match="shifts its windows over the channels"):
        splitmix.train(small_task(), build, method="fedrolex", atom="1/4", budgets="1/4 1", rounds=1, progress=False)


class Pointed(nn.Module):
    """A convolution of points at a stride that is no layer of PyTorch's."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, int(16 * width), 1, 1))

    def forward(self, x):
        return F.conv2d(x, self.weight, stride=2).mean((2, 3))


@pytest.mark.parametrize("build", [resnet, lambda width: nn.Sequential(nn.Conv2d(3, 4, 1), Pointed(width))])
def test_points_are_never_convolved_at_a_stride_in_the_channels_last_order(build, monkeypatch):
    seen, convolve = [], F.conv2d

    def watched(x, weight, bias=None, stride=1, *rest, **settings):
        points = weight.shape[2:] == (1, 1) and stride not in (1, (1, 1))
        assert not points or x.is_contiguous() or len(x[0]) > 7
        seen.append(points)
        return convolve(x, weight, bias, stride, *rest, **settings)

    monkeypatch.setattr(F, "conv2d", watched)
    net = Net(build)
    x = samples("resnet").to(memory_format=torch.channels_last)
    net.run(NARROW, net.init(Layout(1, NARROW), 0), x, training=True)
    assert True in seen


def test_a_convolution_that_skips_pixels_is_one_with_a_stride():
    layer, x = Conv(4, 6, 1, stride=2), torch.rand(2, 4, 7, 7)
    assert_close(layer(x), F.conv2d(x, layer.weight[0], layer.bias[0], stride=2))


NARROW_SHORTCUTS = """
import torch
from helpers.plain_nets import resnet
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.nets.swap import side_by_side

for build, width in ((resnet, Width(1, 4)), (side_by_side(resnet), Width(1, 4)), (NETS["preresnet18"], Width(1, 16))):
    net = Net(build)
    weights = {name: value.requires_grad_() for name, value in net.init(Layout(1, width), 0).items()}
    for _ in range(20):
        x = torch.rand(4, 3, 16, 16).to(memory_format=torch.channels_last)
        net.run(width, weights, x, training=True).sum().backward()
        kept = [torch.rand(size) for size in (7, 33, 120, 900)]
"""


@pytest.mark.slow
def test_narrow_shortcuts_do_not_corrupt_memory(monkeypatch):
    monkeypatch.setenv("MALLOC_CHECK_", "3")
    monkeypatch.setenv("MALLOC_PERTURB_", "85")
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    subprocess.run([sys.executable, "-c", NARROW_SHORTCUTS], check=True)
