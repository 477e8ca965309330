"""Nets and their layers: widths, stacked bases, nested windows, dual norms, rescaling, and nets of users."""

from fractions import Fraction
from functools import partial

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.film_net import with_film
from helpers.stepping import assert_one_norm_is_trained, images, stepped
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import cut, merge
from splitmix.core.types import Layout, Part, Update
from splitmix.core.width import Width
from splitmix.nets import NETS, find_net
from splitmix.nets.alexnet import AlexNet
from splitmix.nets.images import flat
from splitmix.nets.layers import BatchNorm, Conv, Linear, Norm, norm_eps
from splitmix.nets.preresnet import PreResNet18

ATOM = Width(1, 8)


def doubles(net, layout):
    """Weights in float64, where rounding hides nothing; norms get random statistics and affine maps."""
    weights = with_film(net, layout)
    rng = torch.Generator().manual_seed(2)
    for name in net.norm_names(layout.width):
        weights[name] = torch.rand(weights[name].shape, dtype=torch.float64, generator=rng) + 0.5
    return weights


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_a_gradient_of_skipped_pixels_lies_in_memory_as_the_images_do(order):
    came = []
    conv = Conv(3, 8, 1, stride=2, bias=False)
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64).contiguous(memory_format=order).requires_grad_()
    images = x + 0
    images.register_hook(came.append)
    conv.double()(images).square().sum().backward()
    F.conv2d(x, conv.weight[0], stride=2).square().sum().backward()
    assert came[0].is_contiguous(memory_format=order)
    assert_close(2 * came[0], x.grad)


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_a_gradient_of_features_lies_in_memory_as_their_map_does(order):
    came = []
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=order).requires_grad_()
    features = flat(images := x + 0)
    images.register_hook(came.append)
    slope = torch.randn(2, 60)
    features.backward(slope)
    assert came[0].is_contiguous(memory_format=order)
    assert_close(came[0], slope.view(2, 3, 4, 5), rtol=0, atol=0)
    assert [node.target for node in fx.symbolic_trace(flat).graph.nodes][1] == "flatten"  # as exports see it


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("kind", "robust"), [("dual", 0.0), ("dual", 1.0), ("film", 0.0), ("film", 0.25)])
def test_stacked_bases_learn_what_looped_bases_learn(name, kind, robust, monkeypatch):
    monkeypatch.setattr(NETS[name], "stack", 3, raising=False)
    build = partial(NETS[name], **{kind: True})
    stacked, looped = Net(build, stacked=True), Net(build, stacked=False)
    weights, x = doubles(stacked, Layout(3, ATOM)), images(name)
    assert_close(stepped(stacked, ATOM, weights, x, robust), stepped(looped, ATOM, weights, x, robust))
    assert_close(stacked.measure(ATOM, weights, x, robust), looped.measure(ATOM, weights, x, robust))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("kind", "robust"),
    [("dual", 0.0), ("dual", 0.3), ("dual", torch.tensor(0.3, dtype=torch.float64)), ("dual", 1.0), ("film", 0.7)],
)
def test_stacked_bases_predict_what_looped_bases_predict(name, kind, robust, monkeypatch):
    monkeypatch.setattr(NETS[name], "stack", 3, raising=False)
    build = partial(NETS[name], **{kind: True})
    weights, x = doubles(Net(build), Layout(3, ATOM)), images(name, batch=1)
    stacked, looped = (Net(build, stacked=stacked).run(ATOM, weights, x, robust) for stacked in (True, False))
    assert stacked.shape == (3, 1, 10)
    assert_close(stacked, looped)


@pytest.mark.parametrize("name", NETS)
def test_each_base_can_have_images_of_its_own(name, monkeypatch):
    monkeypatch.setattr(NETS[name], "stack", 2, raising=False)
    net = Net(NETS[name])
    weights, x = doubles(net, Layout(2, ATOM)), images(name)
    own = net.run(ATOM, weights, torch.stack([x, 1 - x]))
    assert_close(own, torch.stack([net.run(ATOM, weights, x)[0], net.run(ATOM, weights, 1 - x)[1]]))


