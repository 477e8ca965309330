"""Tasks: pooling, checking and dealing, and domains from files."""

import pickle
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitmix.core.errors import UserError
from splitmix.data.domain import Domain, make_domain
from splitmix.data.folder import data_root, read_folder
from splitmix.data.partition import PARTITIONERS, Classes, Dirichlet
from splitmix.data.task import describe_task, make_task, task_from_arrays
from splitmix.data.tasks import TASKS, find_task


def domain(name="a", rows=100, tests=40, classes=4, shape=(2, 2, 1)):
    x = np.arange(rows + tests, dtype=np.uint8).reshape(-1, *(1,) * len(shape)) * np.ones(shape, np.uint8)
    y = np.arange(rows + tests) % classes
    return Domain(name, x[:rows], y[:rows], x[rows:], y[rows:])


def pair():
    return [domain("a"), domain("b", rows=120)]


@pytest.mark.parametrize("name", TASKS)
def test_a_listed_task_deals_images_of_its_classes_to_clients_or_says_what_it_lacks(name, tmp_path):
    lack = pytest.raises(UserError, match=r"(?s)data is missing under .*prepare|train on them with --engine flower")
    with nullcontext() if name == "mini" else lack:
        task = find_task(name, root=tmp_path)
        assert all(len(shard.train) and len(shard.test) for shard in task.shards)
        assert set(task.train.labels.tolist()) == set(range(task.classes))


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("same", [True, False])
@settings(max_examples=6)
@given(st.integers(0, 999), st.integers(2, 4), st.sampled_from([0.0, 0.1, 0.5]))
def test_train_val_and_test_are_disjoint_on_every_client(name, same, seed, clients, val_ratio):
    task = make_task(
        "t", pair(), clients=clients, partition=name, val_ratio=val_ratio, seed=seed, same_test_classes=same
    )
    train = np.concatenate([np.concatenate([s.train, s.val]) for s in task.shards])
    test = np.concatenate([s.test for s in task.shards])
    assert len(task.shards) == clients
    assert len(np.unique(train)) == len(train)
    assert len(np.unique(test)) == len(test)
    assert all(len(s.train) and len(s.test) and bool(len(s.val)) == (val_ratio > 0) for s in task.shards)


def test_pooled_rows_keep_their_images_and_domains_and_the_seed_decides_who_has_them():
    task, other = (make_task("t", pair(), clients=4, seed=seed) for seed in (1, 2))
    again, shard = make_task("t", pair(), clients=4, seed=1), task.shards[2]
    assert task.shards[0].train.tolist() == again.shards[0].train.tolist()
    assert task.shards[0].train.tolist() != other.shards[0].train.tolist()
    assert task.domains == ("a", "b")
    assert [s.domain for s in task.shards] == ["a", "a", "b", "b"]
    assert set(task.train.domain[shard.train]) == {1}
    assert task.train.images[shard.train, 0, 0, 0].tolist() == (shard.train - 100).tolist()


@pytest.mark.parametrize("same", [True, False])
def test_clients_are_tested_on_the_classes_they_train_on_or_as_in_the_released_code(same):
    task = make_task("t", pair(), clients=6, partition=Classes(2), same_test_classes=same, seed=3)
    held = [(set(task.test.labels[s.test]), set(task.train.labels[s.train])) for s in task.shards]
    assert {len(test) for test, _ in held} == {2}
    assert all(test == train for test, train in held) == same


def test_test_rows_follow_the_proportions_of_a_dirichlet_split():
    task = make_task("t", pair(), clients=4, partition=Dirichlet(0.3), val_ratio=0.0)
    for shard in task.shards:
        assert len(shard.test) == pytest.approx(len(shard.train) * 80 / 220, abs=4)


def test_clients_with_rows_of_several_domains_are_mixed():
    task = make_task("t", pair(), clients=3, partition="iid")
    assert {s.domain for s in task.shards} == {"mixed"}
    assert [row["domain"] for row in describe_task(task)] == ["mixed"]


