"""Files for other runtimes compute what the model computes, or are not left on disk."""

import json
import sys
from functools import cache

import numpy as np
import pytest
import torch

from helpers.bundles import random_bundle
from splitmix import __version__
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.nets import NETS
from splitmix.runs.bundling import Packing
from splitmix.runtime import export
from splitmix.runtime.export import CHECKED_DIALS, MOST, difference, export_bases, export_mix
from splitmix.runtime.export.formats import Onnx
from splitmix.runtime.export.plain import has_dial, plain_graph
from splitmix.runtime.model import Model

MISSING = 'ONNX is not installed; pip install "splitmix[onnx]"'
onnx = pytest.importorskip("onnx", reason=MISSING)
onnxruntime = pytest.importorskip("onnxruntime", reason=MISSING)

BASES = 3  # of width 1/16


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models by net and norms, each made once."""

    @cache
    def model(net="digit", dual=True):
        packing = Packing(image=(96, 96, 3)) if net == "alexnet" else Packing()
        folder = tmp_path_factory.mktemp("bundles") / f"{net}-{dual}"
        return Model.load(random_bundle(folder, net=net, atom="1/16", dual=dual, bases=BASES, packing=packing).path)

    return model


@pytest.fixture(scope="module")
def mixes(models, tmp_path_factory):
    """Exported mixes and their sessions, by net, width and dial, each made once."""

    @cache
    def made(net="digit", dual=True, width=None, robust=None):
        folder = tmp_path_factory.mktemp("files")
        file = export_mix(models(net, dual), folder, width=width, robust=robust)
        return file, session(file.path)

    return made


def pictures(model, count, seed=5):
    return np.random.default_rng(seed).random((count, *model.image), np.float32)


def session(path):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def logits(opened, x, robust=None):
    given = {"x": x} if robust is None else {"x": x, "robust": np.array([robust], np.float32)}
    return opened.run(["logits"], given)[0]


def inputs(opened):
    return [value.name for value in opened.get_inputs()]


def facts_of(opened):
    return opened.get_modelmeta().custom_metadata_map


def assert_same(found, expected):
    assert np.abs(found - expected.numpy()).max() <= MOST
    assert found.argmax(-1).tolist() == expected.argmax(-1).tolist()


# --- what the files compute ---


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_a_mix_says_what_the_model_says_at_every_width_and_dial(net, models, mixes):
    model = models(net)
    for width in model.widths:
        _, file = mixes(net, width=width if width < model.widths[-1] else None)
        for count, robust in ((count, robust) for count in (1, 7) for robust in CHECKED_DIALS):
            x = pictures(model, count)
            assert_same(logits(file, x, robust), model(x, width, robust))


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("robust", [None, 0.3])
def test_the_mean_over_the_first_bases_is_the_mix(net, robust, models, tmp_path):
    model = models(net)
    x, dial = pictures(model, 3), 0.3
    files = export_bases(model, tmp_path, robust=robust)
    votes = np.stack([logits(session(file.path), x, dial if robust is None else None) for file in files])
    assert len(votes) == BASES
    for bases, width in enumerate(model.widths, start=1):
        assert_same(votes[:bases].mean(0), model(x, width, dial))


def test_bases_that_do_not_count_alike_have_their_shares_in_a_mix_and_files_that_say_so(tmp_path):
    model = Model.load(random_bundle(tmp_path / "b", atom="1/16", bases=2, times={"1/8": [1, 3]}).path)
    x, mix = pictures(model, 3), session(export_mix(model, tmp_path, robust=0.3).path)
    assert_same(logits(mix, x), model(x, "1/8", 0.3))
    one, other = (session(file.path) for file in export_bases(model, tmp_path, robust=0.3))
    assert json.loads(facts_of(one)["splitmix.times"]) == {"1/8": [1, 3]}
    assert_same(0.25 * logits(one, x) + 0.75 * logits(other, x), model(x, "1/8", 0.3))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("robust", [0, 0.3, 1.0])
def test_a_fixed_dial_is_no_input(net, robust, models, mixes):
    model = models(net)
    made, file = mixes(net, width="1/8", robust=robust)
    x = pictures(model, 3)
    assert inputs(file) == ["x"]
    assert_same(logits(file, x), model(x, "1/8", robust))
    assert made.path.name == f"mix-2-robust-{robust:g}.onnx"


@pytest.mark.parametrize("net", NETS)
def test_single_norms_have_no_dial_and_can_be_asked_for_robust_0_alone(net, models, mixes):
    model = models(net, dual=False)
    (_, file), x = mixes(net, dual=False), pictures(model, 3)
    assert inputs(file) == ["x"]
    assert_same(logits(file, x), model(x))
    assert_same(logits(mixes(net, dual=False, robust=0)[1], x), model(x))
    with pytest.raises(UserError, match="no robustness dial"):
        mixes(net, dual=False, robust=0.5)


def test_a_dial_outside_its_range_counts_as_the_nearest_end(models, mixes):
    model, (_, file) = models(), mixes()
    x = pictures(model, 2)
    for given, counts_as in ((-3.0, 0.0), (5.0, 1.0), (float("inf"), 1.0)):
        assert_same(logits(file, x, given), model(x, None, counts_as))
    assert np.isnan(logits(file, x, float("nan"))).all()  # no number gives no numbers


def test_a_file_holds_what_the_device_was_calibrated_to(models, tmp_path):
    model = Model.load(models(dual=False).bundle.path)
    x = pictures(model, 20) / 2
    before = model(x)
    model.calibrate(x)
    file = session(export_mix(model, tmp_path).path)
    assert_same(logits(file, x), model(x))
    assert not torch.allclose(before, model(x), atol=1e-2)
    assert facts_of(file)["splitmix.calibration"] == "20 images of a device"


# --- how they are made ---


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("dual", [True, False])
def test_a_plain_graph_is_the_mean_over_its_bases(net, dual, models):
    model, dial = models(net, dual), 0.3 if dual else 0.0
    x = pictures(model, 2)
    votes = model.logits_by_base(x, None, dial)
    for rows in (slice(None), slice(2), slice(1, 2)):
        graph = plain_graph(model.mix(), model.image, rows=rows)
        assert has_dial(graph) == dual
        given = (torch.from_numpy(x), torch.tensor([dial]))[: 1 + dual]
        torch.testing.assert_close(graph(*given), votes[rows].mean(0), atol=1e-6, rtol=1e-6)
    plain_graph(model.mix(), model.image, robust=0.0)
    assert torch.equal(model.logits_by_base(x, None, dial), votes)  # the model is as it was


def test_a_fixed_norm_becomes_part_of_the_layer_before_it_and_the_last_linear_takes_the_mean(mixes):
    fixed, moving = (onnx.load(mixes(robust=robust)[0].path).graph for robust in (0.3, None))
    assert "BatchNormalization" not in [node.op_type for node in fixed.node]
    assert [node.op_type for node in moving.node].count("BatchNormalization") == 5
    shapes = {tensor.name: tuple(tensor.dims) for tensor in moving.initializer}
    assert shapes["fc3.weight"] == (10, BASES * 32)
    assert moving.node[-1].op_type == "Gemm"


def test_the_weights_are_inside(models, mixes):
    made, _ = mixes(robust=0.3)
    assert [path.name for path in made.path.parent.iterdir()] == ["mix-3-robust-0.3.onnx"]
    weights = models().mix().body.state_dict()
    numbers = sum(value.numel() for name, value in weights.items() if "norm" not in name)
    assert 0.99 < made.bytes / (4 * numbers) < 1.02
    assert made.bytes == made.path.stat().st_size


def test_a_file_says_what_it_is_and_nothing_is_printed(models, mixes, tmp_path, capfd):
    model = models()
    last = export_bases(model, tmp_path, robust=0.3)[-1]
    assert capfd.readouterr() == ("", "")
    facts = facts_of(session(last.path))
    assert [facts[f"splitmix.{key}"] for key in ("width", "bases", "robust")] == ["1/16", "2", "0.3"]
    facts = facts_of(mixes(width=model.widths[1])[1])
    assert json.loads(facts.pop("splitmix.classes")) == list(model.classes)
    assert facts.pop("splitmix.pixels").startswith("float32 from 0 to 1 (uint8 divided by 255)")
    assert facts == {
        "splitmix.version": __version__,
        "splitmix.bundle": model.manifest.sha256,
        "splitmix.net": "digit",
        "splitmix.width": "1/8",
        "splitmix.bases": "0 1",
        "splitmix.image": "28x28x3",
        "splitmix.robust": "input",
        "splitmix.calibration": "of the bundle",
    }


def test_a_step_that_cannot_be_written_is_named():
    graph = torch.fx.symbolic_trace(torch.nn.Softplus())
    with pytest.raises(UserError, match="the net has a step 'softplus', which no ONNX file is written for yet"):
        Onnx().write(graph, (4, 4, 1), {})


# --- the check ---


def test_a_difference_is_that_of_the_logits_or_what_another_answer_loses():
    expected = np.array([[0.5, 0.2], [0.1, 0.9]], np.float32)
    assert difference(expected, expected) == 0
    assert difference(expected + np.float32(0.25), expected) == pytest.approx(0.25)
    assert difference(10 * expected + np.float32(0.9), 10 * expected) == pytest.approx(0.1)  # of the largest, 9
    assert np.isnan(difference(expected * np.nan, expected))
    expected = np.array([[0.5, 0.5 - 1e-7], [0.4, 0.3]], np.float32)
    assert difference(np.array([[0.5, 0.5 + 1e-7], [0.4, 0.3]], np.float32), expected) < 1e-6  # a tie
    assert difference(np.array([[0.5, 0.4], [0.35, 0.351]], np.float32), expected) >= 0.0999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "error", "where"),
    [
        (export_mix, 1e-4, "width"),
        (export_bases, float("nan"), "width"),
        (export_bases, 1e-3, "width 3/16"),  # the last base alone is wrong: no file of the others is left either
    ],
)
def test_a_file_that_differs_from_the_model_is_not_left(make, error, where, models, tmp_path, monkeypatch):
    def wrong(mix, image, *, rows, **settings):
        graph = plain_graph(mix, image, rows=rows, **settings)
        if error != 1e-3 or rows == slice(2, 3):
            graph.fc3.bias[4] += error
        return graph

    monkeypatch.setattr(export, "plain_graph", wrong)
    sentence = rf"does not compute what the model does: at {where}.* allowed is 1e-05; nothing"
    with pytest.raises(UserError, match=sentence):
        make(models(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"width": "1/4"}, "width 1/4 needs 4 bases but only 3 are here"),
        ({"width": "1/3"}, "width 1/3 is not a multiple of the atom 1/16"),
        ({"robust": 1.5}, r"robustness dial 1.5 is outside \[0, 1\]"),
        ({"robust": float("nan")}, "'nan' is not a robustness dial"),
        ({"format": "onx"}, "unknown format 'onx'; did you mean 'onnx'"),
    ],
)
@pytest.mark.parametrize("make", [export_mix, export_bases])
def test_what_cannot_be_made_is_one_sentence(make, settings, sentence, models, tmp_path):
    with pytest.raises(UserError, match=sentence):
        make(models(), tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("format", "package", "extra"), [("onnx", "onnx", "onnx"), ("pte", "executorch", "executorch")]
)
def test_a_package_that_is_missing_is_named(format, package, extra, models, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf'exporting to {format} needs {package}.* pip install "splitmix\[{extra}\]"'):
        export_mix(models(), tmp_path, format=format)


# --- the command ---


@pytest.fixture
def place(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.bundle").symlink_to(models().bundle.path)
    return tmp_path


def test_the_command_writes_a_file_for_each_width(place, capsys):
    main(["export", "two.bundle", "--width", "1/16", "3/16", "--robust", "0.3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"two.export/mix-{k}-robust-0.3.onnx" for k in (1, 3)]
    assert "differs from the model by at most" in lines[0]
    assert {path.name for path in (place / "two.export").iterdir()} == {f"mix-{k}-robust-0.3.onnx" for k in (1, 3)}


@pytest.mark.slow
def test_the_command_writes_a_file_for_each_base_or_the_widest(place, capsys):
    main(["export", "two.bundle", "--per-base", "--width", "1/8", "--out", "device", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in made] == ["device/base-0.onnx", "device/base-1.onnx"]
    assert all(0 <= row["difference"] <= MOST for row in made)
    main(["export", "two.bundle", "--json"])
    assert [row["path"] for row in json.loads(capsys.readouterr().out)] == ["two.export/mix-3.onnx"]


# --- ExecuTorch ---


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of ExecuTorch's own
@pytest.mark.parametrize("robust", [None, 0.3])
def test_a_program_for_phones_says_what_the_model_says(robust, models, tmp_path):
    pytest.importorskip("executorch", reason='ExecuTorch is not installed; pip install "splitmix[executorch]"')
    model = models()
    made = export_mix(model, tmp_path, width="1/8", robust=robust, format="pte")
    run = export.FORMATS["pte"].open(made.path.read_bytes())
    assert_same(run(pictures(model, 2), 0.3), model(pictures(model, 2), "1/8", 0.3))
