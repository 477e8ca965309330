"""A thousand damaged and hostile bundles: each is one sentence, or changes no answer; none crashes, hangs or runs."""

import json
import os
import random
import shutil
import sys

import numpy as np
import pytest
import torch

from fuzz.mutators import forge_graph, replace_one
from helpers.bundles import StandingAttack, images, random_bundle, replace_base, sealed, with_header
from helpers.toys import within
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.runtime.about.card import CARD

COUNT = 1000
BASES = 2
PICTURES = images(2)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return random_bundle(tmp_path_factory.mktemp("mutants") / "whole", atom="1/64", bases=BASES, grid=True).path


# --- blind damage: the answer is a sentence, or what it was ---


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


# --- with hashes made to fit: the answer is a sentence, or a model that answers ---


def forge_manifest(path, rng, seal=sealed):
    """Other numbers or words in the manifest, and the hash that goes with them."""
    path = path.with_name("manifest.json")
    said = json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 2))):
        replace_one(said, rng)
    path.write_bytes(seal(said))


def retype(path, rng):
    """The same without the hash, which is then wrong."""
    forge_manifest(path, rng, seal=lambda said: json.dumps(said).encode())


def lie(path, rng):
    """Another graph in the manifest, and the hash that goes with it."""
    path = path.with_name("manifest.json")
    said = json.loads(path.read_text())
    forge_graph(said["graph"], rng)
    path.write_bytes(sealed(said))


def forge_header(path, rng):
    """A base with another header, and the manifest that goes with it."""
    number = rng.randrange(BASES)
    data = path.with_name(f"base-{number}.safetensors").read_bytes()
    size = rng.choice((None, None, None, 0, 2**63, 2**64 - 1, rng.randrange(10**6)))
    replace_base(path.parent, number, with_header(data, lambda header: replace_one(header, rng), size=size))


def forge_bytes(path, rng):
    """A base with some of its bits flipped, and the manifest that goes with it."""
    number = rng.randrange(BASES)
    data = path.with_name(f"base-{number}.safetensors").read_bytes()
    replace_base(path.parent, number, flipped(data, rng, rng.choice((1, 4, 100))))


BLIND = (flip, cut, extend, splice, swap, lose, link, turn, retype)
FORGED = (forge_manifest, forge_header, forge_bytes, lie)


def answer(path, **settings):
    """Votes of the bases, or the sentence that refuses."""
    try:
        return Model.load(path, **settings).logits_by_base(PICTURES, robust=0.5)
    except UserError as error:
        return str(error)


def test_a_thousand_mutants(whole, tmp_path):
    rng, votes, before = random.Random(0), answer(whole), set(sys.modules)
    outcomes = {"refused": 0, "same": 0, "other": 0}
    with within(1200):
        for number in range(COUNT):
            folder = shutil.copytree(whole, tmp_path / "mutant")
            mutate = rng.choice(BLIND + FORGED * 2)
            mutate(rng.choice(sorted(file for file in folder.iterdir() if file.name != CARD)), rng)
            outcomes[judged(answer(folder), votes, mutate in FORGED, f"{mutate.__name__} {number}")] += 1
            shutil.rmtree(folder)
    assert not {name for name in set(sys.modules) - before if not name.startswith(("torch", "numpy", "safetensors"))}
    assert outcomes["refused"] > 0.8 * COUNT
    assert outcomes["same"] > 0


def judged(found, votes, forged, where):
    if isinstance(found, str):
        assert found.isprintable(), where  # on one line
        assert len(found) < 700, where
        return "refused"
    assert torch.isfinite(found).all(), where
    if found.shape == votes[: len(found)].shape and torch.allclose(found, votes[: len(found)], rtol=1e-4, atol=1e-5):
        return "same"
    assert forged, where
    return "other"


def test_mutants_of_a_calibration(whole, tmp_path):
    rng, model = random.Random(1), Model.load(whole)
    model.calibrate(np.concatenate([PICTURES] * 8), attack=StandingAttack())
    votes = model.logits_by_base(PICTURES, robust=0.5)
    data = model.save_calibration(tmp_path / "whole").read_bytes()
    for number in range(200):
        file = tmp_path / str(number)
        file.write_bytes(data)
        rng.choice((flip, cut, extend, splice, link, turn))(file, rng)
        found = answer(whole, calibration=file)
        assert found.isprintable() if isinstance(found, str) else torch.equal(found, votes)