def test_a_description_has_one_row_per_domain():
    task = make_task("t", pair(), clients=4, val_ratio=0.5)
    expected = {"domain": "b", "clients": 2, "train": 60, "val": 60, "test": 40, "classes": 4}
    assert describe_task(task)[1] == {**expected, "train per client": "30", "classes per client": "4"}


def test_bytes_stay_bytes_but_join_floats_as_floats():
    grey = replace(domain("b"), x_train=np.full((100, 2, 2, 1), 0.5), x_test=np.full((40, 2, 2, 1), 0.5))
    assert make_task("t", pair(), clients=2).train.images.dtype == np.uint8
    mixed = make_task("t", [domain("a"), grey], clients=2).train.images
    assert mixed.dtype == np.float32
    assert mixed.max() == pytest.approx(0.5)
    assert mixed[51, 0, 0, 0] == pytest.approx(51 / 255)


def test_plain_vectors_with_any_finite_values_are_allowed():
    x = np.linspace(-5, 5, 80).reshape(40, 2)
    task = task_from_arrays({"a": (x, np.arange(40) % 2)}, clients=2, net="mine")
    assert task.train.images.shape == (32, 2)
    assert task.train.images.dtype == np.float32


def test_a_stratified_fifth_is_split_off_for_testing_unless_a_test_part_is_given():
    x, y = np.arange(100, dtype=np.uint8).reshape(-1, 1, 1, 1), np.arange(100) % 5
    task = task_from_arrays({"a": (x, y)}, clients=2)
    assert np.bincount(task.test.labels).tolist() == [4] * 5
    assert not set(task.test.images.ravel()) & set(task.train.images.ravel())
    x, y = np.zeros((10, 2, 2, 1)), np.arange(10) % 2
    task = task_from_arrays({"a": (x, y, x[:4], y[:4])}, clients=2)
    assert (len(task.train.labels), len(task.test.labels)) == (10, 4)


def test_a_partitioner_of_ones_own_is_checked():
    with pytest.raises(UserError, match="none of them twice"):
        make_task("t", pair(), clients=2, partition=lambda *_: [np.arange(3), np.arange(3)])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"y_train": np.arange(99)}, "training data of domain 'a': 100 images but 99 labels"),
        ({"y_test": np.zeros(40)}, "labels are float64"),
        ({"y_test": np.full(40, 4)}, "test labels of domain 'a' run from 4 to 4, out of range for 4 classes"),
        ({"y_train": np.arange(100) % 4 - 1}, "run from -1 to 2, out of range"),
        ({"x_test": np.zeros((40, 3, 2, 1), np.uint8)}, "have shape (3, 2, 1), those of 'a' (2, 2, 1)"),
        ({"x_train": np.full((100, 2, 2, 1), np.nan)}, "NaN or infinite pixels"),
        ({"x_train": np.full((100, 2, 2, 1), np.inf)}, "NaN or infinite pixels"),
        ({"x_train": np.full((100, 2, 2, 1), 2.0)}, "float pixels run from 2.0 to 2.0"),
        ({"x_train": np.full((100, 2, 2, 1), -1)}, "whole-number pixels run from -1.0"),
        ({"x_train": np.full((100, 2, 2, 1), "a")}, "images are <U1"),
        ({"x_train": np.zeros((100, 2, 2), np.uint8)}, "write x[..., None] for grey images"),
        ({"x_train": np.zeros((100, 3, 8, 8), np.uint8)}, "put the channels last"),
        ({"x_test": np.zeros((0, 2, 2, 1)), "y_test": np.zeros(0, int)}, "test data of domain 'a': there are no rows"),
        ({"name": "mixed"}, "the domain name 'mixed'"),
    ],
)
def test_bad_data_gets_one_sentence(change, sentence):
    with pytest.raises(UserError) as caught:
        make_task("t", [replace(domain(), **change)], clients=2, classes=4)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"clients": 60}, "test rows: 40 rows cannot be dealt to 60 clients"),
        ({"clients": 30, "partition": "iid", "tests": 20}, "test rows: 20 rows cannot be dealt to 30 clients"),
        ({"clients": 100, "tests": 100}, "client 0 would have no validation rows"),
        ({"clients": 2, "classes": 0}, "0 classes is too few"),
        ({"clients": 2, "seed": -1}, "seed -1 is negative"),
        ({"clients": 2, "partition": "idd"}, "unknown partition 'idd'"),
        ({"clients": 2, "augment": True, "shape": (4,)}, "cannot be cropped and flipped"),
    ],
)
def test_bad_wishes_get_one_sentence(asked, sentence):
    asked = dict(asked)
    made = domain(tests=asked.pop("tests", 40), shape=asked.pop("shape", (2, 2, 1)))
    with pytest.raises(UserError) as caught:
        make_task("t", [made], **asked)
    assert sentence in str(caught.value)


