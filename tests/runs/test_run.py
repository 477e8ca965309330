"""What a run keeps: its result, its best round, its metrics and its config, alike for any number of workers."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import VARIANTS, run, told
from helpers.small_task import SETTINGS
from splitmix.core.errors import UserError
from splitmix.core.score import score
from splitmix.core.width import Width
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.finish import SCORED_NORMS, ordered
from splitmix.runs.folder import RunFolder, weights_sha256
from splitmix.runs.measure.evaluate import evaluate_run, open_run
from splitmix.runs.records import read_metrics, read_result, write_record
from splitmix.runs.run import train_rounds
from splitmix.runs.setup import make_build, set_up

pytestmark = pytest.mark.slow  # whole runs

FIELDS = {  # what a result.json has for certain
    *("schema", "task", "data", "method", "net", "atom", "objective", "norm", "norm_text", "seed", "rounds"),
    *("best_round", "order", "bases", "weights_sha256", "seconds", "workers", "threads", "versions", "command"),
    *("domains", "clients", "scores", "rescaled", "kind", "image"),
}
SCORE_FIELDS = {
    *("norm", "split", "width", "bases", "accuracy", "pooled", "domains", "clients", "parameters", "macs", "ms")
}
OWN_FIELDS = {"chosen": {"chosen_by"}, "fitted": {"times"}, "private": {"epsilon", "delta"}}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_result_has_all_its_fields(whole, variant):
    result = json.loads((whole(variant) / "result.json").read_text())
    assert result.keys() == FIELDS | OWN_FIELDS.get(variant, set())
    assert all(row.keys() == SCORE_FIELDS for row in result["scores"])
    told = {"global"} if variant == "private" else set()  # what all clients' images make, without noise
    assert {row["norm"] for row in result["scores"]} == set(SCORED_NORMS[result["norm"]]) - told
    for row in result["scores"]:
        values = [row["accuracy"], row["pooled"], *row["domains"].values(), *row["clients"]]
        assert all(0 <= value <= 1 for value in values)
        assert row["domains"].keys() == {"north", "south"}
        assert row["accuracy"] == pytest.approx(np.mean(row["clients"]))
        assert row["ms"] > 0
    assert (result["task"], result["net"], result["threads"], result["rounds"]) == ("own", "helpers.toys:Tiny", 1, 4)


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


@pytest.mark.parametrize("variant", ["batch", "local"])
def test_the_best_validation_round_is_what_is_kept(own, tmp_path, variant):
    run(own, tmp_path, **VARIANTS[variant], lr=2.0, rounds=6, schedule="constant", seed=3)  # so hot that it gets worse
    rows = [row for row in read_metrics(tmp_path) if row["kind"] == "score" and row["width"] == "1"]
    accuracies = [row["accuracy"] for row in rows]
    assert read_result(tmp_path)["best_round"] == accuracies.index(max(accuracies)) < 5
    (again,) = evaluate_run(tmp_path, [Width(1)], "val", None, workers=1)
    assert again["accuracy"] == pytest.approx(max(accuracies))


@pytest.mark.parametrize("variant", ["dual", "single"])
def test_a_run_under_attack_keeps_the_round_that_is_best_in_both_respects(own, tmp_path, variant):
    run(own, tmp_path, **VARIANTS[variant], lr=2.0, rounds=3, schedule="constant", seed=3)
    rows = [row for row in read_metrics(tmp_path) if row["kind"] == "score" and row["width"] == "1"]
    clean, attacked = zip(*(row["trials"] for row in rows), strict=True)
    assert [trial["accuracy"] for trial in clean] == [row["accuracy"] for row in rows]
    assert {(trial["attack"], trial["robust"]) for trial in attacked} == {
        ("L-inf PGD, eps 8/255, 2 steps of 2/255, random start, 1 restart", 1.0 if variant == "dual" else 0.0)
    }
    judged = [one["accuracy"] + two["accuracy"] for one, two in zip(clean, attacked, strict=True)]
    assert read_result(tmp_path)["best_round"] == judged.index(max(judged))


@pytest.mark.parametrize("variant", ["post", "tracked", "local", "dual, post"])
def test_scoring_again_gives_the_scores_of_the_run(whole, variant):
    for norm in {row["norm"] for row in read_result(whole(variant))["scores"]}:
        rows = [row for row in read_result(whole(variant))["scores"] if row["norm"] == norm]
        again = evaluate_run(whole(variant), [], "test", norm, workers=1)
        assert [row["clients"] for row in again] == [row["clients"] for row in rows]


def test_norm_statistics_are_chosen_on_validation_images_in_every_round(whole):
    result, last = read_result(whole("chosen")), read_metrics(whole("chosen"))[-1]
    found = {
        norm: evaluate_run(whole("chosen"), [Width(1)], "val", norm, workers=1)[0]["accuracy"]
        for norm in ("client", "global")
    }
    assert result["chosen_by"] == found
    assert found[result["scores"][0]["norm"]] == max(found.values())
    assert result["best_round"] != last["round"] or last["accuracy"] == max(found.values())
    assert {row["norm"] for row in read_metrics(whole("chosen")) if row["kind"] == "score"} <= found.keys()


def test_where_clients_lack_classes_one_set_of_statistics_for_all_is_chosen(own, tmp_path):
    run(own, tmp_path, statistics="chosen", partition={"name": "classes", "k": 2}, seed=2)
    result = read_result(tmp_path)
    assert result["chosen_by"]["global"] > result["chosen_by"]["client"]
    assert result["scores"][0]["norm"] == "global"


@pytest.mark.parametrize("variant", ["global", "chosen", "post"])
def test_the_first_scores_are_those_that_the_config_wants(whole, variant):
    stored = read_result(whole(variant))["scores"]
    again = evaluate_run(whole(variant), [], "test", None, workers=1)
    assert [(row["norm"], row["clients"]) for row in again] == [
        (row["norm"], row["clients"]) for row in stored[: len(again)]
    ]
    assert variant == "chosen" or again[0]["norm"] == {"global": "global", "post": "client"}[variant]


def test_a_run_is_served_with_the_shares_that_it_found(whole, tmp_path):
    folder = shutil.copytree(whole("fitted"), tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    again = evaluate_run(folder, [], "test", None, workers=1)
    assert [row["clients"] for row in again] == [row["clients"] for row in result["scores"]]
    for times, words in (([1, 9, 1], ""), ([1, 1], "shares of bases"), ([0, 0, 0], "shares of bases")):
        write_record(folder / "result.json", {**result, "times": {"3/4": times}})
        if words:
            with pytest.raises(UserError, match=words):
                open_run(folder)
        else:
            bases = [part.base for part in open_run(folder).setup.mixes()[Width(3, 4)]]
            assert [bases.count(base) for base in result["bases"][:3]] == times


def test_with_a_dial_calibrated_norms_are_trained_like_tracked_ones(own, whole, tmp_path):
    run(own, tmp_path, **{**VARIANTS["dual, post"], "norm": "tracked"})
    tracked, post = (load_file(path / "model.safetensors") for path in (tmp_path, whole("dual, post")))
    differ = {name for name in tracked if not torch.equal(tracked[name], post[name])}
    assert differ == {name for name in tracked if "running" in name}


def test_norms_that_never_left_their_clients_are_missed_if_lost(whole, tmp_path):
    folder = shutil.copytree(whole("local"), tmp_path / "run", ignore=shutil.ignore_patterns("round-*"))
    with pytest.raises(UserError, match="no checkpoint, and only there are the clients' own norms"):
        evaluate_run(folder, [], "test", None, workers=1)


def test_the_config_of_a_run_is_all_it_needs(own, whole):
    assert make_config(read_toml(whole() / "config.toml")) == make_config({"task": own, **SETTINGS})


def test_metrics_have_a_row_per_round_and_per_width_of_a_validation(whole):
    rows = [json.loads(line) for line in (whole("sparse") / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows if row["kind"] == "round"] == [0, 1, 2, 3]
    assert [row["round"] for row in rows if row["kind"] == "score"] == [2] * 4 + [3] * 4


def timeless(manifest):
    """What a checkpoint says, but for the seconds it took, which its hash holds as well."""
    return {key: value for key, value in json.loads(manifest.read_text()).items() if key not in ("seconds", "sha256")}


@pytest.mark.parametrize("variant", ["post", "local"])
def test_the_number_of_workers_does_not_change_a_byte(own, whole, tmp_path, variant):
    run(own, tmp_path, workers=2, **VARIANTS[variant])
    assert told(tmp_path) == told(whole(variant))
    for name in ("model.safetensors", "checkpoints/round-000004.safetensors"):
        assert (tmp_path / name).read_bytes() == (whole(variant) / name).read_bytes()
    manifest = "checkpoints/round-000003.json"
    assert timeless(tmp_path / manifest) == timeless(whole(variant) / manifest)


def test_another_seed_gives_other_weights(own):
    one, two = (set_up(make_config({"task": own, **SETTINGS, "seed": seed, "rounds": 1})) for seed in (1, 2))
    weights = [train_rounds(setup, setup.engine(1)).weights for setup in (one, one, two)]
    assert weights_sha256(weights[0]) == weights_sha256(weights[1]) != weights_sha256(weights[2])


def test_the_order_of_bases_is_natural_by_validation_or_greedy(own, whole):
    config = make_config(read_toml(whole() / "config.toml"))
    state, _ = RunFolder(whole()).load_state(config.digests(), set_up(config).fresh_weights())
    first = {}
    for order in ("natural", "validation", "greedy"):
        setup = set_up(make_config({"task": own, **SETTINGS, "order": order}))
        bases = ordered(setup, setup.engine(1), state.best, "client")
        assert sorted(bases) == [0, 1, 2, 3]
        question = setup.question("val", "client")
        mixes = {Width(1, 4): setup.method.ordered(bases).compose(Width(1, 4))}
        first[order] = score(setup.engine(1), state.best, mixes, setup.domains, question)[0].accuracy
        assert order != "natural" or bases == (0, 1, 2, 3)
        assert order != "greedy" or list(bases) == read_result(whole())["bases"]
    assert first["greedy"] == first["validation"] > first["natural"]


@pytest.mark.parametrize(("privacy", "kept"), [(None, 0), ({"clip": 0.5}, 3)])
def test_the_best_round_is_kept_and_with_privacy_the_last(own, tmp_path, monkeypatch, privacy, kept):
    worth = iter([0.9, 0.5, 0.4, 0.3])
    monkeypatch.setattr("splitmix.runs.run.worth", lambda *_: (next(worth), []))
    run(own, tmp_path, privacy=privacy, order="natural")
    assert read_result(tmp_path)["best_round"] == kept


@pytest.mark.parametrize("net", ["preresnet18", "helpers.toys:Tiny"])
def test_native_kernels_for_a_net_that_has_none_are_refused(net):
    with pytest.raises(UserError, match=f"no native kernels for a net {net}, only for digit; use kernels = 'torch'"):
        make_build(make_config({"net": net, "kernels": "native"}), net, 10)
