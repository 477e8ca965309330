"""A whole run: its folder, stopping and resuming, what it keeps, and the model it leaves."""

import hashlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import splitmix
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.types import Width
from splitmix.experiments.config import make_config, read_toml, to_toml
from splitmix.experiments.evaluate import evaluate_run
from splitmix.experiments.folder import RunFolder, State, weights_sha256
from splitmix.experiments.records import read_metrics, read_result
from splitmix.experiments.run import SCORED_NORMS, run_in_folder, stored_outcome
from splitmix.experiments.setup import set_up
from stripes import SETTINGS, stripes, stripes_folder, stripes_task
from toys import Tiny, plain_build

pytestmark = pytest.mark.slow  # whole runs and commands

VARIANTS = {
    "post": {"norm": "post"},
    "batch": {"norm": "batch", "order": "validation"},
    "tracked": {"norm": "tracked"},
    "local": {"norm": "local", "cohort": 3},
    "cohort": {"cohort": 2},
    "redrawn": {"budgets": {"name": "groups", "widths": "1/4 1/2 1", "redraw": True}},
    "sparse": {"eval_every": 3, "checkpoint_every": 2},
    "nested": {"method": "heterofl"},
    "dual": {"objective": {"name": "adversarial", "steps": 2}},
    "single": {"objective": {"name": "adversarial", "steps": 2, "dual": False}, "norm": "post"},
}
FIELDS = {  # what a result.json has for certain
    *("schema", "task", "data", "method", "net", "atom", "objective", "norm", "norm_text", "seed", "rounds"),
    *("best_round", "order", "bases", "weights_sha256", "seconds", "workers", "threads", "versions", "command"),
    *("domains", "clients", "scores"),
}
SCORE_FIELDS = {
    *("norm", "split", "width", "bases", "accuracy", "pooled", "domains", "clients", "parameters", "macs", "ms")
}


class Watch:
    """Takes notes, and stops the run where it is told to."""

    def __init__(self, event="", number=0):
        self.event, self.number = event, number
        self.notes, self.start = [], None

    def begin(self, setup, start):
        self.start = start

    def round(self, row):
        self._stop("round", row["round"])

    def scores(self, rows):
        self._stop("scores", rows[0]["round"])

    def note(self, text):
        self.notes.append(text)

    def end(self):
        if sys.exception() is None:
            self._stop("end", self.number)

    def _stop(self, event, number):
        if (event, number) == (self.event, self.number):
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return str(stripes_folder(tmp_path_factory.mktemp("data") / "own"))


@pytest.fixture(scope="module")
def whole(own, tmp_path_factory):
    """Folders of uninterrupted runs by variant, each made once."""
    made = {}

    def folder(name="post"):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole") / name
            run(own, made[name], **VARIANTS[name])
        return made[name]

    return folder


def run(own, path, *, resume=False, workers=1, watch=None, **changed):
    setup = set_up(make_config({"task": own, **SETTINGS, **changed}))
    return run_in_folder(setup, path, resume=resume, workers=workers, watchers=[watch or Watch()])


def stop(own, path, event, number, *, resume=False, **changed):
    with pytest.raises(KeyboardInterrupt):
        run(own, path, resume=resume, watch=Watch(event, number), **changed)


def told(path):
    """A result without what differs from machine to machine."""
    result = read_result(path)
    scores = [{key: value for key, value in row.items() if key != "ms"} for row in result["scores"]]
    return {**{k: v for k, v in result.items() if k not in ("seconds", "workers", "command")}, "scores": scores}


def names(path):
    return sorted(file.name for file in (path / "checkpoints").iterdir())


