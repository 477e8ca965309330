"""Packs of pictures: what is written is read again, evenly over domains, and a damaged pack is named."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.originals import encoded
from splitmix.core.errors import UserError
from splitmix.data.benchmarks import DOMAINNET, OFFICE, PACS, packed_domains, read_pack
from splitmix.data.prepare.pictures import PackedPicture
from splitmix.data.prepare.store import write_pack
from splitmix.data.tasks import find_task


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


@pytest.mark.skipif("SPLITMIX_DATA" not in os.environ, reason="SPLITMIX_DATA is not set")
def test_the_real_packs_have_the_counts_of_their_authors():
    root = Path(os.environ["SPLITMIX_DATA"])
    counts = [(OFFICE, [958, 1123, 157, 295]), (PACS, [1670, 2048, 2344, 3929])]
    for known, expected in counts:
        domains = read_pack(root / known.file(96), even=False)
        assert [len(d.y_train) + len(d.y_test) for d in domains] == expected
        assert find_task(known.name, root=root).image == (96, 96, 3)
