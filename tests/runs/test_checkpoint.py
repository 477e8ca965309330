"""A checkpoint whose manifest was changed in any way is not used, and the one before it is."""

import hashlib
import json

import pytest
import torch

from splitmix.runs.folder import RunFolder, State

WEIGHTS = {"0.w": torch.ones(1, 3)}
DEEP = "[" * 100_000 + "]" * 100_000
OTHER = ["null", "true", "-7", "1e999", "NaN", "9" * 5000, '"\\u001b[31m"', '{"a": null}', DEEP, "[" * 300 + "]" * 300]
FIELDS = ("schema", "config", "round", "best_round", "best_accuracy", "seconds", "sha256", "more")


@pytest.fixture
def folder(tmp_path):
    """A run's folder with checkpoints after rounds 1 and 2."""
    folder = RunFolder(tmp_path)
    for finished in (1, 2):
        best = {"0.w": torch.zeros(1, 3)}
        folder.save_state(State(finished, WEIGHTS, 0, 0.5, best, seconds=1.0), "settings")
    return folder


def change(folder, field, text):
    """Write JSON of one's own into a field of the newest manifest."""
    manifest = folder.checkpoints / "round-000002.json"
    said = {**json.loads(manifest.read_text()), field: "here"}
    manifest.write_text(json.dumps(said).replace('"here"', text))


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", OTHER, ids=lambda text: text[:9])
def test_the_one_before_is_used_and_a_short_note_says_so(folder, field, text):
    change(folder, field, text)
    state, (note,) = folder.load_state(["settings"], WEIGHTS)
    assert state.round == 1
    assert note.startswith("checkpoint round-000002 is not used: ")
    assert len(note) < 250
    assert note.isprintable()


def test_an_untouched_one_is_used(folder):
    state, notes = folder.load_state(["settings"], WEIGHTS)
    assert (state.round, state.best_accuracy, state.seconds, notes) == (2, 0.5, 1.0, [])


def test_one_of_an_older_version_whose_hash_is_of_the_tensors_alone_is_used(folder):
    tensors = (folder.checkpoints / "round-000002.safetensors").read_bytes()
    change(folder, "sha256", f'"{hashlib.sha256(tensors).hexdigest()}"')
    assert folder.load_state(["settings"], WEIGHTS)[0].round == 2
