"""Preparing: originals under the data root become the files that tasks read, once, with a record beside them."""

import hashlib
import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import helpers.originals as made
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.data import prepare
from splitmix.data.benchmarks import DOMAINNET, OFFICE, PACS, read_pack
from splitmix.data.prepare import conversions, originals
from splitmix.data.prepare.conversions import NEEDS, STAND_INS, WAYS, stratified
from splitmix.data.tasks import TASKS, find_task


def quiet(task, root, **settings):
    told = []
    prepare.prepare(task, root, tell=told.append, **settings)
    return told


def write_digits(folder):
    made.write_mnist(folder)
    made.write_usps(folder)
    made.write_matlab(folder / "svhn", ("train_32x32.mat", "test_32x32.mat"))
    made.write_matlab(folder / "synthdigits", ("synth_train_32x32.mat", "synth_test_32x32.mat"), zero=0)
    made.write_mnist_m(folder)


@pytest.mark.slow
def test_all_digits_are_prepared_from_their_originals(tmp_path):
    write_digits(tmp_path / "originals")
    quiet("digits", tmp_path)
    task = find_task("digits", root=tmp_path, settings={"clients": 5})
    assert task.domains == ("mnist", "svhn", "usps", "synthdigits", "mnist_m")
    assert task.train.images.shape == (5 * 24, 28, 28, 3)  # three tenths of 80
    assert np.bincount(task.test.labels).tolist() == [10] * 10


@pytest.mark.slow
def test_digits_are_split_like_fedbns(tmp_path):
    """The first rows of the part to train on, in the order of its shuffle; a fifth of each class is for testing."""
    train, test = made.write_mnist(tmp_path / "originals")
    x, y = np.concatenate([train, test]), np.concatenate([made.labels(60), made.labels(40)])
    WAYS["digits/mnist.npz"][0].convert(tmp_path / "originals", tmp_path / "mnist.npz")
    rows, tests = stratified(y)
    with np.load(tmp_path / "mnist.npz") as found:
        assert_array_equal(found["x_train"], x[rows])
        assert_array_equal(found["y_test"], y[tests])
    assert sorted([*rows, *tests]) == list(range(100))
    assert len(stratified(np.arange(50_000) % 10)[0]) == 7438


