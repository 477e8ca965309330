"""The benchmark tasks: small files in the same format, and the real ones where there are any."""

import os
from pathlib import Path

import numpy as np
import pytest

from splitmix.core.errors import UserError
from splitmix.data.benchmarks import DIGITS_FILES, SYNTH_SUBSTITUTE, cifar_domain, digits_domains
from splitmix.data.partition import Classes
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


@pytest.mark.skipif("SPLITMIX_DATA" not in os.environ, reason="SPLITMIX_DATA is not set")
def test_the_real_digits_have_the_papers_counts():
    task = made("digits", Path(os.environ["SPLITMIX_DATA"]))
    assert {len(s.train) for s in task.shards} == {111, 112}
    assert {len(s.val) for s in task.shards} == {111}
    assert len(task.train.labels) == 5 * 2229
    assert task.train.images.shape[1:] == (28, 28, 3)
