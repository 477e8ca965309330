"""A thousand damaged and hostile bundles: each is one sentence, or changes no answer; none crashes, hangs or runs."""

import hashlib
import json
import os
import random
import shutil
import sys

import numpy as np
import pytest
import torch

from helpers.bundles import random_bundle
from helpers.toys import within
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.runtime.manifest import digest

COUNT = 1000
BASES = 3
HOSTILE = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.5, 1e308, "", "0", "1/8", "1/0", "-1/8", "NaN"),
    *(
        "../../../../etc/passwd",
        "/etc/passwd",
        "os:system",
        "__import__('os')",
        "\x00",
        "\x1b[2J",
        "\ud800",
        "x" * 5000,
    ),
    *([], {}, [[]], [1, 2], {"__class__": "os"}, {"name": "os:system"}, ["../x"], [0] * 2000),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return random_bundle(tmp_path_factory.mktemp("mutants") / "whole", atom="1/64", bases=BASES, grid=True).path


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (2, 28, 28, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def votes(whole, images):
    return Model.load(whole).logits_by_base(images, robust=0.5)


# --- blind damage: the answer is a sentence, or what it was ---


def flip(folder, rng):
    path = any_file(folder, rng)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(folder, rng):
    path = any_file(folder, rng)
    os.truncate(path, rng.randrange(path.stat().st_size))


def extend(folder, rng):
    path = any_file(folder, rng)
    with path.open("ab") as file:
        if rng.random() < 0.5:
            file.write(rng.randbytes(rng.randrange(1, 2000)))
        else:
            file.truncate(1 << rng.randrange(20, 40))  # takes no room on the disk


def splice(folder, rng):
    path = any_file(folder, rng)
    data = path.read_bytes()
    at, size = rng.randrange(len(data)), rng.randrange(1, 64)
    path.write_bytes(data[:at] + rng.randbytes(rng.choice((0, size))) + data[at + size :])


def swap(folder, rng):
    one, two = rng.sample(files(folder), 2)
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(first)


def lose(folder, rng):
    any_file(folder, rng).unlink()


def link(folder, rng):
    path = any_file(folder, rng)
    path.unlink()
    path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", str(path), "nowhere", "../whole/base-0.safetensors")))


def turn(folder, rng):
    """Something else in the place of a file."""
    path = any_file(folder, rng)
    path.unlink()
    rng.choice((os.mkfifo, os.mkdir))(path)


def retype(folder, rng):
    """Another number or word in the text of the manifest, whose hash is then wrong."""
    path = folder / "manifest.json"
    said = json.loads(path.read_text())
    replace_one(said, rng)
    path.write_text(json.dumps(said))


# --- with hashes made to fit: the answer is a sentence, or a model that answers ---


def forge_manifest(folder, rng):
    path = folder / "manifest.json"
    said = json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 2))):
        replace_one(said, rng)
    path.write_text(json.dumps({**said, "sha256": digest(said)}))


def forge_header(folder, rng):
    """A base with another header, and the manifest that goes with it."""
    number = rng.randrange(BASES)
    data = (folder / f"base-{number}.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    replace_one(header, rng)
    text = json.dumps(header).encode()
    length = rng.choice((len(text), len(text), len(text), 0, 2**63, 2**64 - 1, rng.randrange(10**6)))
    seal_base(folder, number, length.to_bytes(8, "little") + text + data[8 + size :])


def forge_bytes(folder, rng):
    """A base with some of its bits flipped, and the manifest that goes with it."""
    number = rng.randrange(BASES)
    data = bytearray((folder / f"base-{number}.safetensors").read_bytes())
    for _ in range(rng.choice((1, 4, 100))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    seal_base(folder, number, bytes(data))


def seal_base(folder, number, data):
    (folder / f"base-{number}.safetensors").write_bytes(data)
    said = json.loads((folder / "manifest.json").read_text())
    said["bases"][number] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({**said, "sha256": digest(said)}))


def files(folder):
    return sorted(folder.iterdir())


def any_file(folder, rng):
    return rng.choice(files(folder))


def replace_one(said, rng):
    """Replace, remove, rename or add one thing somewhere in a tree of lists and dicts."""
    while True:
        keys = list(said) if isinstance(said, dict) else list(range(len(said)))
        key = rng.choice(keys)
        if not isinstance(said[key], dict | list) or not said[key] or rng.random() < 0.2:
            break
        said = said[key]
    what = rng.randrange(6)
    if what == 0:
        del said[key]
    elif what == 1 and isinstance(said, dict):
        said[rng.choice(("name", "path", "../x", "\x00", "__metadata__"))] = rng.choice(HOSTILE)
    elif what == 2 and isinstance(said, list):
        said.append(said[key])
    elif what == 3:
        for _ in range(rng.choice((1, 2, 400))):
            said[key] = [said[key]]
    else:
        said[key] = rng.choice(HOSTILE)


BLIND = (flip, cut, extend, splice, swap, lose, link, turn, retype)
FORGED = (forge_manifest, forge_header, forge_bytes)


@pytest.mark.slow
def test_a_thousand_mutants(whole, images, votes, tmp_path):
    rng = random.Random(0)
    outcomes = {"refused": 0, "same": 0, "other": 0}
    before = set(sys.modules)
    with within(180):
        for number in range(COUNT):
            folder = tmp_path / str(number)
            mutate = rng.choice(BLIND + FORGED * 2)
            shutil.copytree(whole, folder)
            mutate(folder, rng)
            outcomes[judged(folder, images, votes, mutate, number)] += 1
            shutil.rmtree(folder)
    assert not {name for name in set(sys.modules) - before if not name.startswith(("torch", "numpy", "safetensors"))}
    assert outcomes["refused"] > 0.8 * COUNT
    assert outcomes["same"] > 0


def answer(images, path, **settings):
    """Votes of the bases, or the sentence that refuses."""
    try:
        return Model.load(path, **settings).logits_by_base(images, robust=0.5)
    except UserError as error:
        return str(error)


def judged(folder, images, votes, mutate, number):
    where = (mutate.__name__, number)
    found = answer(images, folder)
    if isinstance(found, str):
        assert found.isprintable(), where  # on one line
        assert len(found) < 700, where
        return "refused"
    assert torch.isfinite(found).all(), where
    if found.shape == votes[: len(found)].shape and torch.allclose(found, votes[: len(found)], rtol=1e-4, atol=1e-5):
        return "same"
    assert mutate in FORGED, where
    return "other"


@pytest.mark.slow
def test_mutants_of_a_calibration(whole, images, tmp_path):
    class Standing:
        name, weak = "none", True

        def __call__(self, predict, x, y, rng):
            return x.expand(len(predict(x[:2])), *x.shape)

    rng = random.Random(1)
    model = Model.load(whole)
    model.calibrate(np.concatenate([images] * 8), attack=Standing())
    votes = model.logits_by_base(images, robust=0.5)
    data = model.save_calibration(tmp_path / "whole").read_bytes()
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "file").write_bytes(data)
        rng.choice((flip, cut, extend, splice, link, turn))(folder, rng)
        found = answer(images, whole, calibration=folder / "file")
        assert found.isprintable() if isinstance(found, str) else torch.equal(found, votes)
