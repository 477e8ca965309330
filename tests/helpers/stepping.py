"""One training step of a net on a few small images."""

import torch

from splitmix.nets import NETS

SMALL = {"alexnet": 64, "preresnet18": 16}  # enough pixels for a test


def images(name, batch=4):
    size = SMALL.get(name, NETS[name].image[0])
    return torch.rand(batch, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def stepped(net, width, weights, x, robust):
    """Logits and gradients of a training step, and the statistics it leaves behind."""
    parameters = net.parameter_names(width)
    leaves = {name: value.clone().requires_grad_(name in parameters) for name, value in weights.items()}
    logits = net.run(width, leaves, x, robust, training=True)
    (logits**2).sum().backward()
    grads = {name: leaves[name].grad for name in parameters if leaves[name].grad is not None}
    return logits.detach(), grads, {name: leaves[name].detach() for name in net.statistic_names(width)}


def assert_one_norm_is_trained(net, width, weights, x, robust, used, idle):
    """A step at this dial moves the affine and the statistics of the norms that are used, and no others."""
    _, grads, statistics = stepped(net, width, weights, x, robust)
    affine = {entry for entry in net.norm_names(width) if entry in net.parameter_names(width)}
    assert affine & grads.keys() == {entry for entry in affine if f".{used}." in entry}
    for entry, value in statistics.items():
        assert torch.equal(value, weights[entry]) == (f".{idle}." in entry)
