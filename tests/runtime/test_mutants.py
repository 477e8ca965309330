"""Damaged bundles and calibrations: each is one sentence, or changes no answer. Forged ones: `fuzz`."""

import json
import os
import random
import shutil
import sys

import numpy as np
import pytest
import torch

from fuzz.mutators import replace_one
from helpers.bundles import StandingAttack, images, random_bundle
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.runtime.about.card import CARD

COUNT = 200
PICTURES = images(2)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return random_bundle(tmp_path_factory.mktemp("mutants") / "whole", atom="1/64", bases=2, grid=True).path


def flipped(data, rng, bits):
    data = bytearray(data)
    for _ in range(bits):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def flip(path, rng):
    path.write_bytes(flipped(path.read_bytes(), rng, rng.choice((1, 1, 1, 8))))


def cut(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def extend(path, rng):
    with path.open("ab") as file:
        if rng.random() < 0.5:
            file.write(rng.randbytes(rng.randrange(1, 2000)))
        else:
            file.truncate(1 << rng.randrange(20, 40))  # takes no room on the disk


def splice(path, rng):
    data = path.read_bytes()
    at, size = rng.randrange(len(data)), rng.randrange(1, 64)
    path.write_bytes(data[:at] + rng.randbytes(rng.choice((0, size))) + data[at + size :])


def swap(path, rng):
    other = rng.choice(sorted(path.parent.iterdir()))
    first = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(first)


def lose(path, rng):
    path.unlink()


def link(path, rng):
    path.unlink()
    path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", str(path), "nowhere", "../whole/base-0.safetensors")))


def turn(path, rng):
    """Something else in the place of a file."""
    path.unlink()
    rng.choice((os.mkfifo, os.mkdir))(path)


def retype(path, rng):
    """Other numbers or words in the manifest, whose hash is then wrong."""
    path = path.with_name("manifest.json")
    said = json.loads(path.read_text())
    replace_one(said, rng)
    path.write_text(json.dumps(said))


DAMAGE = (flip, cut, extend, splice, swap, lose, link, turn, retype)


def answer(path, **settings):
    """Votes of the bases, or the sentence that refuses."""
    try:
        return Model.load(path, **settings).logits_by_base(PICTURES, robust=0.5)
    except UserError as error:
        return str(error)


def unharmed(found, votes):
    """Whether an answer is what it was; else it must be a sentence."""
    if not isinstance(found, str):
        assert torch.allclose(found, votes[: len(found)], rtol=1e-4, atol=1e-5)
        return True
    assert found.isprintable()  # on one line
    assert len(found) < 700
    return False


def test_a_damaged_bundle_is_refused_or_answers_as_before(whole, tmp_path):
    rng, votes, before, same = random.Random(0), answer(whole), set(sys.modules), 0
    for _ in range(COUNT):
        folder = shutil.copytree(whole, tmp_path / "mutant")
        rng.choice(DAMAGE)(rng.choice(sorted(file for file in folder.iterdir() if file.name != CARD)), rng)
        same += unharmed(answer(folder), votes)
        shutil.rmtree(folder)
    assert not {name for name in set(sys.modules) - before if not name.startswith(("torch", "numpy", "safetensors"))}
    assert 0 < same < 0.25 * COUNT, same


def test_mutants_of_a_calibration(whole, tmp_path):
    rng, model = random.Random(1), Model.load(whole)
    model.calibrate(np.concatenate([PICTURES] * 8), attack=StandingAttack())
    votes = model.logits_by_base(PICTURES, robust=0.5)
    data = model.save_calibration(tmp_path / "whole").read_bytes()
    for number in range(COUNT):
        file = tmp_path / str(number)
        file.write_bytes(data)
        rng.choice((flip, cut, extend, splice, link, turn))(file, rng)
        unharmed(answer(whole, calibration=file), votes)