@pytest.mark.parametrize("name", NETS)
def test_a_net_runs_on_the_images_it_names_and_has_as_many_logits_as_classes(name):
    height, width, channels = NETS[name].image
    module = NETS[name](ATOM, classes=7).eval()
    assert module(torch.rand(2, channels, height, width)).shape == (2, 7)


@pytest.mark.parametrize("size", [64, 96, 130])
def test_alexnet_takes_images_of_any_size(size):
    assert AlexNet(ATOM)(torch.rand(2, 3, size, size)).shape == (2, 10)


@pytest.mark.parametrize("film", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_half_of_a_net_is_a_net(name, film):
    net, part = Net(partial(NETS[name], film=film)), Part(0, ATOM)
    weights = cut(net, Layout(1, 2 * ATOM), net.init(Layout(1, 2 * ATOM), seed=0), [part])
    shapes = net.shapes(part.width)
    assert {entry: value.shape[1:] for entry, value in weights.items()} == {entry: shapes[entry] for entry in weights}
    assert net.run(part.width, weights, images(name).float()).isfinite().all()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shift", [0, 5])
def test_a_part_computes_what_the_whole_computes_when_all_else_is_zero(name, shift):
    net, layout, part = Net(partial(NETS[name], rescale_layers=False)), Layout(1, Width(1, 4)), Part(0, ATOM, shift)
    whole = {entry: value.float() for entry, value in doubles(net, layout).items()}
    piece = cut(net, layout, whole, [part])
    zeros = {entry: torch.zeros_like(value) for entry, value in whole.items()}
    alone = merge(net, layout, zeros, [Update(0, 0, (part,), piece, samples=1)])
    inside, outside = ({entry: value.double() for entry, value in weights.items()} for weights in (alone, piece))
    assert_close(net.run(layout.width, inside, images(name)), net.run(ATOM, outside, images(name)))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("kind", "robust", "used", "idle"),
    [
        ("dual", 0.0, "clean", "noisy"),
        ("dual", 1.0, "noisy", "clean"),
        ("film", 0.0, "clean", "noisy"),
        ("film", 0.1, "noisy", "clean"),
    ],
)
def test_a_dial_trains_one_norm_only(name, kind, robust, used, idle):
    net = Net(partial(NETS[name], **{kind: True}))
    weights = doubles(net, Layout(1, ATOM))
    assert_one_norm_is_trained(net, ATOM, weights, images(name), robust, used, idle)


