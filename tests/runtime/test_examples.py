"""Examples that a bundle brings along: the first test pictures of each class, checked before they are shown."""

import json

import numpy as np
import pytest

from helpers.bundles import random_bundle
from helpers.commands import OPTIONS
from helpers.serving import get, serving
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.data.task import task_from_arrays
from splitmix.data.tasks import find_task
from splitmix.runs.bundling import choose_examples
from splitmix.runtime.about.examples import FILE, Examples, picture_from_base64, read_examples, write_examples
from splitmix.runtime.bundle import Bundle, packaged

RNG = np.random.default_rng(0)
X, Y = RNG.random((240, 28, 28, 3), np.float32), np.arange(240) % 12
NAMES = [f"kind {i}" for i in range(12)]


@pytest.fixture(scope="module")
def task():
    return task_from_arrays({"north": (X[:120], Y[:120]), "south": (X[120:], Y[120:])}, clients=2)


def test_each_domain_shows_the_first_test_pictures_of_its_classes(task):
    found = choose_examples(task, NAMES, 1)
    assert [row.name for row in found.rows] == ["north", "south"]
    for number, row in enumerate(found.rows):
        assert len(row.pictures) <= 10  # of twelve
        for example in row.pictures:
            label = NAMES.index(example.label)
            first = np.flatnonzero((task.test.domain == number) & (task.test.labels == label))[0]
            wanted = np.round(255 * task.test.images[first])
            assert np.array_equal(picture_from_base64(example.png, (28, 28, 3)), wanted)


def test_the_bundle_of_the_package_shows_digits_of_four_domains():
    bundle = Bundle.open(packaged())
    found = read_examples(bundle)
    assert [row.name for row in found.rows] == ["pen", "photo", "print", "sign"]
    assert all([example.label for example in row.pictures] == list("0123456789") for row in found.rows)
    for ours, theirs in zip(
        choose_examples(find_task("mini"), bundle.manifest.classes, 1).rows, found.rows, strict=True
    ):
        for one, other in zip(ours.pictures, theirs.pictures, strict=True):
            drawn, kept = (picture_from_base64(each.png, (28, 28, 3)).astype(int) for each in (one, other))
            assert np.abs(drawn - kept).mean() < 3  # another Pillow draws edges a little differently


@pytest.fixture
def bundle(tmp_path):
    return random_bundle(tmp_path / "digits.bundle", bases=1)


def test_a_bundle_without_examples_has_none(bundle):
    assert read_examples(bundle) == Examples()


SPOILT = {
    "no JSON": "x",
    "another key": '{"rows": [], "more": 1}',
    "no picture": json.dumps({"rows": [{"name": "a", "pictures": [{"label": "0", "png": "AAAA"}]}]}),
    "no class": json.dumps({"rows": [{"name": "a", "pictures": [{"label": "cat", "png": "AAAA"}]}]}),
    "a code of a terminal": json.dumps({"rows": [{"name": "a\x1b[31m", "pictures": []}]}),
    "too many rows": json.dumps({"rows": [{"name": "a", "pictures": []}] * 9}),
    "too long": " " * (5 << 20),
}


@pytest.mark.parametrize("text", SPOILT.values(), ids=SPOILT)
def test_what_is_no_example_is_a_sentence(bundle, text):
    (bundle.path / FILE).write_text(text)
    with pytest.raises(UserError, match=r"fetch it again$"):
        read_examples(bundle)


def test_a_picture_of_another_size_is_refused(bundle, task):
    found = choose_examples(task_from_arrays({"a": (X[:, :4, :4], Y)}, clients=2), list("0123456789ab"), 1)
    write_examples(bundle, found)
    with pytest.raises(UserError, match="4 x 4 pixels where 28 x 28 are wanted"):
        read_examples(bundle)


def test_features_have_no_examples():
    table = task_from_arrays({"a": (X[:, 0, :5, 0], Y)}, clients=2)
    with pytest.raises(UserError, match="leave them out"):
        choose_examples(table, NAMES, 1)


@pytest.mark.slow
def test_the_command_puts_them_into_a_bundle_and_the_server_shows_them(own, tmp_path, capsys):
    main(["train", own, *OPTIONS, "-o", "rounds=1", "--out", str(tmp_path / "run"), "--workers", "1"])
    main(["bundle", str(tmp_path / "run"), "--examples", "2"])
    capsys.readouterr()
    with serving(tmp_path / "run.bundle") as address:
        rows = get(address, "/api/examples").json()["rows"]
    assert [(row["name"], len(row["pictures"])) for row in rows] == [("north", 6), ("south", 6)]  # of three classes
