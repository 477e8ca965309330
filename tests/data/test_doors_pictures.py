"""Folders of pictures: what is found in them, what is refused, and that reading late changes nothing."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn

import splitmix
from helpers.picture_folders import write_pictures, write_tree
from splitmix.core.batches import Split
from splitmix.core.errors import UserError
from splitmix.core.inputs import made
from splitmix.core.inputs.pictures import read_picture
from splitmix.data.doors import pictures, read
from splitmix.data.doors.pictures import Pictures
from splitmix.data.task import Samples, make_task
from splitmix.data.tasks import find_task

SIZE = {"size": "8x8x3"}
SETTINGS = {"rounds": 2, "clients": 2, "budgets": "1/2 1", "atom": "1/2", "eval_every": 1, "progress": False}


def build(width):
    channels = int(8 * width)
    layers = (nn.Conv2d(3, channels, 3, stride=2), nn.BatchNorm2d(channels), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(9 * channels, 2))


def test_class_folders_are_classes_in_the_order_of_their_names(tmp_path):
    (domain,) = read(write_tree(tmp_path / "pets", classes=("dog", "cat")), SIZE)
    assert (domain.name, domain.class_names, domain.kind) == ("pets", ("cat", "dog"), "image")
    assert domain.x_train.shape == (20, 8, 8, 3)
    assert np.bincount(domain.y_train).tolist() == [10, 10]
    assert domain.x_train.names[0].startswith(b"cat/")
    assert domain.x_train.names[-1].startswith(b"dog/")


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path):
    (domain,) = read(write_tree(tmp_path, classes=("10", "9", "2"), count=5), SIZE)
    assert domain.class_names == ("2", "9", "10")


def test_folders_above_the_classes_are_domains(tmp_path):
    left, right = read(write_tree(tmp_path, domains=("left", "right")), SIZE)
    assert (left.name, right.name) == ("left", "right")
    assert left.class_names == right.class_names == ("cat", "dog")


def test_train_and_test_folders_are_kept_apart(tmp_path):
    write_tree(tmp_path / "train", domains=("left", "right"), count=6)
    write_tree(tmp_path / "test", domains=("left", "right"), count=2)
    left, right = read(tmp_path, SIZE)
    assert (len(left.y_train), len(left.y_test), len(right.y_test)) == (12, 4, 4)
    assert all(name.startswith(b"test/left/") for name in left.x_test.names)


def test_an_empty_class_folder_says_that_a_domain_lacks_a_class(tmp_path):
    write_tree(tmp_path, domains=("left", "right"))
    for file in (tmp_path / "left" / "cat").iterdir():
        file.unlink()
    left, _ = read(tmp_path, SIZE)
    assert set(left.y_train) == {1}


def test_a_class_is_the_same_however_its_umlauts_are_spelled(tmp_path):
    write_tree(tmp_path / "pets", domains=("north",), classes=("cat", "köter"))
    write_tree(tmp_path / "pets", domains=("south",), classes=("cat", "ko\u0308ter"))
    north, south = read(tmp_path / "pets", SIZE)
    assert north.class_names == south.class_names == ("cat", "köter")
    assert len(south.y_train) == 20


def test_hidden_files_and_other_files_are_left_alone(tmp_path):
    write_tree(tmp_path)
    (tmp_path / ".DS_Store").write_bytes(b"x")
    (tmp_path / "cat" / "._0.png").write_bytes(b"x")
    (tmp_path / "README.md").write_text("x")
    assert sum(map(len, (read(tmp_path, SIZE)[0].y_train, read(tmp_path, SIZE)[0].y_test))) == 24


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([(28, 28)], (28, 28, 3)),
        ([(40, 50)], (32, 32, 3)),
        ([(80, 70), (90, 120)], (80, 80, 3)),
        ([(300, 400)], (96, 96, 3)),
    ],
)
def test_a_size_is_found_by_looking_at_some_pictures(tmp_path, sizes, found):
    for number, size in enumerate(sizes):
        write_tree(tmp_path, classes=(f"{number}a", f"{number}b"), count=3, size=size)
    assert read(tmp_path)[0].x_train.shape[1:] == found


def test_the_net_fits_the_size(tmp_path):
    write_tree(tmp_path, count=20)
    named = {size: find_task(str(tmp_path), data={"size": size}, settings={"clients": 2}).net for size in (28, 32, 64)}
    assert named == {28: "digit", 32: "preresnet18", 64: "alexnet"}


def stray(root: Path) -> None:
    write_pictures(root, 1)


def uneven(root: Path) -> None:
    write_tree(root, domains=("left",))
    write_pictures(root / "right" / "cat", 3)


def both(root: Path) -> None:
    write_tree(root, domains=("left",))
    write_pictures(root / "left", 1)


def deep_and_flat(root: Path) -> None:
    write_tree(root, domains=("left",))
    write_pictures(root / "cat", 3)


def too_deep(root: Path) -> None:
    write_tree(root / "year", domains=("left", "right"))


def beside_train(root: Path) -> None:
    write_tree(root / "train")
    write_tree(root / "val")


def other_test_class(root: Path) -> None:
    write_tree(root / "train")
    write_tree(root / "test", classes=("cat", "dog", "eel"))


def one_class(root: Path) -> None:
    write_tree(root, classes=("cat",))


def no_pictures(root: Path) -> None:
    write_tree(root)
    (root / "eel").mkdir()


def tiff(root: Path) -> None:
    write_tree(root)
    (root / "cat" / "scan.TIFF").write_bytes(b"II*")


def torn(root: Path) -> None:
    write_tree(root)
    file = root / "cat" / "0.png"
    file.write_bytes(file.read_bytes()[:20])


MISTAKES = {
    stray: ["picture", "0.png", "lies in no class folder"],
    uneven: ["domain left has a class folder dog, but right has none"],
    both: ["left/0.png' lies in no class folder"],
    deep_and_flat: ["the folder cat holds pictures, but left holds folders"],
    too_deep: ["is a folder too deep"],
    beside_train: ["'val' lies beside the folder train"],
    other_test_class: ["has a class eel"],
    one_class: ["1 class folders", "two classes or more"],
    no_pictures: ["the class folder eel", "has no pictures"],
    tiff: ["scan.TIFF", "not read"],
    torn: ["0.png", "cannot be read as a picture"],
}


@pytest.mark.parametrize("make", MISTAKES, ids=lambda make: make.__name__)
def test_a_mistaken_folder_gets_one_sentence(tmp_path, make):
    make(tmp_path)
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    assert all(word in str(caught.value) for word in MISTAKES[make])
    assert str(caught.value).count("\n") == 0


def test_files_and_classes_are_bounded(tmp_path, monkeypatch):
    write_tree(tmp_path)
    monkeypatch.setattr(pictures, "MOST_FILES", 23)
    with pytest.raises(UserError, match="more than 23 pictures"):
        read(tmp_path)


def test_a_picture_bomb_is_refused_unread_with_its_name(tmp_path):
    write_tree(tmp_path)
    Image.new("1", (9000, 9000)).save(tmp_path / "cat" / "0.png")
    (domain,) = read(tmp_path, SIZE)
    place = list(domain.x_train.names).index(b"cat/0.png")
    with pytest.raises(UserError, match=r"cat/0\.png.*81,000,000 pixels"):
        domain.x_train.take(np.array([place]))


def test_a_picture_that_is_gone_or_torn_stops_the_run_with_its_name(tmp_path):
    write_tree(tmp_path)
    task = find_task(str(tmp_path), data=SIZE, settings={"clients": 2})
    gone = os.fsdecode(task.train.images.names[task.shards[0].train[0]])
    (tmp_path / gone).write_bytes(b"torn")
    with pytest.raises(UserError, match=f"{gone}.*cannot be read as a picture"):
        splitmix.train(task, build, workers=2, **SETTINGS)


@pytest.mark.parametrize("note", range(1, 9))
def test_pictures_stand_upright_however_the_camera_was_held(tmp_path, note):
    picture, noted = Image.effect_noise((12, 12), 60).convert("RGB"), Image.Exif()
    noted[0x112] = note
    picture.save(tmp_path / "0.png", exif=noted)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "0.png"))
    assert (read_picture(tmp_path / "0.png", (12, 12, 3)) == np.asarray(upright)).all()


def test_the_first_picture_is_not_blamed_on_the_net(tmp_path):
    write_tree(tmp_path)
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"torn")
    with pytest.raises(UserError, match=r"^'[^']*0\.png': the file cannot be read as a picture"):
        splitmix.train(tmp_path, build, data=SIZE, workers=1, **SETTINGS)


def test_pictures_are_the_same_whoever_asks_for_them(tmp_path):
    (domain,) = read(write_tree(tmp_path, suffix="jpg"), SIZE)
    rows = np.array([5, 0, 7])
    some = domain.x_train.take(rows)
    assert some.dtype == np.uint8
    assert np.array_equal(some, made(domain.x_train[rows], [0, 1, 2]))
    split = Split(domain.x_train, torch.from_numpy(domain.y_train), torch.from_numpy(rows))
    whole = Split(torch.from_numpy(some), torch.from_numpy(domain.y_train[rows]), torch.arange(3))
    for late, early in zip(split.batch(torch.tensor([2, 0])), whole.batch(torch.tensor([2, 0])), strict=True):
        assert torch.equal(late, early)


def eager(task):
    def whole(samples):
        return Samples(made(samples.images, np.arange(len(samples.labels))), samples.labels, samples.domain)

    return replace(task, train=whole(task.train), test=whole(task.test))


def weights_of(task, **settings):
    return splitmix.train(task, build, **{**SETTINGS, "workers": 1, **settings}).result["weights_sha256"]


@pytest.mark.slow
def test_late_or_early_and_however_many_workers_it_is_the_same_to_the_bit(tmp_path):
    task = make_task("pets", read(write_tree(tmp_path), SIZE), clients=2, val_ratio=0.25)
    assert isinstance(task.train.images, Pictures)
    first = weights_of(task)
    assert first == weights_of(eager(task)) == weights_of(task, workers=2)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    root, settings = write_tree(tmp_path / "pets"), {"data": SIZE, "net": "digit", "checkpoint_every": 1}
    small = {**SETTINGS, **settings, "data": {"size": 28}, "workers": 1, "budgets": "1/8", "atom": "1/8"}
    whole = splitmix.train(root, **small, out=tmp_path / "whole")
    half = tmp_path / "half"
    with pytest.raises(KeyboardInterrupt):
        interrupted(root, half, small)
    resumed = splitmix.train(str(root), **small, out=half, resume=True)
    assert resumed.result["weights_sha256"] == whole.result["weights_sha256"]
    assert (resumed.result["classes"], resumed.result["image"]) == (["cat", "dog"], [28, 28, 3])


def interrupted(root, out, settings):
    """Train until the second round begins to read pictures."""
    count, take = [0], Pictures.take

    def stop(self, rows):
        count[0] += (out / "checkpoints").exists() and any((out / "checkpoints").iterdir())
        if count[0] > 1:
            raise KeyboardInterrupt
        return take(self, rows)

    Pictures.take = stop
    try:
        splitmix.train(root, **settings, out=out)
    finally:
        Pictures.take = take
