"""A run's folder: files that cannot be used are one sentence, and it has one writer at a time."""

import json
import multiprocessing
import os
import re
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import Watch, names, run, stop, told
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.runs.finish import stored_outcome
from splitmix.runs.folder import RunFolder, State

pytestmark = pytest.mark.slow  # whole runs


# --- files that cannot be used ------------------------------------------------------------------------------------


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def edit(manifest, **changed):
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changed}))


def widen(manifest):
    """Put another net's weights there, with the right hash."""
    stored = load_file(manifest.with_suffix(".safetensors"))
    weights = {name.removeprefix("weights/"): torch.cat([value, value]) for name, value in stored.items()}
    RunFolder(manifest.parent.parent).save_state(State(3, weights), json.loads(manifest.read_text())["config"])


def move(manifest):
    """A checkpoint of another round under this name."""
    for kind in (".json", ".safetensors"):
        old = manifest.with_name("round-000002").with_suffix(kind)
        manifest.with_suffix(kind).write_bytes(old.read_bytes())


DAMAGE = {
    "half the tensors": lambda m: os.truncate(m.with_suffix(".safetensors"), 500),
    "a flipped bit": lambda m: flip(m.with_suffix(".safetensors")),
    "no tensors": lambda m: m.with_suffix(".safetensors").unlink(),
    "half a manifest": lambda m: os.truncate(m, 60),
    "an empty manifest": lambda m: os.truncate(m, 0),
    "a list": lambda m: m.write_text("[]"),
    "not text": lambda m: m.write_bytes(b"\xff\x00"),
    "another schema": lambda m: edit(m, schema=2),
    "other settings": lambda m: edit(m, config="0" * 64),
    "no best round": lambda m: edit(m, best_round=None),
    "another net": widen,
    "another round": move,
}


@pytest.fixture(scope="module")
def stopped(own, tmp_path_factory):
    """A run with checkpoints after rounds 2 and 3."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    stop(own, path, "round", 3)
    return path


def copied(folder, target):
    for file in folder.rglob("*.*"):
        if file.is_file():
            write_atomically(target / file.relative_to(folder), file.read_bytes())
    return target


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_checkpoint_before_a_bad_one_is_used_and_it_says_so(own, whole, stopped, tmp_path, damage):
    folder, watch = copied(stopped, tmp_path / "run"), Watch()
    DAMAGE[damage](folder / "checkpoints" / "round-000003.json")
    run(own, folder, resume=True, watch=watch)
    assert watch.start == 2
    assert re.fullmatch(r"checkpoint round-000003 is not used: [^\n]+", "".join(watch.notes))
    assert told(folder)["weights_sha256"] == told(whole())["weights_sha256"]


def test_a_foreign_checkpoint_does_not_push_out_ones_own(own, stopped, tmp_path):
    folder = copied(stopped, tmp_path / "run")
    for kind in (".json", ".safetensors"):
        (folder / "checkpoints" / f"round-000099{kind}").write_bytes(b"{}")
    run(own, folder, resume=True)
    assert [name for name in names(folder) if name.endswith(".json")] == [
        *("round-000003.json", "round-000004.json", "round-000099.json")
    ]


def test_without_a_good_checkpoint_there_is_one_sentence(own, stopped, tmp_path):
    folder = copied(stopped, tmp_path / "run")
    for file in (folder / "checkpoints").glob("*.safetensors"):
        flip(file)
    with pytest.raises(UserError, match=r"no checkpoint in .* can be used \(.*hash.*hash.*\); start anew") as caught:
        run(own, folder, resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("result.json", b"{", "holds no finished run"),
        ("result.json", b"[]", "holds no finished run"),
        ("result.json", b"{}", "holds no finished run"),
        ("model.safetensors", b"no", "holds no finished run"),
        ("model.safetensors", None, "are not those that its result.json speaks of"),
    ],
)
def test_a_damaged_result_or_model_is_one_sentence(whole, tmp_path, name, content, words):
    folder = copied(whole(), tmp_path / "run")
    other = (whole("tracked") / name).read_bytes()
    (folder / name).write_bytes(other if content is None else content)
    with pytest.raises(UserError, match=words):
        stored_outcome(folder)


# --- one writer ---------------------------------------------------------------------------------------------------


def test_a_second_writer_is_turned_away(own, stopped, tmp_path):
    folder = copied(stopped, tmp_path / "run")
    for resume in (False, True):
        with RunFolder(folder).locked(), pytest.raises(UserError, match="in use by another run"):
            run(own, folder, resume=resume)
    with RunFolder(folder).locked():
        assert names(folder) == names(stopped)


def hold_and_fork(path, pipe):
    with RunFolder(path).locked():
        child = os.fork()
        if not child:
            time.sleep(1200)
            os._exit(0)
        pipe.send(child)
        time.sleep(1200)


def test_a_lock_goes_with_its_process_even_if_a_worker_outlives_it(tmp_path):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold_and_fork, args=(tmp_path, theirs))
    holder.start()
    worker = ours.recv()
    with pytest.raises(UserError, match="in use"), RunFolder(tmp_path).locked():
        pass
    holder.kill()
    holder.join()
    with RunFolder(tmp_path).locked():
        os.kill(worker, signal.SIGKILL)  # it was still there


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_folder_that_cannot_be_made_is_one_sentence(own, tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to the output folder"):
        run(own, tmp_path / place)