# --- resuming -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_stopped_again_and_again_ends_as_if_it_never_was(own, whole, tmp_path, variant):
    for event, number in (("round", 0), ("round", 2), ("scores", 2), ("end", 0)):
        stop(own, tmp_path, event, number, resume=True, **VARIANTS[variant])
    run(own, tmp_path, resume=True, **VARIANTS[variant])
    assert told(tmp_path) == told(whole(variant))
    assert (tmp_path / "model.safetensors").read_bytes() == (whole(variant) / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", range(4))
def test_a_run_goes_on_after_the_last_checkpoint(own, whole, tmp_path, number):
    stop(own, tmp_path, "round", number)
    watch = Watch()
    run(own, tmp_path, resume=True, watch=watch)
    assert (watch.start, watch.notes) == (number, [])
    assert told(tmp_path) == told(whole())


def test_resuming_begins_a_run_that_is_not_there(own, whole, tmp_path):
    run(own, tmp_path / "new" / "run", resume=True)
    assert told(tmp_path / "new" / "run") == told(whole())


def test_how_often_it_is_checkpointed_may_change_on_the_way(own, whole, tmp_path):
    stop(own, tmp_path, "round", 2)
    run(own, tmp_path, resume=True, checkpoint_every=3)
    assert told(tmp_path) == told(whole())


def test_a_finished_run_resumes_to_its_result(own, whole):
    before = {file: file.read_bytes() for file in whole().glob("*.*")}
    assert run(own, whole(), resume=True) is None
    assert {file: file.read_bytes() for file in whole().glob("*.*")} == before


def test_a_run_is_not_overwritten(own, whole):
    with pytest.raises(UserError, match="already holds a run; go on with --resume"):
        run(own, whole())


def test_resuming_with_other_settings_is_refused_and_names_them(own, whole, tmp_path):
    stop(own, tmp_path, "round", 2, cohort=3)
    with pytest.raises(UserError) as caught:
        run(own, tmp_path, resume=True, lr=0.3)
    assert "lr = 0.1 (now 0.3)" in str(caught.value)
    assert "cohort = 3 (now none)" in str(caught.value)
    assert "rounds" not in str(caught.value)
    with pytest.raises(UserError, match=r"cohort = none \(now 2\)"):
        run(own, whole(), resume=True, cohort=2)


def test_the_last_two_checkpoints_are_kept(own, whole):
    stems = ("round-000003", "round-000004")
    assert names(whole()) == [f"{stem}.{kind}" for stem in stems for kind in ("json", "safetensors")]
    assert names(whole("sparse")) == [f"round-00000{n}.{kind}" for n in (2, 4) for kind in ("json", "safetensors")]


def test_the_rest_of_a_crash_is_swept_away(own, whole, tmp_path):
    stop(own, tmp_path, "round", 2)
    for left in (".config.toml.0.tmp", "checkpoints/.round-000003.json.0.tmp", "checkpoints/round-000003.safetensors"):
        (tmp_path / left).write_bytes(b"half")
    run(own, tmp_path, resume=True)
    assert told(tmp_path) == told(whole())
    assert not list(tmp_path.rglob("*.tmp"))


# --- checkpoints that cannot be used ------------------------------------------------------------------------------


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


# --- one writer ---------------------------------------------------------------------------------------------------

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_writer_is_turned_away(own, stopped, tmp_path, resume):
    folder = copied(stopped, tmp_path / "run")
    holder = [sys.executable, "-c", HOLD, str(folder / ".lock")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="in use by another run"):
            run(own, folder, resume=resume)
        other.communicate("\n")
    run(own, folder, resume=True)


def test_a_second_run_in_the_same_process_is_turned_away(tmp_path):
    with RunFolder(tmp_path).held(), pytest.raises(UserError, match="in use"), RunFolder(tmp_path).held():
        pass


def hold_and_fork(path, pipe):
    with RunFolder(path).held():
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        pipe.send(child)
        time.sleep(60)


def test_a_lock_goes_with_its_process_even_if_a_worker_outlives_it(tmp_path):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold_and_fork, args=(tmp_path, theirs))
    holder.start()
    worker = ours.recv()
    with pytest.raises(UserError, match="in use"), RunFolder(tmp_path).held():
        pass
    holder.kill()
    holder.join()
    with RunFolder(tmp_path).held():
        os.kill(worker, signal.SIGKILL)  # it was still there


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_folder_that_cannot_be_made_is_one_sentence(own, tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to the output folder"):
        run(own, tmp_path / place)


# --- what is kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_result_has_all_its_fields(whole, variant):
    result = json.loads((whole(variant) / "result.json").read_text())
    assert result.keys() == FIELDS
    assert all(row.keys() == SCORE_FIELDS for row in result["scores"])
    assert {row["norm"] for row in result["scores"]} == set(SCORED_NORMS[result["norm"]])
    for row in result["scores"]:
        values = [row["accuracy"], row["pooled"], *row["domains"].values(), *row["clients"]]
        assert all(0 <= value <= 1 for value in values)
        assert row["domains"].keys() == {"north", "south"}
        assert row["accuracy"] == pytest.approx(np.mean(row["clients"]))
        assert row["ms"] > 0
    assert (result["task"], result["net"], result["threads"], result["rounds"]) == ("own", "toys:Tiny", 1, 4)


def test_a_result_has_every_width_and_every_client(whole):
    result = read_result(whole())
    assert [row["width"] for row in result["scores"] if row["norm"] == "client"] == ["1/4", "1/2", "3/4", "1"]
    assert [client["budget"] for client in result["clients"]] == ["1/4", "1/4", "1/2", "1"]
    assert [client["domain"] for client in result["clients"]] == ["north", "north", "south", "south"]
    assert [client["train"] + client["val"] + client["test"] for client in result["clients"]] == [30] * 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_hash_is_that_of_the_stored_model(whole, variant):
    stored = load_file(whole(variant) / "model.safetensors")
    assert read_result(whole(variant))["weights_sha256"] == weights_sha256(stored)


def test_the_hash_is_that_of_names_shapes_and_bytes():
    weights = {"b": torch.zeros(1), "a": torch.ones(2, 1)}
    known = hashlib.sha256(b"a(2, 1)" + b"\0\0\x80?" * 2 + b"b(1,)" + b"\0" * 4).hexdigest()
    assert weights_sha256(weights) == known


@pytest.mark.parametrize("variant", ["batch", "tracked", "local"])
def test_the_best_validation_round_is_what_is_kept(own, tmp_path, variant):
    run(own, tmp_path, **VARIANTS[variant], lr=2.0, rounds=6, schedule="constant", seed=3)  # so hot that it gets worse
    rows = [row for row in read_metrics(tmp_path) if row["kind"] == "score" and row["width"] == "1"]
    accuracies = [row["accuracy"] for row in rows]
    assert read_result(tmp_path)["best_round"] == accuracies.index(max(accuracies)) < 5
    (again,) = evaluate_run(tmp_path, [Width(1)], "val", None, workers=1)
    assert again["accuracy"] == pytest.approx(max(accuracies))


@pytest.mark.parametrize("variant", ["dual", "single"])
def test_a_run_under_attack_keeps_the_round_that_is_best_in_both_respects(own, tmp_path, variant):
    run(own, tmp_path, **VARIANTS[variant], lr=2.0, rounds=5, schedule="constant", seed=3)
    rows = [row for row in read_metrics(tmp_path) if row["kind"] == "score" and row["width"] == "1"]
    clean, attacked = zip(*(row["trials"] for row in rows), strict=True)
    assert [trial["accuracy"] for trial in clean] == [row["accuracy"] for row in rows]
    assert {(trial["attack"], trial["robust"]) for trial in attacked} == {
        ("L-inf PGD, eps 8/255, 2 steps of 2/255, random start, 1 restart", 1.0 if variant == "dual" else 0.0)
    }
    judged = [one["accuracy"] + two["accuracy"] for one, two in zip(clean, attacked, strict=True)]
    assert read_result(tmp_path)["best_round"] == judged.index(max(judged))


@pytest.mark.parametrize("variant", ["post", "tracked", "local"])
def test_scoring_again_gives_the_scores_of_the_run(whole, variant):
    for norm in {row["norm"] for row in read_result(whole(variant))["scores"]}:
        rows = [row for row in read_result(whole(variant))["scores"] if row["norm"] == norm]
        again = evaluate_run(whole(variant), [], "test", norm, workers=1)
        assert [row["clients"] for row in again] == [row["clients"] for row in rows]


def test_norms_that_never_left_their_clients_are_missed_if_lost(own, tmp_path):
    run(own, tmp_path, **VARIANTS["local"])
    for file in (tmp_path / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="no checkpoint, and only there are the clients' own norms"):
        evaluate_run(tmp_path, [], "test", None, workers=1)


def test_the_config_of_a_run_is_all_it_needs(own, whole):
    assert make_config(read_toml(whole() / "config.toml")) == make_config({"task": own, **SETTINGS})


def test_metrics_have_a_row_per_round_and_per_width_of_a_validation(whole):
    rows = [json.loads(line) for line in (whole("sparse") / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows if row["kind"] == "round"] == [0, 1, 2, 3]
    assert [row["round"] for row in rows if row["kind"] == "score"] == [2] * 4 + [3] * 4


def timeless(manifest):
    """What a checkpoint says, but for the seconds it took."""
    return {key: value for key, value in json.loads(manifest.read_text()).items() if key != "seconds"}


@pytest.mark.parametrize("variant", ["post", "local"])
def test_the_number_of_workers_does_not_change_a_byte(own, whole, tmp_path, variant):
    run(own, tmp_path, workers=2, **VARIANTS[variant])
    assert told(tmp_path) == told(whole(variant))
    for name in ("model.safetensors", "checkpoints/round-000004.safetensors"):
        assert (tmp_path / name).read_bytes() == (whole(variant) / name).read_bytes()
    manifest = "checkpoints/round-000003.json"
    assert timeless(tmp_path / manifest) == timeless(whole(variant) / manifest)


def test_another_seed_gives_other_weights(own, whole, tmp_path):
    run(own, tmp_path, seed=2)
    assert told(tmp_path)["weights_sha256"] != told(whole())["weights_sha256"]


def test_the_order_of_bases_is_natural_by_validation_or_greedy(own, whole, tmp_path):
    paths = {"natural": tmp_path / "natural", "validation": tmp_path / "validation", "greedy": whole()}
    for order in ("natural", "validation"):
        run(own, paths[order], order=order)
    first = {order: evaluate_run(path, [Width(1, 4)], "val", "client", workers=1)[0] for order, path in paths.items()}
    assert read_result(paths["natural"])["bases"] == [0, 1, 2, 3]
    assert all(sorted(read_result(path)["bases"]) == [0, 1, 2, 3] for path in paths.values())
    assert first["greedy"]["accuracy"] == first["validation"]["accuracy"] > first["natural"]["accuracy"]
    assert len({read_result(path)["weights_sha256"] for path in paths.values()}) == 1


# --- the model ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    """Trained on one's own arrays and net."""
    settings = {key: value for key, value in SETTINGS.items() if key not in ("net", "clients")}
    return splitmix.train(stripes_task(), plain_build, workers=1, progress=False, **{**settings, "rounds": 8})


def test_a_model_predicts_at_every_width(model):
    x, y = stripes(40, seed=9)
    assert model.widths == (Width(1, 4), Width(1, 2), Width(3, 4), Width(1))
    assert model(x, "1/4").shape == (40, 3)
    assert model.predict(x, 0.5).dtype == np.int64
    assert np.mean(model.predict(x) == y) > 0.6


def test_a_mix_is_the_mean_of_its_bases(model):
    x, _ = stripes(5, seed=9)
    bases = [
        model.net.run(
            Width(1, 4), {n: v[[b]] for n, v in model.weights.items()}, torch.from_numpy(x).permute(0, 3, 1, 2) / 255
        )[0]
        for b in model.method.order[:2]
    ]
    torch.testing.assert_close(model(x, "1/2"), torch.stack(bases).mean(0))


def test_a_single_image_gets_the_same_answer_as_in_a_batch(model):
    x, _ = stripes(12, seed=9)
    alone = torch.cat([model(x[i : i + 1], "1/2") for i in range(12)])
    torch.testing.assert_close(alone, model(x, "1/2"))


def test_bytes_whole_numbers_and_floats_are_the_same_image(model):
    x, _ = stripes(6, seed=9)
    for same in (x.astype(int), x / 255, (x / 255).astype(np.float32), x.tolist()):
        torch.testing.assert_close(model(same), model(x))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((2, 28, 28, 1)), r"shape \(2, 28, 28, 1\) given, but the model takes \(n, 6, 6, 1\)"),
        (np.zeros((6, 6, 1)), r"shape \(6, 6, 1\) given"),
        (np.zeros((2, 1, 6, 6)), r"shape \(2, 1, 6, 6\) given"),
        (np.full((2, 6, 6, 1), "a"), "pixels of type <U1"),
        (np.full((2, 6, 6, 1), 256), "run from 256 to 256; give 0 to 255"),
    ],
)
def test_images_of_another_kind_are_one_sentence(model, images, words):
    with pytest.raises(UserError, match=words):
        model.predict(images)


