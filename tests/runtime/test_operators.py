"""What nets of users are made of: each operator of PyTorch that a bundle takes answers on a device as it does there."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.bundles import noisy, own_bundle
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets.cost import cost

pytest.importorskip("onnxruntime", reason="graphs run on ONNX Runtime")
ATOM = Width(1, 4)
IMAGE, SIGNAL, TOKENS = (3, 6, 6), (3, 8), (6,)


class Around(nn.Module):
    """Some steps on images, signals or tokens, between a first layer and a last."""

    def __init__(self, kind, steps):
        super().__init__()
        first = {"image": nn.Conv2d(3, 4, 3, padding=1), "signal": nn.Conv1d(3, 4, 3, padding=1)}
        self.first = first.get(kind) or nn.Embedding(11, 4)
        self.steps, self.last = steps, nn.LazyLinear(3)

    def forward(self, x):
        return self.last(self.steps(self.first(x)).flatten(1)[:, :8])


class Recurrent(nn.Module):
    """A signal, read step by step."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(1, 2))[0][:, -1]


class Attending(nn.Module):
    """Heads from one product, as in a ViT, and a class token before the others."""

    def __init__(self, repeated):
        super().__init__()
        self.token, self.all, self.repeated = nn.Parameter(torch.randn(1, 1, 4)), nn.Linear(4, 12), repeated

    def forward(self, x):
        token = self.token.repeat(len(x), 1, 1) if self.repeated else self.token.expand(len(x), -1, -1)
        x = torch.cat([token, x.flatten(2).transpose(1, 2)], 1)
        q, k, v = self.all(x).reshape(len(x), -1, 3, 2, 2).permute(2, 0, 3, 1, 4)
        return ((q @ k.transpose(-2, -1)).softmax(-1) @ v)[:, :, 0]


