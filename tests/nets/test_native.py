"""Native kernels: the numbers of plain layers within rounding, for every shape, and the same bits each time."""

import shutil
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets.digit import Digit
from splitmix.nets.layers import Conv, Linear, Norm, Nothing
from splitmix.nets.native import library
from splitmix.nets.native.stages import NativeStages
from splitmix.nets.stages import Stages

pytestmark = pytest.mark.skipif(not any(map(shutil.which, library.COMPILERS)), reason="needs a C compiler")
ATOM = Width(1, 8)
CONVS = {  # bases, inputs, outputs, kernel, height, width
    "shared images": (3, 3, 8, 5, 12, 28),
    "images of their own": (2, 3, 8, 5, 9, 11),
    "odd channels": (2, 7, 5, 3, 6, 17),
    "one base": (1, 8, 16, 5, 7, 7),
    "many channels": (2, 20, 12, 3, 4, 5),
    "points": (2, 6, 9, 1, 5, 3),
}


STAGES = {"native": NativeStages, "torch": Stages}


@pytest.fixture(scope="module")
def native():
    return NativeStages()


def filled(layer, bases, rng):
    """A layer with entries of several bases, any numbers."""
    for module in layer.modules():
        for owned in (module._parameters, module._buffers):
            for name, value in owned.items():
                owned[name] = torch.randn((bases, *value.shape[1:]), generator=rng).requires_grad_(
                    owned is module._parameters
                )
            if "running_var" in owned:
                owned["running_var"].abs_()
    return layer


def learned(stage, x, layers, of_x):
    """What a stage gives for a batch: values, the slopes of all that it was given, and running statistics."""
    x = x.clone().requires_grad_(of_x)
    leaves = [*([x] if of_x else []), *(entry for layer in layers for entry in layer.parameters())]
    y = stage(x)
    toward = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    slopes = torch.autograd.grad((y * toward).sum(), leaves)
    return [y.detach(), *slopes, *(buffer.clone() for layer in layers for buffer in layer.buffers())]


def assert_alike(found, expected):
    for one, other in zip(found, expected, strict=True):
        scale = float(other.abs().max()) + 1e-2
        assert float((one.double() - other).abs().max()) <= 1e-4 * scale


@pytest.mark.parametrize("normed", [True, False], ids=["normed", "bare"])
@pytest.mark.parametrize("pool", [True, False], ids=["pooled", "whole"])
@pytest.mark.parametrize("name", CONVS)
def test_a_native_convolution_learns_what_the_plain_one_learns(native, name, pool, normed):
    bases, inputs, outputs, size, height, width = CONVS[name]
    rng = torch.Generator().manual_seed(1)
    shared = name == "shared images"
    layer = filled(Conv(inputs, outputs, size, padding=size // 2), bases, rng)
    norm = filled(Norm(outputs), bases, rng) if normed else Nothing()
    x = torch.randn(3, inputs if shared else bases * inputs, height, width, generator=rng)
    found = learned(lambda x: native.conv(x, layer, norm, 0.0, pool=pool), x, [layer, norm], not shared)
    norm = filled(Norm(outputs), bases, torch.Generator()) if normed else norm
    rng.manual_seed(1)
    layer, norm = filled(layer, bases, rng).double(), filled(norm, bases, rng).double()
    plain = learned(lambda x: Stages().conv(x, layer, norm, 0.0, pool=pool), x.double(), [layer, norm], not shared)
    assert_alike(found, plain)


@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 40, 13), (2, 33, 8), (1, 1, 1)])
@pytest.mark.parametrize("batch", [5, 33])
def test_a_native_linear_map_learns_what_the_plain_one_learns(native, shape, batch):
    bases, inputs, outputs = shape
    rng = torch.Generator().manual_seed(1)
    layer, norm = filled(Linear(inputs, outputs), bases, rng), filled(Norm(outputs), bases, rng)
    x = torch.randn(batch, bases * inputs, generator=rng)
    found = learned(lambda x: native.linear(x, layer, norm, 0.0), x, [layer, norm], True)
    rng.manual_seed(1)
    layer, norm = filled(layer, bases, rng).double(), filled(norm, bases, rng).double()
    assert_alike(found, learned(lambda x: Stages().linear(x, layer, norm, 0.0), x.double(), [layer, norm], True))


