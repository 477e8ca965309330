"""The embedded task and its contact sheet."""

import hashlib
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splitmix.core.errors import UserError
from splitmix.data import mini
from splitmix.data.domain import Domain
from splitmix.data.mini import handwriting_rows, mini_domains
from splitmix.report.pictures import contact_sheet

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@pytest.fixture(scope="module")
def domains() -> tuple[Domain, ...]:
    """As they are kept in this computer's cache: what was made by another process, if there was one before."""
    return mini_domains()


@pytest.fixture
def makings(domains, monkeypatch) -> list[int]:
    """Makes `mini_domains` count its makings instead of drawing all images each time."""
    calls: list[int] = []
    monkeypatch.setattr(mini, "make_domains", lambda: calls.append(1) or domains)
    return calls


def fingerprint(domains: tuple[Domain, ...]) -> str:
    digest = hashlib.sha256()
    for domain in domains:
        for array in ARRAYS:
            values = getattr(domain, array)
            digest.update(f"{domain.name} {array} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def digits():
    """UCI's digits, as scikit-learn has them."""
    from sklearn.datasets import load_digits

    return load_digits()


@pytest.mark.slow
def test_the_four_domains_come_in_their_order_and_the_same_each_time(domains):
    assert [domain.name for domain in domains] == ["pen", "photo", "print", "sign"]
    for domain in domains:
        x, y = mini._make(domain.name, "test")  # a third of them will do
        assert (x.tobytes(), y.tobytes()) == (domain.x_test.tobytes(), domain.y_test.tobytes())


@pytest.mark.parametrize(("split", "count"), [("train", 58), ("test", 29)])
def test_every_split_has_as_many_images_of_each_digit(domains, split, count):
    for domain in domains:
        images, labels = getattr(domain, f"x_{split}"), getattr(domain, f"y_{split}")
        assert (images.dtype, images.shape) == (np.uint8, (10 * count, 28, 28, 3))
        assert labels.dtype == np.int64
        assert np.bincount(labels).tolist() == [count] * 10


@pytest.mark.slow  # imports scikit-learn
def test_no_image_and_no_handwriting_is_used_twice(domains, digits):
    images = [image.tobytes() for d in domains for x in (d.x_train, d.x_test) for image in x]
    assert len(set(images)) == len(images)
    rows = np.concatenate(list(handwriting_rows().values()))
    assert len(np.unique(rows)) == len(rows) == 2 * (580 + 290)
    assert len(np.unique(digits.data[rows], axis=0)) == len(rows)


@pytest.mark.slow
def test_the_rows_say_which_handwriting_an_image_shows(domains, digits):
    pen, rows = domains[0], handwriting_rows()["pen", "test"]
    assert (digits.target[rows] == pen.y_test).all()
    for image, small in zip(pen.x_test[:, 3:25, 3:25, 0], digits.images[rows], strict=True):
        coarse = np.kron(small, np.ones((11, 11)))[2::4, 2::4]  # 8x8 to 22x22
        assert np.corrcoef(image.ravel(), coarse.ravel())[0, 1] > 0.8


def test_every_font_draws_ten_different_digits():
    for name in mini.FONTS:
        font = mini._load_font(name, 40)
        drawn = {bytes(font.getmask(digit)) for digit in "0123456789"}
        assert len(drawn) == 10, name


def test_a_second_call_reads_what_the_first_has_kept(domains, makings, tmp_path):
    first, second = mini_domains(tmp_path), mini_domains(tmp_path)
    assert fingerprint(first) == fingerprint(second) == fingerprint(domains)
    assert len(makings) == 1
    assert [file.suffix for file in tmp_path.iterdir()] == [".npz"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["empty", "noise", "cut", "flipped"])
def test_a_damaged_cache_file_is_made_again(domains, makings, tmp_path, caplog, damage):
    mini_domains(tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    bad = {"empty": b"", "noise": b"no zip", "cut": good[:-999], "flipped": good[:5000] + b"?!?!" + good[5004:]}
    file.write_bytes(bad[damage])
    with caplog.at_level(logging.INFO, logger="splitmix"):
        assert fingerprint(mini_domains(tmp_path)) == fingerprint(domains)
    assert len(makings) == 2
    assert "made again" in caplog.text
    assert file.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_no_error(domains, makings, tmp_path):
    (tmp_path / "file").write_text("a file is no folder")
    assert mini_domains(tmp_path / "file" / "below") == domains


def test_the_default_folder_follows_xdg_cache_home_unless_it_is_relative(makings, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mini_domains()
    assert len(list((tmp_path / "splitmix").glob("mini-*.npz"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert mini._default_cache() == Path.home() / ".cache" / "splitmix"


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match=r'pip install "splitmix\[mini\]"'):
        mini_domains(tmp_path)


@pytest.mark.slow
def test_a_contact_sheet_is_a_readable_png(domains, tmp_path):
    path = tmp_path / "new" / "sheet.png"
    contact_sheet(domains, path)
    with Image.open(path) as sheet:
        sheet.load()
        assert (sheet.format, sheet.mode) == ("PNG", "RGB")
        assert sheet.width > 2 * 10 * 28
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("shape", [(6, 8, 8, 1), (6, 40, 30, 3)])
def test_a_contact_sheet_shows_grey_float_images_too(tmp_path, shape):
    labels = np.array([0, 0, 1, 1, 1, 7])
    floats = Domain("floats", np.full(shape, 0.5, np.float32), labels, np.zeros(shape, np.float32), labels)
    contact_sheet([floats], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert (128, 128, 128) in {colour for _, colour in sheet.getcolors(maxcolors=1 << 16)}


def test_a_contact_sheet_refuses_what_it_cannot_show(tmp_path):
    flat = Domain("flat", np.zeros((1, 9)), np.zeros(1, np.int64), np.zeros((1, 9)), np.zeros(1, np.int64))
    for wrong in ([], [flat]):
        with pytest.raises(UserError):
            contact_sheet(wrong, tmp_path / "sheet.png")
    assert not list(tmp_path.iterdir())
