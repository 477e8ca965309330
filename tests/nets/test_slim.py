"""A module of one width becomes a net of any: its hidden channels are scaled, its names and its code stay."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitmix
from helpers.plain_nets import IMAGE, PLAIN_NETS, TABLE, TOKENS, resnet, samples
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.nets.slim import slim

WIDTHS = ("1/8", "1/4", "1")


def batch(shape, count=2):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


def shapes(module):
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PLAIN_NETS)
def test_a_module_is_scaled_as_one_would_write_it_by_hand(name, width):
    build = PLAIN_NETS[name][0]
    assert shapes(slim(build(Width(1)), samples(name))(width)) == shapes(build(Width(width)))


class Inverted(nn.Module):
    """A block of MobileNetV2 with squeeze and excitation: depthwise, weighed by channel, and a skip."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        c, self.skip = 4 * inputs, stride == 1
        self.wide = nn.Sequential(nn.Conv2d(inputs, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU6(inplace=True))
        self.depthwise = nn.Sequential(nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False), nn.BatchNorm2d(c))
        self.down, self.up = nn.Linear(c, c // 4), nn.Linear(c // 4, c)
        self.narrow = nn.Sequential(nn.Conv2d(c, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu6(self.depthwise(self.wide(x)))
        y = self.narrow(y * self.up(F.relu(self.down(y.mean((2, 3))))).sigmoid()[..., None, None])
        return x + y if self.skip else y


def mobilenet2():
    stem = (nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16))
    body = (Inverted(16, 16, 1), Inverted(16, 32, 2), Inverted(32, 32, 1))
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 3))


def vgg():
    maps = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(True), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*maps, nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 3))


class DenseNet(nn.Module):
    """Each layer sees all before it, side by side."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16 + 8 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(16 + 8 * i, 8, 3, padding=1) for i in range(3))
        self.head = nn.Linear(40, 3)

    def forward(self, x):
        seen = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            seen.append(conv(F.relu(norm(torch.cat(seen, 1)))))
        return self.head(torch.cat(seen, 1).mean((2, 3)))


class ViT(nn.Module):
    """A class token and places are parameters of no layer."""

    def __init__(self, size=32):
        super().__init__()
        self.patches = nn.Conv2d(3, size, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, size))
        self.places = nn.Parameter(torch.randn(1, 5, size))
        self.layer = nn.TransformerEncoderLayer(size, 4, 2 * size, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(size, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.layer(x)[:, 0])


class MixerNet(nn.Module):
    """Mixes tokens by a linear map of their number, which no width changes."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm1, self.norm2 = nn.Linear(8, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.tokens1, self.tokens2 = nn.Linear(5, 16), nn.Linear(16, 5)
        self.mlp, self.head = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), nn.Linear(32, 3)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.tokens2(F.gelu(self.tokens1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        return self.head((x + self.mlp(self.norm2(x))).mean(1))


class Refined(nn.Module):
    """What is added to the image has its channels."""

    def __init__(self):
        super().__init__()
        self.wide, self.back, self.maps = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 3, 1), nn.Conv2d(3, 32, 3)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.maps(x + self.back(F.relu(self.wide(x)))).mean((2, 3)))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Sequential(nn.Linear(12, 16), nn.ReLU()), nn.Sequential(nn.Linear(12, 24), nn.ReLU())
        self.head, self.side = nn.Linear(16, 3), nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.one(x)) + self.side(self.other(x))


