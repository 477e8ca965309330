"""Stopping and resuming: a run that was stopped ends as if it never was, and says what it cannot go on with."""

import pytest

from helpers.runs import VARIANTS, Watch, names, run, stop, told
from splitmix.core.errors import UserError
from splitmix.engines.clients import TaskClients

pytestmark = pytest.mark.slow  # whole runs


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "single"])
def test_a_run_that_was_stopped_again_and_again_ends_as_if_it_never_was(own, whole, tmp_path, variant):
    for event, number in (("round", 0), ("scores", 2), ("end", 0)):
        stop(own, tmp_path, event, number, resume=True, **VARIANTS[variant])
    run(own, tmp_path, resume=True, **VARIANTS[variant])
    assert told(tmp_path) == told(whole(variant))
    assert (tmp_path / "model.safetensors").read_bytes() == (whole(variant) / "model.safetensors").read_bytes()


def test_where_clients_come_and_go_a_resumed_run_deals_its_bases_on(own, tmp_path, monkeypatch):
    every = TaskClients.profiles
    monkeypatch.setattr(TaskClients, "profiles", lambda self, round: every(self, round)[: (4, 1, 3, 2)[round]])
    run(own, tmp_path / "whole")
    stop(own, tmp_path / "stopped", "round", 2)
    run(own, tmp_path / "stopped", resume=True)
    last = [tmp_path / name / "checkpoints" / "round-000004.safetensors" for name in ("whole", "stopped")]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_a_run_goes_on_after_the_last_checkpoint_however_often_it_is_checkpointed_now(own, whole, tmp_path):
    stop(own, tmp_path, "round", 3)
    for left in (".config.toml.0.tmp", "checkpoints/.round-000004.json.0.tmp", "checkpoints/round-000004.safetensors"):
        (tmp_path / left).write_bytes(b"half")  # as a crash leaves it
    watch = Watch()
    run(own, tmp_path, resume=True, watch=watch, checkpoint_every=3)
    assert (watch.start, watch.notes) == (3, [])
    assert told(tmp_path) == told(whole())
    assert not list(tmp_path.rglob("*.tmp"))


def test_resuming_begins_a_run_that_is_not_there(own, tmp_path):
    run(own, tmp_path / "new" / "run", resume=True, rounds=1)
    assert (tmp_path / "new" / "run" / "result.json").exists()


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
