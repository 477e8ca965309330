"""The bundle that comes with the package: small, measured, and its dials do what they say."""

import json
import platform
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.bundles import images, sealed
from splitmix import Model
from splitmix.data.mini import mini_domains
from splitmix.runtime.bundle import packaged

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model():
    return Model.load(packaged())


def test_it_is_whole_small_and_package_data(model):
    assert [str(width) for width in model.widths] == ["1/8", "1/4", "3/8", "1/2", "5/8", "3/4", "7/8", "1"]
    assert model.dual
    assert model.manifest.storage == "float16"
    assert sum(file.stat().st_size for file in packaged().iterdir()) < 5e6
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["splitmix"]
    for file in (*packaged().iterdir(), packaged().parent / "README.md"):
        assert any(file.match(pattern) for pattern in said), file.name


def test_it_answers_the_same_to_the_bit_where_its_manifest_has_no_graph_as_in_older_versions(tmp_path):
    shutil.copytree(packaged(), tmp_path / "old")
    said = json.loads((packaged() / "manifest.json").read_text()) | {"schema": 1}
    del said["graph"], said["sample"]
    (tmp_path / "old" / "manifest.json").write_bytes(sealed(said))
    old, new = Model.load(tmp_path / "old"), Model.load(packaged(), backend="torch")
    assert (old.backend, old.manifest.graph) == ("torch", None)
    for width, robust in (("1/8", 0.0), ("3/8", 0.3), ("1", 1.0)):
        assert torch.equal(old(images(5), width, robust), new(images(5), width, robust))


def test_it_was_measured_at_every_width_under_a_strong_attack_and_its_dials_pay_off(model):
    table = model.manifest.table
    dials = {(row.width, row.robust) for row in table.rows}
    assert dials == {(str(width), robust) for width in model.widths for robust in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)}
    assert not table.weak
    assert "PGD" in table.attack
    assert all(row.attacked_low <= row.attacked <= row.attacked_high for row in table.rows)
    rows = {(row.width, row.robust): row for row in model.manifest.table.rows}
    for width in map(str, model.widths):
        assert rows[width, 1.0].attacked > rows[width, 0.0].attacked + 0.1
        assert rows[width, 0.0].clean > rows[width, 1.0].clean
    for dial in (0.6, 0.8, 1.0):
        assert rows["1", dial].attacked > rows["1/8", dial].attacked


@pytest.mark.slow
def test_it_reads_the_test_pictures_of_every_domain(model):
    for domain in mini_domains():
        right = model.predict(domain.x_test[::5], width=1).classes == domain.y_test[::5]
        assert np.mean(right) > 0.75, domain.name


def test_it_says_how_it_was_made_but_not_where(model):
    text = (packaged() / "manifest.json").read_text()
    assert model.manifest.trained["command"].startswith("splitmix train mini ")
    assert "/root" not in text
    assert "/home" not in text
    assert platform.node() not in json.loads(text)["trained"].values()
    page = (packaged().parent / "README.md").read_text()
    made = model.manifest.trained["command"]
    assert all(word in page for word in made.split(" --out ")[0].split(" -o "))
