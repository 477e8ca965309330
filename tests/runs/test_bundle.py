"""Bundles: what a run becomes, and one sentence for each that cannot be bundled."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load

import splitmix
from helpers.bundles import images as pictures
from helpers.bundles import made_up_grid, random_bundle, random_weights
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.data.task import task_from_arrays
from splitmix.nets.cost import cost
from splitmix.runs.bundling import Packing, bundle_outcome, bundle_run

SETTINGS = {"net": "digit", "atom": "1/16", "budgets": "1/16 1/8", "rounds": 1, "workers": 1, "progress": False}
ROW = {"width": "1/16", "robust": 0.0, "clean": 0.5, "clean_low": 0.4, "clean_high": 0.6}
ROW |= {"attacked": 0.2, "attacked_low": 0.1, "attacked_high": 0.3}


def trained(out=None, **settings):
    domains = {"all": (pictures(60), np.arange(60) % 3)}
    return splitmix.train(task_from_arrays(domains, clients=2, val_ratio=0.25), out=out, **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, in memory and in its folder."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return trained(folder), folder


def test_a_bundle_predicts_what_the_run_predicts(finished, tmp_path):
    run, _ = finished
    model = run.bundle(tmp_path / "bundle")
    x = pictures(20, seed=1)
    assert model.widths == run.widths == (Width(1, 16), Width(1, 8))
    for width in model.widths:
        torch.testing.assert_close(model(x, width), run(x, width), rtol=1e-4, atol=1e-5)
    assert [base.trained_as for base in model.manifest.bases] == list(run.outcome.order)


def test_a_bundle_says_what_it_is(finished, tmp_path):
    run, folder = finished
    said = bundle_run(folder, tmp_path / "bundle").manifest
    assert (said.net.name, said.net.classes, said.net.dual, said.atom) == ("digit", 3, False, "1/16")
    assert (said.image, said.classes, said.norm) == ([28, 28, 3], ["0", "1", "2"], "global")
    assert said.trained["weights_sha256"] == run.result["weights_sha256"]
    one = cost(said.build(), Width(1, 16), (28, 28, 3))
    sizes = [(tmp_path / "bundle" / f"base-{i}.safetensors").stat().st_size for i in range(2)]
    assert [(c.width, c.bases, c.parameters, c.macs, c.bytes) for c in said.costs] == [
        ("1/16", 1, one.parameters, one.macs, sizes[0]),
        ("1/8", 2, 2 * one.parameters, 2 * one.macs, sum(sizes)),
    ]


def test_accuracies_are_those_of_the_statistics_that_are_served(finished, tmp_path):
    run, folder = finished
    table = bundle_run(folder, tmp_path / "bundle").manifest.table
    expected = [row["accuracy"] for row in run.result["scores"] if row["norm"] == "global"]
    assert [row.clean for row in table.rows] == expected
    assert all(row.clean_low <= row.clean <= row.clean_high for row in table.rows)
    assert (table.norm, table.attack, table.rows[0].attacked) == ("global", None, None)


def test_a_grid_that_was_measured_goes_into_the_bundle(finished, tmp_path):
    folder = shutil.copytree(finished[1], tmp_path / "run")
    grid = made_up_grid("1/16", 2, dual=False) | {"norm": "global", "seed": 0, "interval": "95 % confidence"}
    grid["rows"] = [{**row, "bases": 1, "clean_clients": [0.5]} for row in grid["rows"]]
    (folder / "grid.json").write_text(json.dumps(grid))
    table = bundle_run(folder, tmp_path / "bundle").manifest.table
    assert [row.attacked_low for row in table.rows] == [row["attacked_low"] for row in grid["rows"]]
    assert (table.attack, table.samples, table.interval) == (grid["attack"], 1000, "95 % confidence")


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"norm": "client"}, "measured with 'client' statistics, but a device has 'global' ones"),
        ({"weights_sha256": "0" * 64}, "is of other weights"),
        ({"schema": 2}, "cannot be read"),
        ({"rows": 3}, "cannot be read"),
        ({"rows": [{**ROW, "clean": 1.5}]}, "clean is 1.5, outside"),
        ({"rows": [{**ROW, "clean_low": 0.6}]}, "an accuracy outside its own interval"),
        ({"rows": [{**ROW, "width": "1/3"}]}, "rows of widths that it has not"),
        ({"rows": [{**ROW, "robust": 0.5}]}, "its net has no robustness dial"),
    ],
)
def test_a_grid_that_does_not_fit_is_one_sentence(finished, tmp_path, grid, words):
    folder = shutil.copytree(finished[1], tmp_path / "run")
    (folder / "grid.json").write_text(json.dumps(made_up_grid("1/16", 2, dual=False) | {"norm": "global"} | grid))
    with pytest.raises(UserError, match=words):
        bundle_run(folder, tmp_path / "bundle")


def test_half_the_bytes_give_the_same_answers(finished, tmp_path):
    full, half = finished[0].bundle(tmp_path / "full"), finished[0].bundle(tmp_path / "half", half=True)
    x = pictures(60)
    assert half.manifest.costs[-1].bytes < 0.53 * full.manifest.costs[-1].bytes
    torch.testing.assert_close(half(x), full(x), rtol=0.05, atol=0.05)
    assert (half(x).argmax(-1) == full(x).argmax(-1)).float().mean() > 0.95


def test_norms_are_never_stored_as_halves(tmp_path):
    bundle = random_bundle(tmp_path / "half", atom="1/16", bases=1, packing=Packing("float16"))
    dtypes = {name: value.dtype for name, value in load((bundle.path / "base-0.safetensors").read_bytes()).items()}
    assert {dtype for name, dtype in dtypes.items() if "norm" in name} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if "norm" not in name} == {torch.float16}


def test_batch_averages_are_bundled_only_when_asked(tmp_path):
    run = trained(norm="batch")
    with pytest.raises(UserError, match="which a single image has not; give --calibrate"):
        run.bundle(tmp_path / "refused")
    model = run.bundle(tmp_path / "bundle", calibrate=True)
    assert model.manifest.norm == model.manifest.table.norm == "global"
    assert model(pictures(1)).shape == (1, 3)


def test_tracked_statistics_are_bundled_as_they_are(tmp_path):
    run = trained(norm="tracked")
    model = run.bundle(tmp_path / "bundle")
    assert model.manifest.norm == "tracked"
    torch.testing.assert_close(model(pictures(5)), run(pictures(5), "1/8"), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"norm": "local"}, "its norms never left the clients"),
        ({"method": "heterofl"}, "'heterofl' cannot be bundled, as its widths are not mixes of bases"),
    ],
)
def test_runs_that_cannot_be_bundled_are_one_sentence(tmp_path, settings, words):
    with pytest.raises(UserError, match=words):
        trained(**settings).bundle(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(("norm", "served"), [("tracked", "tracked"), ("post", "global")])
@pytest.mark.slow
def test_a_robust_run_becomes_a_model_with_two_dials(tmp_path, norm, served):
    run = trained(objective={"name": "adversarial", "steps": 1}, norm=norm)
    model = run.bundle(tmp_path / "bundle")
    assert (model.dual, model.manifest.norm) == (True, served)
    x = pictures(6)
    order = list(run.outcome.order)
    for robust in (0.0, 0.3, 1.0):
        with torch.no_grad():
            votes = run.net.run(Width(1, 16), run.weights, torch.from_numpy(x).permute(0, 3, 1, 2) / 255, robust)
        torch.testing.assert_close(model.logits_by_base(x, robust=robust), votes[order], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_norms_that_are_no_blend_of_two_cannot_be_bundled(tmp_path):
    with pytest.raises(UserError, match="objective=oat cannot be bundled"):
        trained(objective={"name": "oat", "steps": 1}, norm="tracked").bundle(tmp_path / "bundle")


@pytest.mark.slow
def test_fed_ensemble_can_be_bundled(tmp_path):
    assert trained(method="fedensemble").bundle(tmp_path / "bundle")(pictures(2)).shape == (2, 3)


def test_what_a_user_asks_of_a_bundle_is_checked(finished, tmp_path):
    run, folder = finished
    with pytest.raises(UserError, match="2 names of classes are given, but the run has 3"):
        bundle_run(folder, tmp_path / "bundle", Packing(classes=("cat", "dog")))
    assert bundle_run(folder, tmp_path / "bundle", Packing(classes=("a", "b", "c"))).manifest.classes == ["a", "b", "c"]
    with pytest.raises(UserError, match="is not empty"):
        bundle_run(folder, tmp_path / "bundle")
    own = replace(run.outcome, result={**run.result, "net": "helpers.toys:Tiny"})
    with pytest.raises(UserError, match="the run's weights are not those of its net"):
        bundle_outcome(run.setup.config, own, tmp_path / "own", Packing())
    nothing = {name: value.fill_(float("nan")) for name, value in random_weights(atom="1/16", bases=2).items()}
    with pytest.raises(UserError, match="base 1 of the run has NaN"):
        bundle_outcome(run.setup.config, replace(run.outcome, weights=nothing), tmp_path / "own", Packing())