@pytest.mark.parametrize("robust", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5, 5)])
def test_a_blend_of_norms_is_the_weighted_mean_of_both(robust, kind, shape):
    norm = Norm(6, dual=True).eval()
    for value in norm.state_dict().values():
        value.uniform_(0.5, 1.5)
    x = torch.randn(shape)
    expected = (1 - robust) * norm.clean(x) + robust * norm.noisy(x)
    assert_close(norm(x, kind(robust)), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("robust", [0.0, 0.3, 0.5, 1.0])
def test_in_training_a_blend_of_norms_is_that_of_what_both_make_of_the_batch(robust):
    norm, x = Norm(6, dual=True), torch.randn(4, 6)
    for value in norm.parameters():
        value.data.uniform_(0.5, 1.5)
    found = norm(x, robust)
    nearer = norm.noisy if robust >= 0.5 else norm.clean
    assert not torch.equal(nearer.running_mean, torch.zeros(1, 6))
    assert_close(found, (1 - robust) * norm.clean(x) + robust * norm.noisy(x), atol=1e-6, rtol=1e-6)


def test_norms_that_serve_blend_only_with_fixed_statistics():
    norm, x = Norm(6, dual=True), torch.randn(4, 6)
    norm.clean.running_mean = None
    with pytest.raises(ValueError, match="calibrate the model first"):
        norm.eval()(x, 0.5)


def test_a_single_norm_has_no_dial():
    norm, x = Norm(6), torch.randn(4, 6)
    assert torch.equal(norm(x, 0.7), norm(x, 0.0))


@pytest.mark.parametrize("width", [Width(1, 8), Width(3, 10), Width(1)])
def test_a_small_epsilon_does_the_work_of_rescaled_layers(width):
    z = 1e-3 * torch.randn(8, 6, 3, 3, dtype=torch.float64)  # so small that epsilon matters
    norm = BatchNorm(6, eps=norm_eps(width, rescale_layers=True)).double()
    assert_close(norm(z), F.batch_norm(z / float(width), None, None, training=True, eps=1e-5))
    assert norm_eps(width, rescale_layers=False) == 1e-5


@pytest.mark.parametrize("name", NETS)
def test_a_net_with_rescaled_layers_divides_every_output_but_the_logits_by_its_width(name):
    rescaled, divided = NETS[name](ATOM).double(), NETS[name](ATOM, rescale_layers=False).double()
    divided.load_state_dict(rescaled.state_dict())
    x = images(name) / 100
    assert not torch.allclose(rescaled(x), divided(x), rtol=0.01)
    for layer in [m for m in divided.modules() if isinstance(m, Conv | Linear)][:-1]:
        layer.register_forward_hook(lambda layer, inputs, output: output / float(ATOM))
    assert_close(rescaled(x), divided(x))


@pytest.mark.parametrize("name", NETS)
def test_as_released_outputs_are_divided_in_training_only_so_tracked_statistics_fit_another_scale(name):
    net, plain = (Net(partial(NETS[name], rescale_layers=how)) for how in ("released", False))
    weights, x = {n: v.double() for n, v in net.init(Layout(1, ATOM), 0, tracked=True).items()}, images(name)
    trained = {**weights, **{n: torch.zeros_like(weights[n]) for n in net.statistic_names(ATOM)}}
    truth = {n: v.clone() for n, v in trained.items()}
    assert_close(
        net.run(ATOM, trained, x, training=True), plain.run(ATOM, truth, x, training=True), rtol=1e-2, atol=1e-2
    )
    for name in net.statistic_names(ATOM):
        times = 64 if name.endswith("var") else 8
        assert_close(trained[name], times * truth[name], rtol=1e-2, atol=1e-2)
    assert torch.equal(net.run(ATOM, weights, x), plain.run(ATOM, weights, x))  # served: as if nothing were rescaled
    assert_close(net.measure(ATOM, weights, x), plain.measure(ATOM, weights, x))  # and so is what is calibrated


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("width", [Width(1, 8), Width(1, 4)])
def test_rescaled_initialisation_shrinks_all_layers_but_the_first_by_the_root_of_the_width(name, width):
    net = Net(NETS[name])
    plain, rescaled = (net.init(Layout(1, width), seed=0, rescale=rescale) for rescale in (False, True))
    first = next(iter(plain)).split(".")[0]
    kept = {entry for entry in plain if entry.startswith(f"{first}.")} | net.norm_names(width)
    factors = {entry: 1.0 if entry in kept else float(width) ** 0.5 for entry in plain}
    assert_close(rescaled, {entry: value * factors[entry] for entry, value in plain.items()})
    weight = rescaled["fc1.weight" if "fc1.weight" in plain else "fc.weight"]
    assert_close(float(weight.std()), (float(width) / (3 * weight.shape[-1])) ** 0.5, rtol=0.05, atol=0)


def test_every_base_starts_from_its_own_weights():
    weights = Net(PreResNet18).init(Layout(2, ATOM), seed=0)
    assert not torch.equal(weights["conv.weight"][0], weights["conv.weight"][1])


def active(z):
    return F.relu(F.batch_norm(z, None, None, training=True, eps=1e-5 / 64))


def test_preresnet_follows_its_recipe():
    module, x = PreResNet18(ATOM).double(), images("preresnet18")
    w = {name: value[0] for name, value in module.state_dict().items()}

    z = F.conv2d(x, w["conv.weight"], padding=1)
    for i, stride in enumerate([1, 1, 2, 1, 2, 1, 2, 1]):
        a = active(z)
        inner = active(F.conv2d(a, w[f"body.{i}.conv1.weight"], stride=stride, padding=1))
        shortcut = z if stride == 1 else F.conv2d(a, w[f"body.{i}.shortcut.weight"], stride=stride)
        z = F.conv2d(inner, w[f"body.{i}.conv2.weight"], padding=1) + shortcut
    assert_close(module(x), F.linear(active(z).mean((2, 3)), w["fc.weight"], w["fc.bias"]))


def test_alexnet_follows_its_recipe():
    module, x = AlexNet(ATOM).double(), images("alexnet")
    w = {name: value[0] for name, value in module.state_dict().items()}
    settings = [(4, 2, True), (1, 2, True), (1, 1, False), (1, 1, False), (1, 1, True)]
    z = x
    for i, (stride, padding, pooled) in enumerate(settings, start=1):
        z = active(F.conv2d(z, w[f"conv{i}.weight"], w[f"conv{i}.bias"], stride, padding))
        z = F.max_pool2d(z, 3, 2) if pooled else z
    z = F.adaptive_avg_pool2d(z, 6).flatten(1)
    for i in (1, 2):
        z = active(F.linear(z, w[f"fc{i}.weight"], w[f"fc{i}.bias"]))
    assert_close(module(x), F.linear(z, w["fc3.weight"], w["fc3.bias"]))


def of_a_user(width: Fraction) -> nn.Module:
    channels = int(8 * width)
    layers = (nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(channels * 36, 10))


@pytest.mark.parametrize("tracked", [True, False])
def test_a_net_of_a_user_runs_as_two_bases(tracked):
    net, x = Net(of_a_user), torch.rand(5, 3, 8, 8)
    weights = net.init(Layout(2, Width(1, 2)), seed=0, tracked=tracked)
    logits = net.run(Width(1, 2), weights, x)
    for base in range(2):
        module = of_a_user(Width(1, 2)).train(not tracked)  # without statistics, those of the batch are used
        module.load_state_dict({name: value[base] for name, value in weights.items()}, strict=False)
        assert_close(logits[base], module(x))


def test_a_net_of_a_user_is_measured_like_one_of_ours():
    net, x = Net(of_a_user), torch.rand(5, 3, 8, 8)
    weights = net.init(Layout(2, Width(1, 2)), seed=0, tracked=True)
    found = net.measure(Width(1, 2), weights, x)
    convolved = F.conv2d(x, weights["0.weight"][1], weights["0.bias"][1])
    assert_close(found["1.running_mean"][1], convolved.mean((0, 2, 3)))
    assert_close(found["1.running_var"][1], convolved.var((0, 2, 3)))


def test_nets_are_found_by_name():
    assert find_net("preresnet18") is PreResNet18


def test_a_net_of_a_user_is_found_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text("from torch import nn\n\ndef build(width):\n    return nn.Linear(4, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(find_net("my_nets:build")(ATOM), nn.Linear)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("digits", "unknown net 'digits'; did you mean 'digit'?"),
        ("no_such_module:build", r"cannot import net 'no_such_module:build' \(No module named 'no_such_module'\)"),
        (":build", "cannot import net ':build'"),
        ("broken_net:build", r"cannot import net 'broken_net:build' \(ZeroDivisionError\)"),
        ("math:build", "module 'math' has no function 'build'; give the net as module:function"),
        ("math:pi", "module 'math' has no function 'pi'"),
        ("whole_net:net", r"'whole_net:net' is a module of one width; write there build = splitmix.slim\(net\)"),
    ],
)
def test_a_net_that_cannot_be_found_gives_one_sentence(name, sentence, tmp_path, monkeypatch):
    (tmp_path / "broken_net.py").write_text("raise ZeroDivisionError\n")
    (tmp_path / "whole_net.py").write_text("from torch import nn\nnet = nn.Linear(2, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=sentence):
        find_net(name)
