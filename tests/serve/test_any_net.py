"""The contract with any plain net goes on behind HTTP: what is answered there is what PyTorch computes."""

import numpy as np
import pytest
import torch

from helpers.bundles import noisy, own_bundle
from helpers.plain_nets import PLAIN_NETS
from helpers.serving import get, post, serving
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets.swap import Swap

KINDS = {"mlp": "features", "signal": "signal", "transformer": "signal"}
DUAL = ("resnet", "mobilenet", "signal")  # those with batch norms, which may have noisy twins
ATOM = Width(1, 4)


def question(name):
    """A sample as it is sent, and as the net takes it."""
    shape, rng = PLAIN_NETS[name][1], np.random.default_rng(0)
    if name in KINDS:
        numbers = rng.random(shape, np.float32)
        return {"numbers": numbers.tolist()}, torch.from_numpy(numbers)
    pixels = rng.integers(0, 256, (*shape[1:], shape[0]))
    return {"pixels": pixels.tolist()}, torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def reference(name, sample, robust):
    """Logits of every base by PyTorch."""
    build = PLAIN_NETS[name][0]
    net = Net(Swap(build, stacked=False, dual=True) if name in DUAL else build)
    net.axes = sample.dim()
    with torch.no_grad():
        return net.run(ATOM, noisy(net, Layout(2, ATOM)), sample[None], robust)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN_NETS)
def test_any_plain_net_is_served_at_every_width_and_dial(tmp_path, name):
    asked, sample = question(name)
    bundle = own_bundle(tmp_path / "b", *PLAIN_NETS[name], kind=KINDS.get(name, "image"), dual=name in DUAL)
    with serving(bundle.path) as address:
        facts = get(address, "/api/model").json()
        assert (facts["dual"], len(facts["widths"])) == (name in DUAL, 2)
        for robust in (0.0, 0.3, 1.0) if name in DUAL else (0.0,):
            votes = reference(name, sample, robust)
            for bases, width in enumerate(facts["widths"], start=1):
                shares = votes[:bases].mean(0)[0].softmax(-1)
                answer = post(address, **asked, width=width, robust=robust).json()
                np.testing.assert_allclose(answer["probabilities"], shares, rtol=0, atol=1e-4)
                assert answer["label"] == facts["classes"][int(shares.argmax())]