class Words(nn.Module):
    """An LSTM over tokens, with one weight for words on the way in and out."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm = nn.Embedding(3, 32), nn.LSTM(32, 16, 2, batch_first=True, bidirectional=True)
        self.back, self.head = nn.Linear(32, 32), nn.Linear(32, 3, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.back(self.lstm(self.words((2 * x).long()))[0][:, -1]))


class Shuffled(nn.Module):
    """Grouped convolutions, with their channels shuffled between them."""

    def __init__(self, constants=False):
        super().__init__()
        self.constants = constants
        self.stem, self.grouped = nn.Conv2d(3, 48, 1), nn.Conv2d(48, 48, 3, padding=1, groups=8)
        self.norm, self.head = nn.GroupNorm(16, 48), nn.Linear(48, 3)

    def forward(self, x):
        x = self.stem(x)
        b, c, h, w = (len(x), 48, 8, 8) if self.constants else x.shape
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        return self.head(F.relu(self.norm(self.grouped(x))).mean((2, 3)))


def squeezenet():
    maps = (nn.Conv2d(3, 16, 3), nn.PReLU(16), nn.ConvTranspose2d(16, 8, 2, 2), nn.InstanceNorm2d(8, affine=True))
    return nn.Sequential(*maps, nn.Conv2d(8, 3, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class PermutingNorm(nn.LayerNorm):
    """Over channels that stand second, as in ConvNeXt."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext():
    maps = (nn.Conv2d(3, 16, 2, 2), PermutingNorm(16), nn.Conv2d(16, 32, 2, 2), nn.GELU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*maps, nn.Flatten(), nn.Linear(32, 3))


MODULES = {  # with entries whose shapes at 1/8 were worked out by hand
    "mobilenet2": (
        mobilenet2,
        IMAGE,
        {"2.depthwise.0.weight": (8, 1, 3, 3), "3.up.weight": (8, 2), "8.weight": (3, 4)},
    ),
    "vgg": (vgg, IMAGE, {"2.weight": (4, 2, 3, 3), "6.weight": (8, 4 * 16), "9.weight": (3, 8)}),
    "densenet": (DenseNet, IMAGE, {"convs.2.weight": (1, 4, 3, 3), "norms.2.weight": (4,), "head.weight": (3, 5)}),
    "convnext": (convnext, IMAGE, {"1.weight": (2,), "2.weight": (4, 2, 2, 2)}),
    "vit": (ViT, IMAGE, {"token": (1, 1, 4), "places": (1, 5, 4), "layer.self_attn.in_proj_weight": (12, 4)}),
    "mixer": (MixerNet, TOKENS, {"tokens1.weight": (2, 5), "tokens2.weight": (5, 2), "mlp.2.weight": (4, 8)}),
    "refined": (Refined, IMAGE, {"back.weight": (3, 2, 1, 1), "maps.weight": (4, 3, 3, 3)}),
    "two heads": (TwoHeads, TABLE, {"head.weight": (3, 2), "side.weight": (3, 3)}),
    "words": (Words, (5,), {"words.weight": (3, 4), "lstm.weight_ih_l1_reverse": (8, 4), "back.weight": (4, 4)}),
    "shuffled": (Shuffled, IMAGE, {"grouped.weight": (6, 6, 3, 3), "norm.weight": (6,)}),
    "squeezenet": (squeezenet, IMAGE, {"1.weight": (2,), "2.weight": (2, 1, 2, 2), "4.weight": (3, 1, 1, 1)}),
}


@pytest.mark.parametrize("name", MODULES)
def test_inputs_follow_from_what_arrives(name):
    make, shape, wanted = MODULES[name]
    module = make()
    for width in WIDTHS:
        built = slim(module, batch(shape))(width)
        assert list(built.state_dict()) == list(module.state_dict())
        assert built(batch(shape)).shape == (2, 3)
    assert shapes(built) == shapes(module)
    narrow = shapes(slim(module, batch(shape))("1/8"))
    assert {entry: narrow[entry] for entry in wanted} == wanted


def test_a_shared_weight_stays_shared():
    built = slim(Words(), batch((5,)))("1/4")
    assert built.head.weight is built.words.weight


def test_groups_keep_their_size_where_they_can():
    narrow = slim(Shuffled(), batch(IMAGE))("1/4")
    assert (narrow.grouped.groups, narrow.norm.num_groups) == (2, 4)


def test_each_net_starts_afresh_by_the_draws_at_hand():
    build, other = (slim(resnet(Width(1)), samples("resnet")) for _ in range(2))
    torch.manual_seed(3)
    first, second = build("1/4"), build("1/4")
    torch.manual_seed(3)
    again = other("1/4")
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, second[0].weight)