@pytest.mark.parametrize("width", ["1/8", "3/8", 0.3, 2, 0, "wide", None])
def test_a_width_that_cannot_be_mixed_is_one_sentence(model, width):
    with pytest.raises(UserError, match="width"):
        model.predict(stripes(2)[0], width)


def test_a_run_of_ones_own_arrays_says_what_it_was(model):
    about = {key: model.result[key] for key in ("task", "data", "net")}
    assert about == {"task": "arrays", "data": "your own arrays", "net": "toys:plain_build"}


def test_ones_own_arrays_and_net_can_be_resumed(tmp_path):
    settings = {
        "out": tmp_path / "run",
        "progress": False,
        "workers": 1,
        "rounds": 2,
        "budgets": "1/2 1",
    }
    first = splitmix.train(stripes_task(), Tiny, **settings)
    again = splitmix.train(stripes_task(), Tiny, **settings, resume=True)
    x, _ = stripes(9, seed=9)
    assert again.result == first.result
    assert torch.equal(again(x, "1/2"), first(x, "1/2"))
    with pytest.raises(UserError, match="net = "):
        splitmix.train(stripes_task(), plain_build, **settings, resume=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"task": "minni"}, "did you mean 'mini'"),
        ({"rond": 3}, "did you mean 'rounds'"),
        ({"build": lambda width: torch.nn.Linear(3, 3)}, "cannot take the images of 'arrays'"),
        ({"build": lambda width: plain_build(width / 0)}, "cannot be built at width 1/8"),
        ({"build": lambda width: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 4))}, "has 3 classes"),
        ({"task": stripes_task(val_ratio=0.0)}, "has 2 validation images, by which the best round is chosen"),
        ({"budgets": "1/16"}, "below the atom 1/8"),
    ],
)
def test_a_mistake_in_a_call_is_one_sentence(changed, words):
    given = {"task": stripes_task(), "build": plain_build, "progress": False, **changed}
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        splitmix.train(given.pop("task"), given.pop("build"), **given)
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


def test_a_config_is_written_as_it_is_read(own):
    config = make_config({"task": own, **SETTINGS})
    assert to_toml(config).splitlines()[0] == f'task = "{Path(own)}"'
