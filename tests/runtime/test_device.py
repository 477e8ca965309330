"""Devices without PyTorch: any net is bundled as a graph, and ONNX Runtime answers with it as PyTorch does."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers.bundles import images, noisy, own_bundle, random_bundle
from helpers.plain_nets import PLAIN_NETS, samples
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets.swap import Swap
from splitmix.runtime.bundle import packaged
from splitmix.runtime.graph.onnx_bytes import onnx_bytes

ort = pytest.importorskip("onnxruntime", reason='ONNX Runtime is not installed; pip install "splitmix[onnx]"')
ATOM = Width(1, 4)
KINDS = {"mlp": "features", "signal": "signal", "transformer": "signal"}
DUAL = ("resnet", "mobilenet", "signal")  # those with batch norms, which may have noisy twins

DEVICE = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "onnxscript", "PIL"):
            raise ImportError(f"{name} is not on this device", name=name)
sys.meta_path.insert(0, Refuse())
import numpy as np
import splitmix
from splitmix.core.errors import UserError
from splitmix.runtime.plan import Limits, plan
path, x = sys.argv[1], np.load(sys.argv[2])
model = splitmix.Model.load(path)
logits = {f"{width} {robust}": model(x, width, robust).tolist()
          for width in model.widths for robust in ((0.0, 0.3, 1.0) if model.dual else (0.0,))}
model.set(width=model.widths[0])
with model.dial(width=model.widths[-1]):
    early = model.predict(x, deadline_ms=1e6, confidence=1.0)
found = plan(model, Limits(max_ms=1e6))
try:
    model.calibrate(np.concatenate([x] * 20))
    model.save_calibration(sys.argv[3])
    again = splitmix.Model.load(path, calibration=sys.argv[3])
    calibrated = again(x).tolist()
except UserError as error:
    calibrated = str(error)
assert "torch" not in sys.modules
print(json.dumps({"logits": logits, "classes": early.classes.tolist(), "fits": found.fits, "calibrated": calibrated}))
"""


def on_a_device(path, x, tmp_path):
    """What a process says that has no PyTorch."""
    np.save(tmp_path / "x.npy", x)
    source = Path(__file__).parents[2] / "src"
    given = [sys.executable, "-c", DEVICE, str(path), str(tmp_path / "x.npy"), str(tmp_path / "kept.safetensors")]
    place = {**os.environ, "PYTHONPATH": str(source), "SPLITMIX_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(given, capture_output=True, text=True, env=place, timeout=1200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def given(name, count=4):
    """Samples as a user gives them: images with their channels last."""
    x = samples(name, count).numpy()
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


def reference(build, x, robust, dual=False, bases=2):
    """Logits of every base by PyTorch."""
    net = Net(Swap(build, stacked=False, dual=True) if dual else build)
    net.axes = x.dim() - 1
    with torch.no_grad():
        return net.run(ATOM, noisy(net, Layout(bases, ATOM)), x, robust)


@pytest.mark.parametrize(("name", "dual"), [*((name, False) for name in PLAIN_NETS), *((name, True) for name in DUAL)])
def test_any_net_answers_on_onnx_runtime_as_it_does_in_pytorch(tmp_path, name, dual):
    build, sample = PLAIN_NETS[name]
    bundle = own_bundle(tmp_path / "b", build, sample, kind=KINDS.get(name, "image"), dual=dual)
    model = Model.load(bundle.path)
    assert (model.backend, model.dual) == ("onnx", dual)
    for robust in (0.0, 0.3, 1.0) if dual else (0.0,):
        expected = reference(build, samples(name, 7), robust, dual)
        torch.testing.assert_close(model.logits_by_base(given(name, 7), robust=robust), expected, rtol=0, atol=1e-4)
        for width in model.widths:
            mean = expected[: int(width / ATOM)].mean(0)
            assert torch.equal(model(given(name, 7), width, robust).argmax(-1), mean.argmax(-1))


class Tempered(nn.Module):
    """A net that learns one number by itself, and counts in another."""

    def __init__(self, width):
        super().__init__()
        self.body, self.heat = nn.Linear(12, 3), nn.Parameter(torch.tensor(0.5))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.body(x) * self.heat.exp() + self.seen


def test_a_weight_that_is_a_single_number_is_bundled(tmp_path):
    model = Model.load(own_bundle(tmp_path / "b", Tempered, (12,), kind="features").path)
    x = torch.rand(7, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits_by_base(x), reference(Tempered, x, 0.0, False), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN_NETS)
def test_a_device_without_pytorch_gives_the_same_answers(tmp_path, name):
    build, sample = PLAIN_NETS[name]
    path = own_bundle(tmp_path / "b", build, sample, kind=KINDS.get(name, "image")).path
    said, model = on_a_device(path, given(name), tmp_path), Model.load(path)
    for dial, logits in said["logits"].items():
        width, robust = dial.split()
        np.testing.assert_allclose(logits, model(given(name), width, float(robust)).numpy(), atol=1e-5)
    assert said["classes"] == model.predict(given(name)).classes.tolist()
    assert said["fits"]
    if name in DUAL:
        model.calibrate(np.concatenate([given(name)] * 20))
        np.testing.assert_allclose(said["calibrated"], model(given(name)).numpy(), atol=1e-5)
    else:
        assert "no batch norms" in said["calibrated"]


@pytest.mark.slow
def test_a_device_without_pytorch_has_both_dials_but_calibrates_no_noisy_norms(tmp_path):
    path = random_bundle(tmp_path / "b", atom="1/16", bases=2, grid=True).path
    said, reference = on_a_device(path, images(3), tmp_path), Model.load(path, backend="torch")
    for dial, logits in said["logits"].items():
        width, robust = dial.split()
        np.testing.assert_allclose(logits, reference(images(3), width, float(robust)).numpy(), atol=1e-4)
    assert "needs PyTorch" in said["calibrated"]


def test_noisy_norms_of_ones_own_net_are_not_calibrated_on_a_device(tmp_path):
    model = Model.load(own_bundle(tmp_path / "b", *PLAIN_NETS["resnet"], dual=True).path)
    with pytest.raises(UserError, match="the calibration of noisy norms, need PyTorch and a net of ours"):
        model.calibrate(np.concatenate([given("resnet")] * 20))


@pytest.mark.slow
def test_a_device_without_pytorch_opens_the_bundle_of_the_package(tmp_path):
    said, reference = on_a_device(packaged(), images(3), tmp_path), Model.load(packaged(), backend="torch")
    assert len(said["logits"]) == 24
    for dial, logits in said["logits"].items():
        width, robust = dial.split()
        np.testing.assert_allclose(logits, reference(images(3), width, float(robust)).numpy(), atol=1e-4)


def test_onnx_runtime_measures_norms_as_pytorch_does(tmp_path):
    path = random_bundle(tmp_path / "b", atom="1/16", bases=2, dual=False).path
    found = [Model.load(path, backend=backend) for backend in ("onnx", "torch")]
    for model in found:
        model.calibrate(images(150))
    ours, theirs = (model.calibration.statistics for model in found)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_file_that_onnx_runtime_is_given_is_one_that_onnx_reads(tmp_path):
    onnx = pytest.importorskip("onnx")
    for name, (build, sample) in PLAIN_NETS.items():
        bundle = own_bundle(tmp_path / name, build, sample, kind=KINDS.get(name, "image"))
        weights = bundle.read_base(0)
        for measuring in (False, True):
            model = onnx.load_from_string(onnx_bytes(bundle.manifest.graph, weights, measuring=measuring))
            onnx.checker.check_model(model, full_check=True)


class Odd(nn.Module):
    """A net with something in it that has no operator here."""

    def __init__(self, width, odd):
        super().__init__()
        self.first, self.odd = nn.Linear(12, int(64 * width)), odd
        self.last = nn.Linear(int(64 * width), 3)

    def forward(self, x):
        return self.last(self.odd(self.first(x)))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (lambda x: x.cumsum(1), "its operator 'cumsum'"),
        (lambda x: x - x.mean(0), "what it says of a sample depends on the others"),
        (lambda x: x * torch.eye(len(x), 16), "it does other things for two samples than for three"),
        (lambda x: x + torch.ones(1 << 17).cumsum(0)[: len(x), None], "it does other things for two samples"),
        (lambda x: (x[:, :, None] + torch.rand(1, 1, 1 << 17)).mean(2), "131,072 constant numbers"),
        (lambda x: x @ x.T @ x, "what it says of a sample depends on the others|grows faster"),
    ],
)
def test_a_net_that_no_device_could_run_is_one_sentence(tmp_path, odd, words):
    with pytest.raises(UserError, match=words) as caught:
        own_bundle(tmp_path / "b", lambda width: Odd(width, odd), (12,), kind="features")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "b").exists()