def test_the_module_itself_is_left_alone():
    module = resnet(Width(1)).eval()
    before = copy.deepcopy(module.state_dict())
    slim(module, samples("resnet"))("1/8")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not module.training


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.maps, self.pool, self.head = nn.Conv2d(3, 512, 3), nn.AdaptiveAvgPool2d(1), nn.Linear(512, 3)

    def forward(self, x):
        return self.head(self.pool(self.maps(x)).view(-1, 512))


class Stretched(nn.Module):
    """Asks for rows of a known length, which fewer channels of more pixels fill as well."""

    def __init__(self):
        super().__init__()
        self.maps, self.head = nn.Conv2d(3, 16, 1), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.maps(x).reshape(-1, 64)).mean(0, keepdim=True).expand(len(x), -1)


class Heads(nn.Module):
    """Attention by hand, with the size of a head for a number."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(8, 32), nn.Linear(32, 96), nn.Linear(32, 3)

    def forward(self, x):
        q, k, v = self.qkv(self.embed(x)).reshape(len(x), 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return self.head(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))


def normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(12, 32)), nn.ReLU(), nn.Linear(32, 3))


def tied():
    net = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.Linear(12, 3))
    net[2].weight = net[0].weight
    return net


REFUSED = {
    "rows of a known length": (Rows, IMAGE, "behind its layer 'pool' (AdaptiveAvgPool2d) it does not go on (shape"),
    "samples for channels": (
        Stretched,
        IMAGE,
        "in its layer 'head' (Linear) it does not go on (shape (24, 64) arrives",
    ),
    "a shuffle of constants": (lambda: Shuffled(True), IMAGE, "behind its layer 'stem' (Conv2d) it does not go on"),
    "attention by constants": (Heads, TOKENS, "behind its layer 'qkv' (Linear) it does not go on (shape"),
    "weights made of others": (
        normed,
        TABLE,
        "its layer '0' (ParametrizedLinear) has an entry '0.bias' of shape (32,)",
    ),
    "one weight in two places": (
        tied,
        TABLE,
        "'0.weight' and '2.weight' are one weight, but would have shapes (1, 12)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_scaled_is_named_in_a_sentence(name):
    make, shape, words = REFUSED[name]
    build = slim(make(), batch(shape))
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        build("1/8")
    assert "or give a build(width) of your own" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert shapes(build(1)) == shapes(make())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: slim(resnet), "slim takes a module, not a function"),
        (lambda: slim(vgg())("1/8"), "does not know what its module takes"),
        (lambda: slim(vgg(), batch((1, 8, 8)))("1/8"), "the net cannot take a batch of shape (3, 1, 8, 8)"),
        (lambda: slim(vgg(), batch(IMAGE))("wide"), "'wide' is not a width"),
        (lambda: splitmix.train("mini", vgg()), "give splitmix.slim(module)"),
    ],
)
def test_a_mistake_is_one_sentence(call, words):
    with pytest.raises(UserError, match=re.escape(words)):
        call()


def bright_task():
    """Classes by brightness."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = rng.random((120, 8, 8, 3)) * 0.4 + labels[:, None, None, None] * 0.2
    return splitmix.task_from_arrays({"here": (images, labels)}, clients=2)


@pytest.mark.slow
def test_a_module_is_trained_without_a_word_about_widths():
    settings = {"rounds": 3, "atom": "1/4", "budgets": "1/2", "workers": 1, "progress": False}
    made = splitmix.train(bright_task(), splitmix.slim(mobilenet2()), **settings)
    assert (made.result["net"], made.result["stacked"]) == ("torch.nn.modules.container:slim(Sequential)", "yes")
    assert made.result["scores"][0]["accuracy"] > 0.5
    with pytest.raises(UserError, match="behind its layer 'stem'"):
        splitmix.train(bright_task(), splitmix.slim(Shuffled(True)), **settings)
