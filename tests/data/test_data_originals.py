"""Readers of original formats, on small files made in the same format; damaged and hostile files are refused."""

import gzip
import io
import pickle
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import helpers.originals as made
from splitmix.core.errors import UserError
from splitmix.data.prepare import originals
from splitmix.data.prepare.originals import read_cifar10
from splitmix.data.prepare.pickles import read_pickled_arrays

ALL = np.arange(60)


def inert(data):
    return read_pickled_arrays("file", io.BytesIO(data))


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("kind", ["u1", "<i8", ">i4", "f4", "?"])
def test_pickled_arrays_come_out_as_they_went_in(protocol, kind):
    first = np.arange(24).reshape(2, 3, 4).astype(kind)
    value = {"pair": (first, np.asfortranarray(first[0])), "again": [first, 7, None, "name", b"bytes"]}
    found = inert(pickle.dumps(value, protocol))
    for mine, theirs in zip(found["pair"], value["pair"], strict=True):
        assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    assert found["again"][0] is found["pair"][0]
    assert found["again"][1:] == [7, None, "name", b"bytes"]


class Hostile:
    def __reduce__(self):
        return print, ("pwned",)


HOSTILE = {
    "a call": pickle.dumps(Hostile()),
    "a call in a list": pickle.dumps([1, Hostile()]),
    "an old instance": b"(ios\nsystem\n.",
    "an import": b"cos\nsystem\n.",
    "a name made of text": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "a new object": pickle.dumps(Exception("x")),
    "an array of objects": pickle.dumps(np.array([None])),
    "a structured array": pickle.dumps(np.zeros(2, [("a", "i4")])),
    "ndarray called": b"cnumpy\nndarray\n(K\x01tR.",
    "no stop": pickle.dumps([1, 2])[:-1],
    "a short array": pickle.dumps(np.zeros(99), 3).replace(b"Kc\x85", b"Kd\x85"),
    "an empty stack": b"0.",
    "unknown memory": b"h\x07.",
    "no pickle": b"hello",
    "nothing": b"",
    "a deep tuple as a key": b"}(" + b")" + b"\x85" * 50_000 + b"K\x01u.",
    "a tuple as a key": pickle.dumps({(1, 2): 3}),
    "a deep list": b"]" * 30_000 + b"a" * 29_999 + b".",
    "tuples that double": b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60)) + b".",
    "a name of tuples that double": b")q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"h\x00\x93.",
    "a list in itself": b"]q\x00h\x00a.",
    "an array that is built again and again": b"cnumpy.core.multiarray\n_reconstruct\n)Rq\x00" + b"h\x00)b" * 9,
    "dimensions": pickle.dumps(np.zeros(1), 2).replace(b"K\x01\x85", b"(" + b"K\x01" * 99 + b"t"),
    "sides hidden by a zero": pickle.dumps(np.zeros((0, 9, 9)), 2).replace(b"K\t", b"\x8a\x09" + bytes(8) + b"\x40"),
    "a mark": b"(\x85.",
    "a number of too many digits": b"I" + b"9" * 9000 + b"\n.",
    "more steps than a batch takes": b"]" + b"K\x01a" * 60_000 + b".",
    "a text of gigabytes": b"\x8d" + b"\xff" * 7 + b"\x7f" + b"text.",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_a_pickle_with_anything_else_in_it_is_refused(what, capsys):
    with pytest.raises(UserError, match="cannot read file as a pickle of plain arrays"):
        inert(HOSTILE[what])
    assert capsys.readouterr().out == ""


@settings(max_examples=25)
@given(st.data())
def test_a_flipped_byte_never_does_more_than_be_refused(data):
    whole = bytearray(made.cifar_python(np.zeros((1, 32, 32, 3), np.uint8), np.zeros(1, int)))
    near = [*range(200), *range(len(whole) - 60, len(whole))]  # the rest are pixels
    whole[data.draw(st.sampled_from(near))] = data.draw(st.integers(0, 255))
    with suppress(UserError):
        inert(bytes(whole))


def test_mnist_is_read_from_idx_files(tmp_path):
    train, _ = made.write_mnist(tmp_path)
    half = originals.mnist(*(tmp_path / f"mnist/train-{n}-ubyte.gz" for n in ("images-idx3", "labels-idx1")))
    assert_array_equal(half.labels, made.labels(60))
    assert_array_equal(half.images(ALL[[5, 3]]), train[[5, 3]])


def test_usps_is_read_from_libsvm_lines(tmp_path):
    train, _ = made.write_usps(tmp_path)
    half = originals.usps(tmp_path / "usps/usps.bz2")
    assert_array_equal(half.labels, made.labels(60))
    assert_array_equal(half.images(ALL), train)


