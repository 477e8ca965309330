"""Users' own nets with their layers swapped: bases side by side learn what they learn alone, and norms get a dial."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import splitmix
from helpers.plain_nets import IMAGE, PLAIN_NETS, SIGNAL, TABLE, TOKENS, group_norm_net, resnet, samples
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets.swap import Swap, side_by_side, stacked_net, why_looped

NARROW, BASES = Width(1, 4), 3
ATTENTION = "its layer 'layer.self_attn' (MultiheadAttention) has no form for several bases"


def learned(net, start, x, robust=0.0):
    """Logits of a training step, its gradients, and all entries afterwards."""
    names = net.parameter_names(NARROW)
    weights = {name: value.clone().requires_grad_(name in names) for name, value in start.items()}
    logits = net.run(NARROW, weights, x, robust, training=True)
    F.cross_entropy(logits.flatten(0, 1), torch.arange(logits.numel() // 3) % 3).backward()
    return logits, {name: value.grad for name, value in weights.items()}, weights


def doubles(net):
    start = net.init(Layout(BASES, NARROW), 0, tracked=True)
    return {name: value.double() for name, value in start.items()}


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", [name for name in PLAIN_NETS if name != "transformer"])
def test_swapped_bases_learn_what_looped_bases_learn(name, own):
    build, x = PLAIN_NETS[name][0], samples(name).double()
    looped, stacked = Net(build), stacked_net(build, NARROW, samples(name))
    assert (stacked.stacking, stacked.template(NARROW).stackable, stacked.apart) == ("yes", True, False)
    looped.axes = stacked.axes = x.dim() - 1
    x = torch.stack([x, 1 - x, x / 2]) if own else x
    for net in (looped, stacked):
        for layer in net.template(NARROW).module.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
    assert_close(learned(stacked, doubles(looped), x), learned(looped, doubles(looped), x))


def test_attention_runs_base_after_base():
    net = stacked_net(PLAIN_NETS["transformer"][0], NARROW, samples("transformer"))
    assert (net.stacking, net.template(NARROW).stackable) == (ATTENTION, False)


@pytest.mark.parametrize("name", PLAIN_NETS)
def test_entries_keep_their_names_and_their_first_values(name):
    build = PLAIN_NETS[name][0]
    plain = Net(build).init(Layout(2, NARROW), 0, tracked=True, rescale=False)
    net = stacked_net(build, NARROW, samples(name))
    assert_close(net.init(Layout(2, NARROW), 0, tracked=True, rescale=False), plain, rtol=0, atol=0)
    dual = Net(Swap(build, stacked=False, dual=True)).init(Layout(2, NARROW), 0, tracked=True, rescale=False)
    assert_close({entry: dual[entry] for entry in plain}, plain, rtol=0, atol=0)
    assert {entry.replace("noisy.", "") for entry in dual} == plain.keys()


class Lambda(nn.Module):
    """Code of a user between the layers."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Skip(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def pooled(*layers, channels):
    return lambda width: nn.Sequential(*layers, Lambda(lambda x: x.mean((2, 3))), nn.Linear(channels, 3))


def weighed(x):
    return x * x.mean((2, 3), keepdim=True)


def rows(width):
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), Lambda(lambda x: x.reshape(-1, 4 * 36)), nn.Linear(4 * 36, 6), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(6, 3))


def tied(width):
    one, other = nn.Linear(12, 12), nn.Linear(12, 12)
    other.weight = one.weight
    return nn.Sequential(one, other, nn.Linear(12, 3))


def twice(width):
    layer = nn.Linear(12, 12)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(12, 3))


def words(width):
    mean = Lambda(lambda x: x.mean(1))
    layers = (nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 6, bias=False), nn.GELU(), mean, nn.Linear(6, 3))
    return nn.Sequential(Lambda(lambda x: (9 * x).long()), *layers)


def tokens(width):
    return nn.Sequential(Skip(nn.Linear(8, 8), nn.LayerNorm(8)), Lambda(lambda x: x.mean(1)), nn.Linear(8, 3))