def test_a_net_of_ones_own_has_no_gradients_and_no_pytorch_on_a_device(tmp_path):
    build, sample = PLAIN_NETS["resnet"]
    path = own_bundle(tmp_path / "b", build, sample).path
    for call in (lambda: Model.load(path, backend="torch"), lambda: Model.load(path).mix()):
        with pytest.raises(UserError, match="its net 'mine:net' is none of digit"):
            call()
    with pytest.raises(UserError, match="unknown backend 'tensorflow'"):
        Model.load(path, backend="tensorflow")


def test_a_bundle_of_tokens_looks_them_up(tmp_path):
    class Reader(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.words, self.head = nn.Embedding(11, int(32 * width)), nn.Linear(int(32 * width), 3)

        def forward(self, x):
            return self.head(self.words(x).mean(1))

    bundle = own_bundle(tmp_path / "b", Reader, (6,), kind="tokens")
    assert repr(bundle).endswith("/b': 2 bases of mine:net)")
    what = "tokens of shape (6,), 3 classes, 2 x width 1/4, float32"
    assert str(bundle.manifest) == f"Manifest(mine:net: {what})"
    assert repr(bundle.manifest.graph) == "Graph(4 steps, 3 entries, sample (6,))"
    model = Model.load(bundle.path)
    x = torch.randint(0, 11, (5, 6), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits_by_base(x), reference(Reader, x, 0.0), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="a token among these is none that the net knows"):
        model.predict(np.full((1, 6), 11))
    with pytest.raises(UserError, match="tokens run from -1 to 0; give whole numbers from 0"):
        model(np.array([[-1] + [0] * 5]))  # which an index would take for the last of the vocabulary
    with pytest.raises(UserError, match="tokens of type float64 given"):
        model.predict(np.zeros((1, 6)))


def test_a_net_of_ones_own_is_served(tmp_path):
    httpx = pytest.importorskip("httpx")
    from splitmix.serve.app import make_app

    async def ask(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/api/predict", json={"pixels": np.zeros((8, 8, 3), int).tolist()})

    model = Model.load(own_bundle(tmp_path / "resnet", *PLAIN_NETS["resnet"]).path)
    answer = asyncio.run(ask(make_app(model)))
    assert answer.json()["label"] == model.classes[int(model.predict(np.zeros((1, 8, 8, 3))).classes[0])]