class Padded(nn.Module):
    """Tokens of which 0 is none: they count neither in a mean nor in attention."""

    def __init__(self):
        super().__init__()
        self.words, self.heads, self.last = (
            nn.Embedding(11, 4),
            nn.MultiheadAttention(4, 2, batch_first=True),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        none = (x == 0) & (torch.arange(6) > 0)
        words = self.words(x)
        words = words + self.heads(words, words, words, key_padding_mask=none, need_weights=False)[0]
        there = (~none).unsqueeze(-1).float()
        return self.last((words * there).sum(1) / there.sum(1).clamp(min=1))


def bent(x):
    return torch.where(x > 0.1, x, torch.where(x <= -0.1, 2 * x, 0.5 * x)).masked_fill((x >= 0.5) | (x < -0.5), 0.5)


STEPS = {
    "upsample": ("image", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear")),
    "upsample-aligned": ("image", lambda x: F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True)),
    "upsample-cubic": ("image", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "upsample-near": ("image", nn.Upsample(scale_factor=2)),
    "upsample-signal": ("signal", lambda x: F.interpolate(x, size=11, mode="linear") + F.interpolate(x, size=11)),
    "up-convolution": ("image", nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2)),
    "up-convolution-signal": ("signal", nn.ConvTranspose1d(4, 4, 4, 3, dilation=2, bias=False)),
    "up-by-channels": ("image", nn.PixelShuffle(2)),
    "pool-to-the-end": ("image", nn.MaxPool2d(3, 2, ceil_mode=True)),
    "pool-to-a-size": ("image", nn.AdaptiveMaxPool2d((3, 2))),
    "largest": ("signal", lambda x: x.max(-1).values + x.min(2)[0]),
    "length": ("signal", lambda x: F.normalize(x, dim=1)),
    "gate": ("signal", lambda x: F.glu(x, 1)),
    "parts": ("signal", lambda x: sum(part * (i + 1) for i, part in enumerate(x.unbind(2)))),
    "many-parts": ("signal", lambda x: sum(p * (i + 1) for i, p in enumerate(torch.cat([x, x, x], 2).unbind(2)))),
    "parts-of-sizes": ("signal", lambda x: sum(part * i for i, part in enumerate(torch.cat([x] * 5, 2).split(2, 2)))),
    "many-joined": ("signal", lambda x: torch.stack([x[..., i % 8] * i for i in range(70)], 2)),
    "zeros-beside": ("image", lambda x: torch.cat([torch.zeros(len(x), 2, 6, 6), x], 1)),
    "choice": ("signal", bent),
    "gru": ("signal", Recurrent(nn.GRU(4, 5, 2, batch_first=True))),
    "lstm": ("signal", Recurrent(nn.LSTM(4, 3, bidirectional=True, batch_first=True))),
    "attention": ("image", Attending(repeated=False)),
    "attention-repeated": ("image", Attending(repeated=True)),
    "causal": ("signal", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
}  # fmt: skip
SHAPES = {"image": IMAGE, "signal": SIGNAL, "tokens": TOKENS}


def built(kind, steps):
    """A build that makes one net again and again."""
    torch.manual_seed(0)
    module = steps if kind == "tokens" else Around(kind, steps)
    module(torch.zeros(2, *SHAPES[kind], dtype=torch.int64 if kind == "tokens" else torch.float32))
    return lambda width: module


def assert_same(path, build, kind, x):
    """What a device says is what PyTorch does."""
    bundle = own_bundle(path, build, tuple(x.shape[1:]), kind=kind)
    net = Net(build)
    net.axes = x.dim() - 1
    with torch.no_grad():
        expected = net.run(ATOM, noisy(net, Layout(2, ATOM)), x)
    given = x.permute(0, 2, 3, 1) if kind == "image" else x
    torch.testing.assert_close(Model.load(bundle.path).logits_by_base(given), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", STEPS)
def test_a_device_computes_it_as_pytorch_does(tmp_path, name):
    kind, steps = STEPS[name]
    x = torch.rand(5, *SHAPES[kind], generator=torch.Generator().manual_seed(1))
    assert_same(tmp_path / "b", built(kind, steps), kind, x)


def test_channels_last_images_pooled_to_one_pixel_go_to_a_device(tmp_path):
    class Pooled(nn.Module):
        def forward(self, x):
            return F.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1)

    assert_same(tmp_path / "b", built("image", Pooled()), "image", torch.rand(5, *IMAGE))


def test_a_volume_goes_to_a_device_too(tmp_path):
    torch.manual_seed(0)
    pools = (nn.MaxPool3d(2), nn.AvgPool3d(2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    net = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), *pools, nn.Linear(4, 3))
    assert_same(tmp_path / "b", lambda width: net, "signal", torch.rand(5, 2, 8, 6, 4, generator=torch.Generator()))


def test_tokens_that_are_none_are_left_out(tmp_path):
    x = torch.randint(0, 11, (7, 6), generator=torch.Generator().manual_seed(1))
    assert (x[:, 1:] == 0).any()
    assert_same(tmp_path / "b", built("tokens", Padded()), "tokens", x)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (lambda x: x.cumsum(1), "its operator 'cumsum'"),
        (lambda x: x.topk(2, 1).values, "its operator 'topk'"),
        (lambda x: x[x > -9].reshape(x.shape), "its operator '(index|nonzero)'"),
        (lambda x: F.adaptive_max_pool2d(x, 4), "adaptive_max_pool2d with windows of different sizes"),
        (lambda x: torch.linalg.vector_norm(x, 3, 1), "a norm of order 3"),
        (
            nn.Sequential(OrderedDict({100 * "a": nn.Conv2d(4, 4, 1)})),
            "the name of its entry 'steps.aaa.*' has 113 char",
        ),
        (lambda x: x + torch.ones(len(x), 4, 6, 6).cumsum(0), "it does other things for two samples than for three"),
    ],
)
def test_what_no_device_takes_is_named(tmp_path, steps, words):
    with pytest.raises(UserError, match=words) as caught:
        own_bundle(tmp_path / "b", built("image", steps), IMAGE)
    assert "\n" not in str(caught.value)


def test_a_net_of_too_many_steps_is_told_what_makes_them_fewer(tmp_path, monkeypatch):
    monkeypatch.setattr("splitmix.runtime.graph.trace.MOST_STEPS", 50)
    with pytest.raises(UserError, match=r"takes [0-9]+ steps for a sample, and a device at most 50; give a recurrent"):
        own_bundle(tmp_path / "b", built("signal", Recurrent(nn.GRU(4, 3, batch_first=True))), SIGNAL, kind="signal")


def test_the_multiplications_of_an_lstm_are_counted():
    lstm = Recurrent(nn.LSTM(4, 3, batch_first=True))
    assert cost(lambda width: lstm, ATOM, (4, 8)).macs == 8 * (4 * 12 + 3 * 12)
