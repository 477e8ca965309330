"""Files of an earlier version (tests/fixtures) are read, resumed, scored again and served as they were then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import splitmix
from helpers.runs import Watch
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.finish import stored_outcome
from splitmix.runs.measure.evaluate import evaluate_run
from splitmix.runs.records import read_metrics, read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up

LOGITS = {  # of the bundle's first base for three images, at both ends of the dial, as the earlier version gave them
    0.0: [[-0.0287, 0.0223, 0.0364, 0.0391], [-0.0246, 0.0227, 0.0342, 0.0396], [-0.0256, 0.0207, 0.0350, 0.0403]],
    1.0: [[-0.0286, 0.0223, 0.0363, 0.0390], [-0.0244, 0.0228, 0.0341, 0.0395], [-0.0254, 0.0207, 0.0349, 0.0402]],
}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the files, where their data and net are found."""
    monkeypatch.chdir(shutil.copytree(Path(__file__).parents[1] / "fixtures", tmp_path / "old"))
    monkeypatch.syspath_prepend(tmp_path / "old")


def resumed(folder):
    watch = Watch()
    setup = set_up(make_config(read_toml(Path(folder, "config.toml"))))
    run_in_folder(setup, Path(folder), resume=True, watchers=[watch])
    assert (watch.start, watch.notes) == (2, [])
    return load_file(f"{folder}/checkpoints/round-000006.safetensors")


@pytest.mark.parametrize("folder", ["finished", "unfinished", "unfinished-local"])
def test_the_hash_of_old_settings_is_what_it_was(old, folder):
    config = make_config(read_toml(Path(folder, "config.toml")))
    said = [json.loads(file.read_text())["config"] for file in Path(folder, "checkpoints").glob("*.json")]
    assert set(said) == {config.digest()}


@pytest.mark.parametrize("norm", ["client", "global", "batch"])
def test_an_old_run_is_read_and_scored_again(old, norm):
    result = read_result(Path("finished"))
    assert stored_outcome(Path("finished")).result == result
    assert [row["round"] for row in read_metrics(Path("finished")) if row["kind"] == "round"] == [*range(6)]
    again = evaluate_run(Path("finished"), [], "test", norm, workers=1)
    stored = [row for row in result["scores"] if row["norm"] == norm]
    assert [row["width"] for row in again] == [row["width"] for row in stored]
    assert [row["accuracy"] for row in again] == pytest.approx([row["accuracy"] for row in stored], abs=0.1)


@pytest.mark.slow
def test_an_old_run_goes_on_where_it_was_killed(old):
    torch.testing.assert_close(
        resumed("unfinished"), load_file("finished/checkpoints/round-000006.safetensors"), rtol=1e-3, atol=1e-4
    )  # not to the bit: processors differ
    assert read_result(Path("unfinished"))["bases"] == read_result(Path("finished"))["bases"]


@pytest.mark.slow
def test_an_old_run_goes_on_with_the_norms_of_its_clients(old):
    kept = load_file("unfinished-local/checkpoints/round-000002.safetensors")
    names = {name for name in kept if name.startswith("memory/")}
    assert names
    assert names <= resumed("unfinished-local").keys()


@pytest.mark.parametrize("dial", LOGITS)
def test_an_old_bundle_answers_as_it_did(old, dial):
    model = splitmix.Model.load("digit.bundle")
    images = np.random.default_rng(7).integers(0, 256, (3, *model.image), dtype=np.uint8)
    torch.testing.assert_close(model(images, "1/16", robust=dial), torch.tensor(LOGITS[dial]), rtol=0, atol=2e-4)
