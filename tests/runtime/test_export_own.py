"""Nets of a user's own are exported from the graph of their bundle: the files compute what the model computes."""

import json

import numpy as np
import pytest
from torch import nn

from helpers.bundles import own_bundle
from helpers.plain_nets import PLAIN_NETS
from splitmix import Model
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.runtime.export import MOST, difference, export_bases, export_mix, own

MISSING = 'ONNX is not installed; pip install "splitmix[onnx]"'
onnx = pytest.importorskip("onnx", reason=MISSING)
ort = pytest.importorskip("onnxruntime", reason=MISSING)

SCALING = {"mean": [1e5 * i + 0.3 for i in range(12)], "deviation": [0.5 + i for i in range(12)], "columns": []}
TIMES = {"1/2": [1, 3]}


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """Two dials; its bases do not count alike at width 1/2."""
    folder = tmp_path_factory.mktemp("own") / "resnet"
    return Model.load(own_bundle(folder, *PLAIN_NETS["resnet"], dual=True, bases=3, times=TIMES).path)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """Features that are scaled before the net sees them, some of them far from 0."""
    folder = tmp_path_factory.mktemp("own") / "mlp"
    return Model.load(own_bundle(folder, *PLAIN_NETS["mlp"], kind="features", scaling=SCALING).path)


def opened(file):
    return ort.InferenceSession(file.path, providers=["CPUExecutionProvider"])


def logits(session, x, robust=None):
    given = {"x": x} if robust is None else {"x": x, "robust": np.array([robust], np.float32)}
    return session.run(["logits"], given)[0]


def pictures(model, count=5):
    return np.random.default_rng(5).random((count, *model.image), np.float32)


def rows(count=5):
    noise = np.random.default_rng(5).normal(size=(count, 12))
    return (SCALING["mean"] + noise * SCALING["deviation"]).astype(np.float32)


def assert_same(found, expected):
    assert difference(found, expected.numpy()) <= MOST


@pytest.mark.parametrize("width", ["1/4", "1/2", "3/4"])
def test_a_mix_of_ones_own_net_says_what_the_model_says_at_every_dial(width, resnet, tmp_path):
    session, x = opened(export_mix(resnet, tmp_path, width=width)), pictures(resnet)
    said = [logits(session, x, robust) for robust in (0.0, 0.3, 1.0)]
    for found, robust in zip(said, (0.0, 0.3, 1.0), strict=True):
        assert_same(found, resnet(x, width, robust))
    assert np.abs(said[0] - said[2]).max() > 1e-2  # the dial does something
    assert_same(logits(session, x, 5.0), resnet(x, width, 1.0))  # outside counts as the nearest end


@pytest.mark.parametrize("width", ["1/4", "1/2"])
def test_a_file_for_features_scales_them(width, mlp, tmp_path):
    session, x = opened(export_mix(mlp, tmp_path, width=width)), rows()
    assert [value.name for value in session.get_inputs()] == ["x"]
    assert_same(logits(session, x), mlp(x, width))
    assert_same(logits(session, x[:1]), mlp(x[:1], width))
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["splitmix.image"] == "12"
    assert facts["splitmix.pixels"] == "numbers as they stand in the table"


@pytest.mark.parametrize("robust", [0.0, 0.3])
def test_a_fixed_dial_is_no_input_of_ones_own_net(robust, resnet, tmp_path):
    made = export_mix(resnet, tmp_path, width="1/2", robust=robust)
    assert made.path.name == f"mix-2-robust-{robust:g}.onnx"
    assert [value.name for value in opened(made).get_inputs()] == ["x"]
    assert_same(logits(opened(made), pictures(resnet)), resnet(pictures(resnet), "1/2", robust))


def test_the_files_of_single_bases_say_what_each_of_them_says(resnet, tmp_path):
    x, files = pictures(resnet), export_bases(resnet, tmp_path, width="1/2")
    for file, vote in zip(files, resnet.logits_by_base(x, "1/2", 0.3), strict=True):
        assert_same(logits(opened(file), x, 0.3), vote)
        assert json.loads(opened(file).get_modelmeta().custom_metadata_map["splitmix.times"]) == TIMES


@pytest.mark.parametrize("name", ["mobilenet", "group-norm", "signal", "transformer"])
def test_other_nets_pass_the_check_too(name, tmp_path):
    kind = "signal" if name in ("signal", "transformer") else "image"
    model = Model.load(own_bundle(tmp_path / "b", *PLAIN_NETS[name], kind=kind).path)
    assert export_mix(model, tmp_path / "out").difference <= MOST


@pytest.mark.slow
def test_tokens_are_given_as_whole_numbers(tmp_path):
    def reader(width):
        return nn.Sequential(nn.Embedding(11, int(32 * width)), nn.Flatten(), nn.Linear(6 * int(32 * width), 3))

    model = Model.load(own_bundle(tmp_path / "b", reader, (6,), kind="tokens").path)
    x = np.arange(12).reshape(2, 6) % 11
    assert_same(logits(opened(export_mix(model, tmp_path)), x), model(x))


def test_a_file_of_ones_own_net_holds_what_the_device_was_calibrated_to(tmp_path):
    model = Model.load(own_bundle(tmp_path / "b", *PLAIN_NETS["resnet"]).path)
    x = pictures(model, 40) / 2
    before = model(x)
    model.calibrate(x)
    assert_same(logits(opened(export_mix(model, tmp_path)), x), model(x))
    assert difference(before.numpy(), model(x).numpy()) > 1e-2


def test_a_graph_that_differs_from_the_model_is_not_left(resnet, tmp_path, monkeypatch):
    def wrong(graph, weights):
        return own_bytes(graph, {name: value * np.float32(1.01) for name, value in weights.items()})

    own_bytes = own.onnx_bytes
    monkeypatch.setattr(own, "onnx_bytes", wrong)
    with pytest.raises(UserError, match="does not compute what the model does: at width 3/4"):
        export_mix(resnet, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_made_of_ones_own_net_is_one_sentence(resnet, mlp, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"'mine:net' is a net of your own, .*: choose the format onnx"):
        export_mix(resnet, tmp_path / "out", format="pte")
    with pytest.raises(UserError, match="no robustness dial"):
        export_mix(mlp, tmp_path / "out", robust=0.5)
    monkeypatch.setattr(own, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="2 bases are too large for one ONNX file"):
        export_mix(mlp, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_exports_ones_own_net(resnet, tmp_path, capsys):
    main(["export", str(resnet.bundle.path), "--width", "1/4", "1/2", "--out", str(tmp_path / "device"), "--json"])
    made = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in made] == [str(tmp_path / "device" / f"mix-{k}.onnx") for k in (1, 2)]
    assert all(0 <= row["difference"] <= MOST for row in made)
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(resnet.bundle.path), "--format", "pte"])
