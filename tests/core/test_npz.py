"""Arrays of strangers: what numpy writes is read as numpy reads it, and anything else is one sentence, soon said."""

import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from splitmix.core.errors import UserError
from splitmix.core.files import read_npz

GIGA = 1 << 30


def npz(path, packed=zipfile.ZIP_STORED, **members):
    """An archive of these raw members."""
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(header, data=b"", version=1):
    text = header.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def said(descr="'<f8'", order="False", shape="(1,)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def every(names):
    return names


plain = arrays.arrays(
    arrays.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufcUS" and dtype.itemsize),
    arrays.array_shapes(min_side=0),
)


@pytest.mark.slow
@given(plain)
def test_what_numpy_writes_is_read_as_it_was(tmp_path_factory, array):
    file = tmp_path_factory.mktemp("npz") / "a.npz"
    for write in (np.savez, np.savez_compressed):
        write(file, x=array, y=np.asfortranarray(array))
        found = read_npz(file, every)
        assert (found["x"].dtype, found["x"].shape, found["x"].tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert found["y"].tobytes() == array.tobytes()
        assert found["x"].flags.writeable


HOSTILE = {
    "an object": npy(said("'|O'"), bytes(8)),
    "a record": npy(said("[('a', '<f8')]"), bytes(8)),
    "code": npy("__import__('this')", bytes(8)),
    "a key more": npy(said()[:-1] + "'more': 'x'}", bytes(8)),
    "a key twice": npy(said().replace("fortran_order", "descr"), bytes(8)),
    "endless brackets": npy("(" * 9000),
    "endless spaces": npy(said() + " " * 9000 + "x"),
    "endless digits": npy(said(shape=f"({'9' * 5000},)")),
    "no dtype": npy(said("'<f3'"), bytes(8)),
    "no numbers": npy(said(shape="(4611686018427387904,)")),
    "hidden by a zero": npy(said(shape="(0, 4611686018427387904, 4611686018427387904)")),
    "dimensions": npy(said(shape=f"({'1, ' * 60})"), bytes(8)),
    "a header of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    "another version": npy(said(), bytes(8), version=9),
    "half a header": b"\x93NUM",
    "nothing": b"",
    "words": b"these are no numbers",
}


@pytest.mark.parametrize("member", HOSTILE.values(), ids=HOSTILE)
def test_a_member_that_is_no_plain_array_is_one_sentence(tmp_path, member):
    file = npz(tmp_path / "a.npz", x=member)
    with pytest.raises(UserError, match=r"^cannot read .*a\.npz \(.+\); give an \.npz file of plain number arrays"):
        read_npz(file, every)


@pytest.mark.parametrize("packed", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_only_what_numpy_packs_is_unpacked(tmp_path, packed):
    with pytest.raises(UserError, match="packed in a way that numpy does not write"):
        read_npz(npz(tmp_path / "a.npz", packed, x=npy(said(), bytes(8))), every)


def test_a_small_file_of_gigabytes_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    file = npz(tmp_path / "a.npz", x=npy(said(shape=f"({GIGA},)")))
    content = file.read_bytes()  # the archive's list says that there are gigabytes
    place = content.index(b"PK\x01\x02") + 24
    file.write_bytes(content[:place] + struct.pack("<I", 2 * GIGA) + content[place + 4 :])
    monkeypatch.setattr(np, "empty", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(UserError, match="its arrays take more than 67,108,864 bytes, far more than the file itself"):
        read_npz(file, every)


def test_an_array_that_was_not_chosen_is_not_looked_at(tmp_path):
    file = npz(tmp_path / "a.npz", x=npy(said(), bytes(8)), bad=HOSTILE["an object"])
    assert read_npz(file, lambda names: names[:1])["x"].tolist() == [0]


def test_what_cannot_be_printed_does_not_reach_the_sentence(tmp_path):
    file = npz(tmp_path / "a.npz", zipfile.ZIP_LZMA, **{"\x1b[31mred": npy(said(), bytes(8))})
    with pytest.raises(UserError) as caught:
        read_npz(file, every)
    assert str(caught.value).isprintable()
