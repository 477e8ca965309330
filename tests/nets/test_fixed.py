"""Nets with fixed norms as functions of images: folded, and with a way back of their own to images of few channels."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.nets.images import OwnImages

ATOM = Width(1, 8)
BUILDS = {
    "digit": partial(NETS["digit"], dual=True),
    "preresnet18": partial(NETS["preresnet18"], dual=True),
    "film": partial(NETS["digit"], film=True),
}


def served(name, bases):
    """A net with norms of any statistics and affine, in double precision, and images of its own for each base."""
    net, rng = Net(BUILDS[name]), torch.Generator().manual_seed(3)
    weights = net.init(Layout(bases, ATOM), 0, tracked=True)
    for entry in net.norm_names(ATOM):
        weights[entry] = 0.5 + torch.rand(weights[entry].shape, generator=rng)
    weights = {
        entry: value.double().requires_grad_(entry in net.parameter_names(ATOM)) for entry, value in weights.items()
    }
    side = 32 if name == "preresnet18" else 28
    return net, weights, torch.rand(bases, 3, 3, side, side, generator=rng, dtype=torch.float64)


def with_slope(predict, x):
    x = x.clone().requires_grad_()
    logits = predict(x)
    return logits.detach(), *torch.autograd.grad(logits.square().sum(), x)


@pytest.mark.slow
@pytest.mark.parametrize("robust", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", BUILDS)
def test_a_fixed_net_gives_the_logits_and_slopes_of_the_net_in_eval_mode(name, robust):
    net, weights, x = served(name, 2)
    (found, slope), (logits, expected) = (
        with_slope(predict, x)
        for predict in (net.fixed(ATOM, weights, robust), lambda x: net.run(ATOM, weights, x, robust))
    )
    assert torch.allclose(found, logits, rtol=1e-9)
    assert torch.allclose(slope, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))


def test_a_fixed_net_without_statistics_has_those_of_its_batch():
    net, weights, x = served("digit", 1)
    weights = {name: value for name, value in weights.items() if name not in net.statistic_names(ATOM)}
    assert torch.equal(net.fixed(ATOM, weights)(x), net.run(ATOM, weights, x))


def test_no_gradient_reaches_the_weights_of_a_fixed_net():
    net, weights, x = served("digit", 1)
    assert not net.fixed(ATOM, weights, 1.0)(x).requires_grad
    assert net.run(ATOM, weights, x, 1.0).requires_grad


@pytest.mark.parametrize(("height", "size", "padding"), [(6, 5, 2), (6, 3, 1), (8, 3, 0), (7, 3, 1), (6, 1, 1)])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_way_back_to_images_of_few_channels_is_that_of_any_convolution(groups, height, size, padding):
    rng = torch.Generator().manual_seed(0)
    shapes = [(2, groups * 3, height, 5), (groups * 4, 3, size, size), (groups * 4,)]
    leaves = [torch.randn(shape, generator=rng, dtype=torch.float64).requires_grad_() for shape in shapes]
    ours, plain = OwnImages.apply(*leaves, padding, groups), F.conv2d(*leaves, 1, padding, groups=groups)
    assert torch.equal(ours, plain)
    for found, expected in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (ours, plain)), strict=True):
        assert torch.allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("groups", [1, 3])
def test_the_way_back_to_images_works_where_half_precision_is_mixed_in(groups):
    rng = torch.Generator().manual_seed(0)
    leaves = [torch.randn(s, generator=rng).requires_grad_() for s in [(2, groups * 3, 6, 6), (groups * 4, 3, 3, 3)]]
    full = F.conv2d(*leaves, None, 1, 1, groups=groups)
    with torch.autocast("cpu", torch.bfloat16):
        half = OwnImages.apply(*leaves, None, 1, groups)
    assert half.dtype == torch.bfloat16
    for found, expected in zip(*(torch.autograd.grad(y.float().sum(), leaves) for y in (half, full)), strict=True):
        assert torch.allclose(found, expected, rtol=0.02, atol=0.05)