STACKABLE = {
    "groups, dilation and stride": (pooled(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, 2, 2, 2, 2), channels=8), IMAGE),
    "groups of what all bases see": (pooled(nn.Conv2d(3, 6, 3, groups=3), channels=6), IMAGE),
    "a padding by its name": (pooled(nn.Conv2d(3, 4, (3, 1), padding="same"), channels=4), IMAGE),
    "points at a stride": (pooled(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1, (2, 3), bias=False), channels=6), IMAGE),
    "points of a signal": (lambda width: nn.Sequential(nn.Conv1d(3, 4, 1, 2), nn.Flatten(), nn.Linear(16, 3)), SIGNAL),
    "a norm of what all bases see": (pooled(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), channels=4), IMAGE),
    "a norm without statistics": (pooled(nn.BatchNorm2d(3, track_running_stats=False), channels=3), IMAGE),
    "a norm of whole maps": (pooled(nn.Conv2d(3, 4, 1), nn.LayerNorm((4, 8, 8)), channels=4), IMAGE),
    "norms of single channels": (
        pooled(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4), channels=4),
        IMAGE,
    ),
    "slopes": (pooled(nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.Conv2d(4, 4, 3), nn.PReLU(), channels=4), IMAGE),
    "dropout by a function": (pooled(nn.Conv2d(3, 4, 3), Lambda(F.dropout), channels=4), IMAGE),
    "channels that are weighed": (pooled(nn.Conv2d(3, 4, 1), Lambda(weighed), channels=4), IMAGE),
    "one layer in two places": (twice, TABLE),
    "maps as rows": (rows, IMAGE),
    "one linear layer": (lambda width: nn.Linear(12, 3), TABLE),
    "words": (words, (5,)),
    "tokens": (lambda width: nn.Sequential(nn.Linear(8, 8), tokens(width)), TOKENS),
}


def trial(shape):
    return torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", STACKABLE)
def test_layers_of_many_kinds_are_stacked(name):
    build, shape = STACKABLE[name]
    assert why_looped(build, NARROW, trial(shape)) is None


def hooked(width):
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(12, 12)), nn.Linear(12, 3))


def with_constants(width):
    module = nn.Sequential(nn.Linear(12, 3))
    module.register_buffer("constants", torch.rand(3))
    return module


def hidden(code, size=8):
    return lambda width: nn.Sequential(nn.Linear(12, 8), Lambda(code), nn.Linear(size, 3))


LOOPED = {
    "attention over features": (hidden(lambda x: x.softmax(1)), TABLE, "mixes the channels"),
    "features side by side": (hidden(lambda x: torch.cat([x, x.exp()], 1), 16), TABLE, "mixes the channels"),
    "a norm without entries": (
        hidden(nn.LayerNorm(8, elementwise_affine=False)),
        TABLE,
        "with elementwise_affine=False",
    ),
    "rows of a known length": (
        hidden(lambda x: x.reshape(4, 8)),
        TABLE,
        "does not run on several bases at once (shape",
    ),
    "one number for all": (hidden(lambda x: x / x.norm()), TABLE, "mixes the channels"),
    "dice": (hidden(lambda x: x + torch.rand_like(x)), TABLE, "draws numbers at random"),
    "shared weights": (tied, TABLE, "some of its layers share their weights"),
    "weights made of others": (hooked, TABLE, "its layer '0' (ParametrizedLinear) has no form"),
    "constants": (with_constants, TABLE, "its Sequential has no form for several bases"),
    "samples around the corner": (
        pooled(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), channels=4),
        IMAGE,
        "its layer '0' (Conv2d) has no form for several bases or a dial with padding_mode='circular'",
    ),
    "a norm without slopes": (pooled(nn.BatchNorm2d(3, affine=False), channels=3), IMAGE, "affine=False"),
    "points in a frame": (pooled(nn.Conv2d(3, 4, 1, 2, 1), channels=4), IMAGE, "a kernel smaller than its padding"),
}


@pytest.mark.parametrize("name", LOOPED)
def test_what_cannot_be_stacked_is_seen_and_said(name):
    build, shape, words = LOOPED[name]
    net = stacked_net(build, NARROW, trial(shape))
    assert words in net.stacking
    assert net.run(NARROW, net.init(Layout(2, NARROW), 0), trial(shape), training=True).shape == (2, 4, 3)


def test_a_reshaped_batch_of_each_bases_own_samples_runs_base_after_base():
    def build(width):
        return nn.Sequential(Lambda(lambda x: x - torch.rand(12, generator=torch.Generator())), nn.Linear(12, 3))

    net, x = stacked_net(build, NARROW, samples("mlp")), torch.stack([samples("mlp"), 1 - samples("mlp")])
    assert (net.stacking, net.apart) == ("yes", True)
    weights, alone = net.init(Layout(2, NARROW), 0), Net(build)
    alone.axes = 1
    assert_close(net.run(NARROW, weights, x), alone.run(NARROW, weights, x))


def test_stacked_points_skip_pixels_themselves(monkeypatch):
    strides, convolve = [], F.conv2d

    def watched(x, weight, bias, stride, *rest):
        strides.append((weight.shape[2:] == (1, 1), stride))
        return convolve(x, weight, bias, stride, *rest)

    monkeypatch.setattr(F, "conv2d", watched)
    net = Net(side_by_side(resnet))
    net.run(NARROW, net.init(Layout(2, NARROW), 0), samples("resnet"))
    assert (True, (1, 1)) in strides
    assert (True, (2, 2)) not in strides