def test_too_few_arrays_or_rows_or_domains_get_one_sentence():
    with pytest.raises(UserError, match="has 3 arrays"):
        make_domain("a", (1, 2, 3))
    with pytest.raises(UserError, match="too few rows"):
        make_domain("a", (np.zeros((2, 2)), np.arange(2)))
    with pytest.raises(UserError, match="no domains"):
        make_task("t", [], clients=1)
    with pytest.raises(UserError, match="number of clients is missing"):
        task_from_arrays({})


def test_a_folder_has_one_domain_per_file(tmp_path):
    x, y = np.zeros((20, 4, 4), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "wood.npz", x=x, y=y)
    np.savez(tmp_path / "iron.npz", x_train=x[..., None], y_train=y, x_test=x[:6, ..., None], y_test=y[:6])
    iron, wood = read_folder(tmp_path)
    assert (iron.name, iron.x_test.shape) == ("iron", (6, 4, 4, 1))
    assert (wood.name, wood.x_train.shape, wood.x_test.shape) == ("wood", (16, 4, 4, 1), (4, 4, 4, 1))
    assert len(make_task("t", [iron, wood], clients=4).shards) == 4


def write_objects(path):
    np.savez(path, x=np.array([{}], dtype=object), y=np.arange(1))


def write_half(path):
    np.savez(path, x=np.zeros((9, 4, 4)), y=np.arange(9))
    path.write_bytes(path.read_bytes()[:300])


def write_flipped(path):
    np.savez(path, x=np.zeros((9, 4, 4)), y=np.arange(9))
    content = bytearray(path.read_bytes())
    content[400] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (write_objects, "an array of objects or records, not of plain numbers"),
        (write_half, "cannot read"),
        (write_flipped, "Bad CRC"),
        (lambda path: path.write_bytes(pickle.dumps([1])), "not a zip file"),
        (lambda path: path.write_bytes(b""), "not a zip file"),
        (lambda path: np.savez(path, x=np.zeros((9, 4, 4))), "has no array y (it has x)"),
        (lambda path: np.savez(path, x_train=np.zeros(9)), "has no array y_train, x_test, y_test"),
        (lambda path: np.savez(path, x=np.zeros((9, 4, 4)), y=np.arange(8)), "9 images but 8 labels"),
    ],
)
def test_a_bad_file_gets_one_sentence_with_its_name(tmp_path, write, sentence):
    write(tmp_path / "bad.npz")
    with pytest.raises(UserError) as caught:
        read_folder(tmp_path)
    assert sentence in str(caught.value)
    assert "bad.npz" in str(caught.value)


def test_a_missing_or_empty_folder_gets_one_sentence(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_folder(tmp_path / "none")
    with pytest.raises(UserError, match=r"has no \.npz file"):
        read_folder(tmp_path)


def test_the_data_root_is_given_or_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPLITMIX_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root(tmp_path / "other") == tmp_path / "other"
    monkeypatch.delenv("SPLITMIX_DATA")
    with pytest.raises(UserError, match="SPLITMIX_DATA"):
        data_root()
