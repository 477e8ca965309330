"""The benchmark tasks: small files and packs of pictures in the same format, and the real ones where there are any."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.originals import encoded
from splitmix.core.errors import UserError
from splitmix.data.benchmarks import (
    DIGITS_FILES,
    DOMAINNET,
    OFFICE,
    PACK_KEYS,
    PACS,
    SYNTH_SUBSTITUTE,
    cifar_domain,
    digits_domains,
    packed_domains,
    read_pack,
)
from splitmix.data.folder import load_arrays
from splitmix.data.partition import Classes
from splitmix.data.prepare.pictures import PackedPicture
from splitmix.data.prepare.store import write_pack
from splitmix.data.task import Task, describe_task
from splitmix.data.tasks import find_task

GREY = ("mnist", "usps")


def made(name: str, root: Path, seed: int = 0, **settings) -> Task:
    return find_task(name, root=root, seed=seed, settings=settings)


def write(file, shape, rows, tests):
    """Every pixel of image i is i; labels in turn, as bytes."""
    file.parent.mkdir(exist_ok=True)
    x = (np.arange(rows).reshape(-1, *(1,) * len(shape)) * np.ones(shape)).astype(np.uint8)
    y = (np.arange(rows) % 10).astype(np.uint8)
    np.savez(file, x_train=x, y_train=y, x_test=x[:tests], y_test=y[:tests], src_train=np.arange(rows))


@pytest.fixture
def root(tmp_path):
    for name, file in DIGITS_FILES.items():
        write(tmp_path / file, (8, 8) if name in GREY else (8, 8, 3), rows=108, tests=40)
    write(tmp_path / "cifar10_small.npz", (8, 8, 3), rows=200, tests=100)
    return tmp_path


def test_domains_come_in_fedbns_order_in_colour_and_three_tenths_of_the_smallest(root):
    domains = digits_domains(root)
    assert [d.name for d in domains] == ["mnist", "svhn", "usps", "synthdigits", "mnist_m"]
    assert {d.x_train.shape for d in domains} == {(30, 8, 8, 3)}
    assert domains[0].x_train[7].tolist() == np.full((8, 8, 3), 7).tolist()
    write(root / DIGITS_FILES["usps"], (8, 8), rows=51, tests=40)
    assert {len(d.y_train) for d in digits_domains(root, percent=1.0)} == {50}
    for percent in (0.25, 0):
        with pytest.raises(UserError, match="whole number of tenths"):
            digits_domains(root, percent=percent)


def test_ten_clients_per_domain_have_consecutive_rows(root):
    task = made("digits", root)
    assert len(task.shards) == 50
    assert (task.net, task.classes, task.augment) == ("digit", 10, False)
    assert [s.tolist() for s in (task.shards[11].train, task.shards[11].val)] == [[33, 34], [35]]
    assert task.shards[11].test.tolist() == [44, 45, 46, 47]
    assert [s.domain for s in task.shards[::10]] == list(DIGITS_FILES)


def test_a_substitute_stands_in_for_synthdigits_under_its_own_name(root):
    write(root / SYNTH_SUBSTITUTE, (8, 8, 3), rows=108, tests=40)
    assert digits_domains(root)[3].name == "synthdigits"
    (root / DIGITS_FILES["synthdigits"]).unlink()
    assert [d.name for d in digits_domains(root)] == ["mnist", "svhn", "usps", "synth_substitute", "mnist_m"]


def test_missing_files_are_all_named_with_the_way_to_set_the_root(root):
    (root / DIGITS_FILES["usps"]).unlink()
    (root / DIGITS_FILES["mnist_m"]).unlink()
    with pytest.raises(UserError) as caught:
        made("digits", root)
    message = str(caught.value)
    for piece in ("usps.npz, digits/mnist_m.npz", str(root), "x_train", "--data-root", "SPLITMIX_DATA"):
        assert piece in message
    assert "svhn" not in message


def test_a_file_with_unequal_arrays_is_named(root):
    np.savez(root / DIGITS_FILES["svhn"], x_train=np.zeros((9, 8, 8)), y_train=np.arange(8), x_test=1, y_test=1)
    with pytest.raises(UserError, match=r"svhn\.npz: 9 training images but 8 labels"):
        digits_domains(root)


def test_cifar_clients_hold_three_classes_unless_asked_otherwise(root):
    task = made("cifar10", root, clients=20)
    assert (task.net, task.augment, task.domains) == ("preresnet18", True, ("cifar10_small",))
    assert describe_task(task)[0]["classes per client"] == "3"
    iid = made("cifar10", root, clients=10, partition="iid", val_ratio=0.5)
    assert {(len(s.train), len(s.val), len(s.test)) for s in iid.shards} == {(10, 10, 10)}
    assert describe_task(made("cifar10", root, 1, clients=20, partition=Classes(2)))[0]["classes per client"] == "2"


def test_the_whole_cifar_comes_before_its_subset_and_can_be_halved(root):
    write(root / "cifar10.npz", (8, 8, 3), rows=250, tests=100)
    assert made("cifar10", root, clients=20).domains == ("cifar10",)
    assert made("cifar10-small", root, clients=20).domains == ("cifar10_small",)
    half = made("cifar10-half", root, clients=10, partition="iid")
    assert half.train.images[:, 0, 0, 0].tolist() == list(range(125))
    assert len(half.test.labels) == 100
    with pytest.raises(UserError, match=r"percent 0 is outside"):
        cifar_domain(root, percent=0)
    with pytest.raises(UserError, match=r"CIFAR-10 data is missing under .*cifar10\.npz"):
        made("cifar10", root / "nowhere")


@pytest.mark.slow
@pytest.mark.skipif("SPLITMIX_DATA" not in os.environ, reason="SPLITMIX_DATA is not set")
def test_the_real_digits_have_the_papers_counts():
    task = made("digits", Path(os.environ["SPLITMIX_DATA"]))
    assert {len(s.train) for s in task.shards} == {111, 112}
    assert {len(s.val) for s in task.shards} == {111}
    assert len(task.train.labels) == 5 * 2229
    assert task.train.images.shape[1:] == (28, 28, 3)


def pictures(counts=(12, 8, 20), tests=4):
    """Per domain so many pictures of three classes; each is of one grey, its number."""
    for domain, count in enumerate(counts):
        for i in range(count):
            grey = np.full((8, 8, 3), 10 * i, np.uint8)
            yield domain, PackedPicture(f"c{i % 3}/{i}.jpg", i % 3, i < tests, encoded(grey))


@pytest.fixture
def pack(tmp_path):
    write_pack(tmp_path / "pack.npz", ["a", "b", "c"], ["x", "y", "z"], pictures())
    return tmp_path / "pack.npz"


def test_pictures_come_back_with_their_labels(pack):
    a, b, c = read_pack(pack, even=False)
    assert [(d.name, len(d.y_train), len(d.y_test)) for d in (a, b, c)] == [("a", 8, 4), ("b", 4, 4), ("c", 16, 4)]
    assert_array_equal(b.y_train, [1, 2, 0, 1])
    assert np.abs(b.x_train[:, 0, 0, 0].astype(int) - [40, 50, 60, 70]).max() <= 2
    assert b.x_test.shape == (4, 8, 8, 3)


def test_even_domains_have_as_many_pictures_as_the_smallest_and_always_the_same(pack):
    first, again = read_pack(pack), read_pack(pack)
    assert [len(d.y_train) for d in first] == [4, 4, 4]
    assert [len(d.y_test) for d in first] == [4, 4, 4]
    for one, two in zip(first, again, strict=True):
        assert_array_equal(one.x_train, two.x_train)


@pytest.mark.parametrize("key", ["jpeg", "offset", "label", "domain", "is_test", "domains", "classes"])
def test_arrays_that_are_missing_or_do_not_fit_are_refused(pack, key):
    with np.load(pack) as stored:
        arrays = dict(stored)
    for broken in ({k: v for k, v in arrays.items() if k != key}, {**arrays, key: arrays[key][:2]}):
        np.savez(pack, **broken)
        if key == "classes" and key in broken:
            continue  # only their names
        with pytest.raises(UserError, match=r"pack\.npz is no pack of JPEGs.*prepare it anew"):
            read_pack(pack)


def test_a_damaged_picture_is_named(pack):
    with np.load(pack) as stored:
        arrays = dict(stored)
    arrays["jpeg"] = np.zeros_like(arrays["jpeg"])
    np.savez(pack, **arrays)
    with pytest.raises(UserError, match=r"cannot read picture 4 of .*pack\.npz"):
        read_pack(pack)


def test_a_missing_pack_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(UserError, match=r"PACS data is missing under .*pacs_96\.npz.*splitmix data prepare"):
        packed_domains(PACS, tmp_path)


def test_classes_have_one_name_each():
    assert OFFICE.class_names[:2] + OFFICE.class_names[5:6] == ("backpack", "bike", "laptop")
    assert [len(known.class_names) for known in (DOMAINNET, OFFICE, PACS)] == [10, 10, 7]


@pytest.mark.slow
@pytest.mark.skipif("SPLITMIX_DATA" not in os.environ, reason="SPLITMIX_DATA is not set")
def test_the_real_packs_have_the_counts_of_their_authors():
    root = Path(os.environ["SPLITMIX_DATA"])
    for known, expected in ((OFFICE, [958, 1123, 157, 295]), (PACS, [1670, 2048, 2344, 3929])):
        assert np.bincount(load_arrays(root / known.file(96), PACK_KEYS)["domain"]).tolist() == expected
    assert find_task(OFFICE.name, root=root).image == (96, 96, 3)