@pytest.mark.parametrize("zero", [0, 10])
def test_matlab_files_are_read_and_ten_is_zero(tmp_path, zero):
    train, _ = made.write_matlab(tmp_path, ("train.mat", "test.mat"), zero=zero)
    half = originals.from_matlab(tmp_path / "train.mat")
    assert_array_equal(half.labels, made.labels(60))
    assert_array_equal(half.images(ALL[[7, 1]]), train[[7, 1]])


def test_mnist_m_is_read_from_listed_pictures_without_their_frame(tmp_path):
    _, test = made.write_mnist_m(tmp_path)
    half = originals.mnist_m(tmp_path / "mnist_m", "test")
    assert_array_equal(half.labels, made.labels(40))
    assert_array_equal(half.images(ALL[[9, 2]]), test[[9, 2], 2:-2, 2:-2])


def test_fedbns_parts_follow_one_another(tmp_path):
    x = made.write_fedbn(tmp_path, "SVHN", (32, 32, 3))
    half = originals.read_fedbn([tmp_path / f"fedbn/SVHN/partitions/train_part{i}.pkl" for i in range(10)])
    assert_array_equal(half.labels, made.labels(100))
    assert_array_equal(half.images(np.arange(100)), x)


@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("unpacked", [False, True])
def test_both_versions_of_cifar10_are_read_packed_or_not(tmp_path, version, unpacked):
    batches = made.write_cifar(tmp_path, version, unpacked=unpacked)
    inside = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}[version]
    found = read_cifar10(tmp_path / "cifar10" / (inside if unpacked else f"cifar-10-{version}.tar.gz"))
    assert list(batches) == sorted(found)
    for name, (x, y) in batches.items():
        assert_array_equal(found[name][0], x)
        assert_array_equal(found[name][1], y)


def test_a_damaged_file_is_named_with_what_it_should_be(tmp_path):
    whole = made.idx(made.labels(10))
    cases = {
        "idx bytes": lambda f: originals.read_idx(f, 1),
        "libsvm lines": originals.usps,
        "MATLAB 5 file": originals.from_matlab,
        "pickle of plain arrays": lambda f: originals.read_fedbn([f]),
    }
    for data in (b"", b"nonsense", whole[:20], gzip.compress(b"\0\0\x0d\1\0\0\0\0")):
        file = made.write(tmp_path / "bad.file", data)
        for wanted, read in cases.items():
            with pytest.raises(UserError, match=rf"bad\.file as .*{wanted}.*fetch the file anew"):
                read(file)


def test_images_and_labels_must_match(tmp_path):
    images = made.write(tmp_path / "x", made.idx(np.zeros((4, 28, 28))))
    for y in (made.labels(5), np.full(4, 10)):
        with pytest.raises(UserError, match="images"):
            originals.mnist(images, made.write(tmp_path / "y", made.idx(y)))


def test_a_listed_name_cannot_lead_out_of_its_folder(tmp_path):
    made.write(tmp_path / "mnist_m_train_labels.txt", b"../secret.png 3\n")
    with pytest.raises(UserError, match="leads out of the folder"):
        originals.mnist_m(tmp_path, "train")


def test_an_incomplete_cifar_archive_is_refused(tmp_path):
    good = made.cifar_binary(*made.cifar_batches()["test_batch"])
    file = made.write(tmp_path / "c.tar.gz", made.tar({"cifar-10-batches-bin/test_batch.bin": good}))
    with pytest.raises(UserError, match=r"has no data_batch_1, .*fetch cifar-10-binary\.tar\.gz anew"):
        read_cifar10(file)
    for bad in (good[:-1], b"\x0b" + good[1:], b""):
        file = made.write(tmp_path / "c.tar.gz", made.tar({"cifar-10-batches-bin/test_batch.bin": bad}))
        with pytest.raises(UserError, match=r"test_batch\.bin does not hold"):
            read_cifar10(file)
    with pytest.raises(UserError, match="cannot read"):
        read_cifar10(made.write(tmp_path / "d.tar.gz", b"nonsense"))


def test_many_arrays_are_read_in_one_pass():
    value = [np.full(2, n) for n in range(3000)]
    assert [int(array[1]) for array in inert(pickle.dumps(value))] == list(range(3000))


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"labels": [1]},
        {"labels": [10**30], "data": np.zeros((1, 3072), "u1")},
        {"labels": [np.zeros(2)], "data": 1},
    ],
)
def test_a_pickle_of_other_things_is_no_batch(tmp_path, value):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(value))
    with pytest.raises(UserError, match="has no list of labels from 0 to 9"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize("shape", [(), (2, 9, 9)])
def test_parts_of_other_images_are_refused(tmp_path, shape):
    files = [tmp_path / "part0.pkl", tmp_path / "part1.pkl"]
    for file, size in zip(files, ((2, 8, 8), shape), strict=True):
        file.write_bytes(pickle.dumps((np.zeros(size, "u1"), np.zeros(2, "u1"))))
    with pytest.raises(UserError, match="as images of one size"):
        originals.read_fedbn(files)
