"""The planner: the best dial within limits, by what was measured of the bundle and of this device."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from helpers.bundles import random_bundle
from splitmix import Model
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.nets.cost import cost, training_bytes
from splitmix.runtime.plan import Limits, bases_that_fit, plan
from splitmix.runtime.probe import Measured, cache_file, memory_mb, probe

# one base costs a millisecond and a megabyte; accuracies are those of `made_up_grid`:
# clean 0.6 + 0.3 * share of bases - 0.2 * robust, attacked 0.1 + 0.1 * share + 0.3 * robust, less 0.01
DEVICE = tuple(Measured(width=Width(k, 16), ms=float(k), slow_ms=2.0 * k, mb=float(k)) for k in range(1, 5))


@pytest.fixture(autouse=True)
def _quick_and_apart(tmp_path, monkeypatch):
    """Devices are measured in five rounds, and remembered in a folder of the test's own."""
    monkeypatch.setattr("splitmix.runtime.probe.ROUNDS", (5, 5))
    monkeypatch.setenv("SPLITMIX_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(bundle):
    """One for all tests, as none of them changes it."""
    return Model.load(bundle.path)


def planned(model, prefer="clean", **limits):
    return plan(model, Limits(**limits), prefer=prefer, measured=DEVICE)


def dial(found):
    return str(found.option.width), found.option.robust


@pytest.mark.parametrize(
    ("prefer", "limits", "expected", "binding"),
    [
        ("clean", {}, ("1/4", 0.0), ()),
        ("robust", {}, ("1/4", 1.0), ()),
        ("latency", {}, ("1/16", 0.0), ()),
        ("clean", {"max_ms": 2}, ("1/8", 0.0), ("max_ms",)),
        ("clean", {"max_ms": 2.9, "max_mb": 2}, ("1/8", 0.0), ("max_ms", "max_mb")),  # either alone would do the same
        ("clean", {"max_ms": 3, "max_mb": 2}, ("1/8", 0.0), ("max_mb",)),
        ("clean", {"min_robust": 0.3}, ("1/4", 0.5), ("min_robust",)),
        ("robust", {"min_clean": 0.75}, ("1/4", 0.5), ("min_clean",)),
        ("latency", {"min_clean": 0.75}, ("3/16", 0.0), ("min_clean",)),
        ("latency", {"min_clean": 0.6, "min_robust": 0.19}, ("1/8", 0.2), ("min_clean", "min_robust")),
        ("clean", {"max_ms": 100, "min_clean": 0.1}, ("1/4", 0.0), ()),
    ],
)
def test_the_best_dial_within_limits(model, prefer, limits, expected, binding):
    found = planned(model, prefer, **limits)
    assert found.fits
    assert dial(found) == expected
    assert found.binding == binding
    assert (found.option.ms, found.option.mb) == (found.option.bases, found.option.bases)


def test_accuracies_are_the_lower_ends_of_their_intervals_and_work_is_limited_too(model):
    found = planned(model)
    assert (found.option.clean, found.option.attacked) == (pytest.approx(0.89), pytest.approx(0.19))
    assert not planned(model, min_clean=0.895).fits  # the middle of the interval would do
    assert dial(planned(model, max_macs=model.manifest.costs[1].macs)) == ("1/8", 0.0)


def test_if_nothing_fits_the_nearest_says_what_to_relax(model):
    found = planned(model, max_ms=2, min_clean=0.8)
    assert (found.fits, dial(found)) == (False, ("1/8", 0.0))
    assert found.binding == ("min_clean",)
    assert found.relax == {"min_clean": 0.74}
    assert dial(planned(model, max_ms=2, **found.relax)) == dial(found)
    assert "nothing keeps to these limits; the nearest is width 1/8" in str(found)
    assert "relax to --min-clean 0.74" in str(found)


@pytest.mark.parametrize(
    "limits", [{"max_ms": 0.5, "max_mb": 0.1}, {"max_macs": 10, "min_robust": 1}, {"min_clean": 1}]
)
def test_what_it_says_to_relax_is_enough(model, limits):
    found = planned(model, **limits)
    assert not found.fits
    assert planned(model, **{**limits, **found.relax}).fits


def test_a_plan_is_said_in_a_sentence_and_as_a_record(model):
    found = planned(model, max_ms=2)
    said = str(found)
    assert said.startswith("width 1/8, robust 0: at least 74.0% clean, 14.0% under attack, 2.00 ms, 2.00 MB")
    assert said.endswith("what binds is --max-ms")
    record = json.loads(json.dumps(found.model_dump(mode="json")))
    assert (record["option"]["width"], record["binding"], len(record["options"])) == ("1/8", ["max_ms"], 16)


def test_only_bases_that_have_arrived_are_planned_with(bundle, tmp_path):
    device = shutil.copytree(bundle.path, tmp_path / "device")
    for base in (2, 3):
        (device / f"base-{base}.safetensors").unlink()
    found = plan(Model.load(device), Limits(), measured=DEVICE[:2])
    assert dial(found) == ("1/8", 0.0)


def test_a_bundle_that_was_never_attacked_promises_no_robustness(tmp_path):
    model = Model.load(random_bundle(tmp_path / "plain", atom="1/16", bases=4).path)
    assert dial(planned(model)) == ("1/4", 0.0)
    for asked in ({"min_robust": 0.1}, {"prefer": "robust"}):
        with pytest.raises(UserError, match="was never measured under attack"):
            planned(model, **asked)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_ms": -1}, "max_ms -1 is no limit; give a number from 0 up"),
        ({"max_ms": math.nan}, "max_ms nan is no limit"),
        ({"max_mb": math.inf}, "max_mb inf is no limit"),
        ({"min_clean": 90}, "min_clean 90 is no limit; give a share from 0 to 1"),
        ({"min_robust": "much"}, "min_robust 'much' is no limit"),
        ({"prefer": "fast"}, "unknown preference 'fast'"),
    ],
)
def test_limits_and_preferences_are_checked(model, limits, words):
    with pytest.raises(UserError, match=words):
        planned(model, **limits)