def step(kernels, bases, width, robust=0.0, tracked=True):
    """The loss of a batch, all slopes, and the statistics that a step leaves behind."""
    net = Net(partial(Digit, dual=True, stages=STAGES[kernels]()))
    weights, names = net.init(Layout(bases, width), 0, tracked=tracked), net.parameter_names(width)
    leaves = {name: weights[name].requires_grad_() for name in sorted(names)}
    x = torch.rand(4, 28, 28, 3, generator=torch.Generator().manual_seed(2)).permute(0, 3, 1, 2)
    logits = net.run(width, weights, x, robust, training=True)
    loss = F.cross_entropy(logits.flatten(0, 1), torch.arange(4).repeat(bases))
    slopes = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
    return {
        "loss": loss.detach(),
        **{name: slope for name, slope in zip(leaves, slopes, strict=True) if slope is not None},
        **{f"kept {name}": weights[name] for name in net.statistic_names(width) if tracked},
    }


@pytest.mark.parametrize(("bases", "width", "robust"), [(1, "1/16", 0.0), (3, "1/8", 1.0), (1, "1/4", 0.3)])
def test_a_native_net_learns_what_the_plain_one_learns(bases, width, robust):
    found, plain = (step(kernels, bases, Width(width), robust) for kernels in ("native", "torch"))
    assert found.keys() == plain.keys()
    for name, value in plain.items():
        if not name.endswith(".bias") or "norm" in name or name == "fc3.bias":  # a bias before a norm has no slope
            assert float((found[name] - value).abs().max()) <= 1e-3 * float(value.abs().max()) + 1e-6, name


def test_a_native_step_has_the_same_bits_each_time():
    one, other = (step("native", 2, ATOM) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_attack_on_a_native_net_sees_the_slopes_of_the_plain_one():
    found = []
    for kernels in ("native", "torch"):
        net = Net(partial(Digit, stages=STAGES[kernels]()))
        weights = net.init(Layout(2, ATOM), 0, tracked=True)
        x = torch.rand(2, 3, 3, 28, 28, generator=torch.Generator().manual_seed(2)).requires_grad_()
        found += torch.autograd.grad(net.fixed(ATOM, weights)(x).square().sum(), x)
    assert torch.allclose(*found, rtol=1e-3, atol=1e-4 * float(found[1].abs().max()))


def test_what_learns_nothing_stays_as_plain_layers_see_it():
    nets = [Net(partial(Digit, stages=STAGES[kernels]())) for kernels in ("native", "torch")]
    weights, x = nets[0].init(Layout(2, ATOM), 0, tracked=True), torch.rand(3, 3, 28, 28)
    assert torch.equal(*(net.run(ATOM, weights, x) for net in nets))
    measured = [net.measure(ATOM, weights, x) for net in nets]
    assert all(torch.equal(measured[0][name], measured[1][name]) for name in measured[1])


def test_double_precision_and_lone_samples_are_left_to_plain_layers(native):
    rng = torch.Generator().manual_seed(1)
    layer, norm = filled(Linear(4, 3), 1, rng).double(), filled(Norm(3), 1, rng).double()
    assert native.linear(torch.rand(5, 4).double(), layer, norm, 0.0).dtype == torch.float64
    with pytest.raises(ValueError, match="more than 1 value"):
        native.linear(torch.rand(1, 4), filled(Linear(4, 3), 1, rng), filled(Norm(3), 1, rng), 0.0)


def test_without_a_compiler_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(library.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="no 'cc' here; install gcc or clang, or train with kernels = 'torch'"):
        library.library.__wrapped__()


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc1: no such processor' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("SPLITMIX_CACHE", str(tmp_path))
    monkeypatch.setattr(library.shutil, "which", lambda name: str(broken))
    with pytest.raises(UserError, match=r"cannot be compiled here \(cc1: no such processor\)"):
        library.library.__wrapped__()


def test_kernels_are_compiled_once_for_a_machine(tmp_path, monkeypatch):
    made, compiled = library.library()._name, []
    monkeypatch.setenv("SPLITMIX_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(library, "compile_to", lambda path, compiler: compiled.append(shutil.copy(made, path)))
    for _ in range(2):
        library.library.__wrapped__()
    assert len(compiled) == 1