def reshaped(width):
    """A net with a batch norm whose code does not carry several bases."""
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), Lambda(lambda x: x.softmax(1)), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("build", "name", "stacking"), [(resnet, "resnet", "yes"), (reshaped, "mlp", "its code mixes")]
)
def test_each_end_of_the_dial_has_norms_of_its_own(build, name, stacking):
    x = samples(name)
    net, plain = stacked_net(Swap(build, stacked=False, dual=True), NARROW, x), Net(build)
    assert net.stacking.startswith(stacking)
    weights = net.init(Layout(2, NARROW), 0, tracked=True)
    before = {entry: value.clone() for entry, value in weights.items()}
    net.run(NARROW, weights, x, robust=1.0, training=True)
    changed = {entry for entry in weights if not torch.equal(weights[entry], before[entry])}
    assert changed == {entry for entry in net.statistic_names(NARROW) if "noisy." in entry}
    noisy = {entry: weights.get(as_noisy(entry), weights[entry]) for entry in plain.shapes(NARROW)}
    assert_close(net.run(NARROW, weights, x, robust=0.0), plain.run(NARROW, weights, x))
    assert_close(net.run(NARROW, weights, x, robust=1.0), plain.run(NARROW, noisy, x))
    between = [net.run(NARROW, weights, x, robust=dial) for dial in (0.0, 0.5, 1.0)]
    assert not any(torch.allclose(one, other) for one, other in pairwise(between))


def as_noisy(entry):
    layer, _, kind = entry.rpartition(".")
    return f"{layer}.noisy.{kind}"


def test_a_dial_that_is_not_turned_changes_nothing():
    weights = Net(resnet).init(Layout(2, NARROW), 0, tracked=True)
    looped = learned(Net(resnet), weights, samples("resnet"))
    dual = Net(Swap(resnet, stacked=False, dual=True))
    twins = {
        entry: value for entry, value in dual.init(Layout(2, NARROW), 0, tracked=True).items() if "noisy." in entry
    }
    logits, slopes, after = learned(dual, weights | twins, samples("resnet"))
    assert_close((logits, {n: slopes[n] for n in weights}, {n: after[n] for n in weights}), looped)


def bright_task():
    """Classes by brightness, of which an attack can take some."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = rng.random((90, 8, 8, 3)) * 0.4 + labels[:, None, None, None] * 0.2
    return splitmix.task_from_arrays({"here": (images, labels)}, clients=2)


QUICK = {"rounds": 1, "atom": "1/4", "budgets": "1/2", "workers": 1, "progress": False}


@pytest.mark.slow
def test_a_plain_resnet_is_trained_with_a_dial():
    objective = {"name": "adversarial", "steps": 2}
    made = splitmix.train(bright_task(), resnet, objective=objective, norm="tracked", **QUICK)
    assert made.result["stacked"] == "yes"
    assert made.result["rescaled"][0] == "3.conv1.weight"
    for entry in ("1.running_mean", "3.norm1.running_var", "4.shortcut.1.weight"):
        assert not torch.allclose(made.weights[entry], made.weights[as_noisy(entry)])


def test_a_net_without_batch_norms_has_no_dial():
    with pytest.raises(UserError, match="no batch norms of PyTorch's own, so it has no robustness dial"):
        splitmix.train(bright_task(), group_norm_net, objective="adversarial", norm="tracked", **QUICK)


def test_a_batch_norm_of_an_unusual_kind_has_no_dial():
    build = pooled(nn.BatchNorm2d(3, affine=False), channels=3)
    with pytest.raises(UserError, match=r"its layer '0' \(BatchNorm2d\) has no form .* with affine=False"):
        splitmix.train(bright_task(), build, objective="adversarial", norm="tracked", **QUICK)


def test_a_run_says_why_its_bases_are_looped(capsys):
    def build(width):
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Softmax(1), nn.Linear(8, 3))

    made = splitmix.train(bright_task(), build, **{**QUICK, "progress": True})
    assert made.result["stacked"] == "its code mixes the channels of bases that run side by side"
    assert capsys.readouterr().err.count("its bases run one after another: its code mixes the channels") == 1


def test_a_run_says_when_no_width_makes_a_net_smaller(capsys):
    said = "build(width) gives nets of one size at all widths: a budget saves no work"
    for build, count in ((lambda width: nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), 1), (resnet, 0)):
        splitmix.train(bright_task(), build, **{**QUICK, "progress": True})
        assert capsys.readouterr().err.count(said) == count


def test_one_net_alone_is_left_as_it_is():
    made = splitmix.train(bright_task(), resnet, method="fedavg", **{**QUICK, "budgets": "1"})
    assert "stacked" not in made.result
    assert not made.net.template(Width(1)).stackable