def test_fedbns_pickles_will_do_instead(tmp_path):
    x = made.write_fedbn(tmp_path / "originals", "MNIST_M", (28, 28, 3))
    WAYS["digits/mnist_m.npz"][1].convert(tmp_path / "originals", tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as found:
        assert_array_equal(found["x_train"], x)
        assert found["x_test"].shape == (20, 28, 28, 3)


@pytest.mark.parametrize("version", ["binary", "python"])
def test_cifar10_is_prepared_whole_by_halves_and_small(tmp_path, version):
    batches = made.write_cifar(tmp_path / "originals", version)
    for task in ("cifar10", "cifar10-half", "cifar10-small"):
        quiet(task, tmp_path)
    whole = find_task("cifar10", root=tmp_path, settings={"clients": 10, "partition": "iid"})
    assert_array_equal(whole.train.images[20:40], batches["data_batch_2"][0])
    assert (whole.domains, len(whole.train.labels), len(whole.test.labels)) == (("cifar10",), 100, 20)
    half = find_task("cifar10-half", root=tmp_path, settings={"clients": 5, "partition": "iid"})
    assert_array_equal(half.train.images, whole.train.images[:50])
    small = find_task("cifar10-small", root=tmp_path, settings={"clients": 5, "partition": "iid"})
    assert small.domains == ("cifar10_small",)


def test_the_small_cifar10_has_the_first_images_of_each_class_in_their_order(tmp_path, monkeypatch):
    x = np.arange(30_000, dtype=np.int64)
    y = x // 5 % 10
    images = (x[:, None, None, None] % 251).astype(np.uint8)
    monkeypatch.setattr(originals, "read_cifar10", lambda _: dict.fromkeys(originals.BATCHES, (images, y)))
    conversions.write_cifar10(tmp_path, tmp_path / "small.npz", small=True)
    with np.load(tmp_path / "small.npz") as found:
        assert np.bincount(found["y_train"]).tolist() == [1000] * 10
        assert_array_equal(found["y_train"], y[:10_000])
        assert_array_equal(found["x_test"], images[:2000])


@pytest.mark.slow
def test_domainnet_keeps_its_own_split_and_ten_classes_zipped_or_not(tmp_path):
    domains = [names[0] for names in DOMAINNET.domains]
    made.write_domainnet(tmp_path / "originals", domains, list(DOMAINNET.classes), zipped=domains[:2])
    quiet("domainnet", tmp_path)
    task = find_task("domainnet", root=tmp_path, settings={"clients": 6})
    assert task.domains == ("real", "clipart", "infograph", "painting", "quickdraw", "sketch")
    assert task.train.images.shape == (6 * 20, 96, 96, 3)
    assert (task.classes, task.net, len(task.test.labels)) == (10, "alexnet", 60)
    greys = task.train.images.reshape(120, -1).mean(axis=1)
    assert np.abs(greys - 20 * task.train.labels).max() < 3  # the right label is with the right picture


FEDBN_NAMES = ("back_pack", *OFFICE.class_names[1:5], "laptop_computer", *OFFICE.class_names[6:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "size", "inner", "names"),
    [(PACS, 256, "", PACS.class_names), (OFFICE, 96, "a/b", FEDBN_NAMES)],
    ids=["pacs", "office"],
)
def test_class_folders_are_split_by_lot_wherever_they_lie_and_by_any_of_their_names(
    tmp_path, known, size, inner, names
):
    made.write_pictures(tmp_path / "originals" / known.name / inner, [n[-1] for n in known.domains], names)
    quiet(known.task(size), tmp_path)
    pack = read_pack(tmp_path / known.file(size))
    assert [domain.name for domain in pack] == [names[0] for names in known.domains]
    assert pack[0].x_train.shape[1:] == (size, size, 3)
    for domain in pack:
        assert np.bincount(domain.y_train).tolist() == [4] * len(known.class_names)
        assert np.bincount(domain.y_test).tolist() == [1] * len(known.class_names)
    assert [path.name for path in tmp_path.glob("*.npz")] == [known.file(size)]  # no other size
    (tmp_path / known.file(size)).rename(tmp_path / "first.npz")
    quiet(known.task(size), tmp_path)
    with np.load(tmp_path / known.file(size)) as again, np.load(tmp_path / "first.npz") as first:
        assert all((again[key] == first[key]).all() for key in first.files)


def test_a_record_says_what_a_file_was_made_from(tmp_path):
    made.write_cifar(tmp_path / "originals", "binary")
    told = quiet("cifar10", tmp_path)
    record = json.loads((tmp_path / "cifar10.json").read_text())
    assert record["sha256"] == hashlib.sha256((tmp_path / "cifar10.npz").read_bytes()).hexdigest()
    (used,) = record["made_from"]
    archive = tmp_path / "originals/cifar10/cifar-10-binary.tar.gz"
    assert used["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert used["as_published"] is False
    assert any("not as published" in line for line in told)
    assert any("terms of use" in line for line in told)


def test_what_is_there_is_not_made_again(tmp_path):
    (tmp_path / "cifar10.npz").write_bytes(b"mine")
    made.write_cifar(tmp_path / "originals", "binary")
    assert quiet("cifar10", tmp_path) == []
    assert (tmp_path / "cifar10.npz").read_bytes() == b"mine"


def test_a_stand_in_will_do_until_the_originals_come(tmp_path):
    (tmp_path / "cifar10_small.npz").write_bytes(b"")
    assert quiet("cifar10", tmp_path) == []
    made.write_cifar(tmp_path / "originals", "python")
    quiet("cifar10", tmp_path)
    assert (tmp_path / "cifar10.npz").exists()


def test_missing_originals_are_named_with_their_page_and_place(tmp_path):
    with pytest.raises(UserError) as caught:
        quiet("digits", tmp_path)
    said = str(caught.value)
    for piece in ("digits data is missing under", "usps/usps.t.bz2", "http://yaroslav.ganin.net/", "--download"):
        assert piece in said
    assert f"put these originals below {tmp_path / 'originals'}" in said
    with pytest.raises(UserError, match=r"^pacs data is missing .*originals$"):  # nobody offers a lasting address
        quiet("pacs", tmp_path)


def test_a_failed_conversion_leaves_nothing_behind(tmp_path):
    names = [names[0] for names in PACS.domains]
    made.write_pictures(tmp_path / "originals/pacs", names, PACS.class_names)
    (tmp_path / "originals/pacs/sketch/person/sketch_002.jpg").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"cannot read the picture .*sketch_002\.jpg .*delete it"):
        quiet("pacs", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["originals"]


def test_downloads_use_the_first_way_that_can_be_fetched(tmp_path, monkeypatch):
    """Nothing here touches the network: what fetches is replaced."""
    asked = []

    def fetch(url, target, *, md5, watch):
        asked.append((url, md5))
        made.write_cifar(tmp_path / "originals", "binary")

    monkeypatch.setattr(prepare, "fetch", fetch)
    told = quiet("cifar10", tmp_path, download=True)
    assert asked == [(conversions.CIFAR_BINARY.url, conversions.CIFAR_BINARY.md5)]
    assert told[0].startswith("fetched cifar10/cifar-10-binary.tar.gz, sha256 ")
    with pytest.raises(UserError, match="pacs data is missing"):
        quiet("pacs", tmp_path, download=True)


def test_every_task_with_files_can_be_prepared():
    assert set(NEEDS) == set(TASKS) - {"mini", "nodes"}
    assert {name for names in NEEDS.values() for name in names} == set(WAYS)
    assert set(STAND_INS) <= set(WAYS)
    for ways in WAYS.values():
        for original in (original for way in ways for original in way.originals):
            assert original.page
            assert len(original.md5) == (32 if original.url else 0)  # no download without a published checksum


def test_the_command_prepares_and_counts(tmp_path, capsys):
    made.write_cifar(tmp_path / "originals", "binary", count=200)
    main(["data", "prepare", "cifar10", "--data-root", str(tmp_path), "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["domain"], row["clients"], row["test"]) == ("cifar10", 100, 200)