# --- this device ---


def test_a_device_is_measured_once_and_remembered_but_not_in_the_bundle(model, monkeypatch):
    before = sorted(model.bundle.path.iterdir())
    first = probe(model)
    assert sorted(model.bundle.path.iterdir()) == before
    assert [row.width for row in first] == list(model.widths)
    assert all(0 < row.ms <= row.slow_ms for row in first)
    monkeypatch.setattr("splitmix.runtime.probe.measure_widths", lambda model: pytest.fail("it was measured again"))
    assert probe(model) == first
    monkeypatch.setattr("splitmix.runtime.probe.measure_widths", lambda model: list(DEVICE))
    assert probe(model, fresh=True) == DEVICE == probe(model)
    monkeypatch.setenv("SPLITMIX_CACHE", str(model.bundle.path / "manifest.json"))  # no folder: nothing is kept
    assert probe(model) == DEVICE == probe(model)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"rows": [{"width": "1/0"}]}', b"\xff", b'{"rows": 3}'])
def test_a_damaged_memory_is_measured_anew(model, monkeypatch, content):
    monkeypatch.setattr("splitmix.runtime.probe.measure_widths", lambda model: list(DEVICE))
    cache_file(model).parent.mkdir(parents=True)
    cache_file(model).write_bytes(content)
    assert probe(model) == DEVICE


def test_memory_is_that_of_weights_and_living_activations(model):
    one, two = (memory_mb(model, width) for width in model.widths[:2])
    weights = 4 * model.manifest.costs[0].parameters / 1e6
    assert weights < one < weights + 0.3
    assert 1.8 < two / one < 2.1


# --- for training ---


@pytest.mark.parametrize(("max_mb", "bases"), [(0.1, 0), (6, 1), (16, 3), (1000, 8)])
def test_bases_that_fit_a_clients_memory(max_mb, bases):
    build, atom, image = NETS["digit"], Width(1, 8), (28, 28, 3)
    assert bases_that_fit(build, atom, image, max_mb=max_mb) == bases
    one = cost(build, atom, image)
    for count in range(bases, bases + 2):
        needed = training_bytes(one.parameters * count, one.activations * count, 32)
        assert count > 8 or (needed <= 1e6 * max_mb) == (count <= bases)


# --- commands ---


@pytest.mark.slow
def test_plan_and_probe_on_the_command_line(bundle, capsys):
    main(["probe", str(bundle.path), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["width"] for row in rows] == ["1/16", "1/8", "3/16", "1/4"]
    main(["plan", str(bundle.path), "--max-ms", "60000", "--prefer", "robust"])
    assert capsys.readouterr().out.startswith("Width 1/4, robust 1: at least")
    with pytest.raises(SystemExit) as left:
        main(["plan", str(bundle.path), "--min-clean", "0.99", "--json"])
    assert left.value.code == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False
    main(["plan", "digit", "--train", "--max-mb", "16"])
    assert "can train 3 of 8 bases of digit: a budget of 3/8" in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_calibrated_on_the_command_line_is_served(bundle, tmp_path, capsys, monkeypatch):
    from PIL import Image

    device = shutil.copytree(bundle.path, tmp_path / "device")
    x = np.random.default_rng(0).integers(0, 256, (30, 28, 28, 3), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for i, image in enumerate(x[:10]):
        Image.fromarray(image).save(tmp_path / "images" / f"{i}.png")
    np.savez(tmp_path / "images" / "more.npz", x=x[10:])
    main(["calibrate", str(device), str(tmp_path / "images"), "--most", "20"])
    assert "Calibrated on 20 images" in capsys.readouterr().out
    calibrated = Model.load(device, calibration=True)
    assert calibrated.calibration.images == 20
    assert not torch.equal(calibrated(x), Model.load(device)(x))
    monkeypatch.setattr("splitmix.serve.server.serve_until_stopped", lambda *_: None)
    monkeypatch.setattr("splitmix.serve.app.make_app", lambda model, **_: served.append(model))
    served = []
    main(["serve", str(device), "--port", "0", "--calibration", str(device / "calibration.safetensors")])
    assert torch.equal(served[0](x), calibrated(x))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "has no pictures"),
        (lambda folder: (folder / "a.png").write_bytes(b"no"), "cannot be read as a picture"),
        (lambda folder: (folder / "a.npz").write_bytes(b"no"), "a.npz (File is not a zip file); give an .npz file"),
        (
            lambda folder: np.savez(folder / "a.npz", x=np.zeros((20, 9, 9, 3))),
            r"given, but the model takes (n, 28, 28, 3)",
        ),
        (lambda folder: np.savez(folder / "a.npz", x=np.zeros((2, 28, 28, 3))), "2 images are too few to calibrate on"),
    ],
)
def test_images_that_cannot_be_used_are_one_sentence(bundle, tmp_path, capsys, make, said):
    folder = tmp_path / "images"
    folder.mkdir()
    make(folder)
    with pytest.raises(SystemExit):
        main(["calibrate", str(bundle.path), str(folder)])
    assert said in capsys.readouterr().err
