"""Tuning: what is chosen and why, the record of it, and one small search that never sees a test image."""

import json
from dataclasses import replace

import pytest

from helpers.small_task import SETTINGS, small_folder
from splitmix.compare.compare import compared_runs, parse_contender, parse_contenders, with_rates
from splitmix.compare.suite import Workshop
from splitmix.compare.tuning import (
    RatesToTry,
    best_round,
    read_rates,
    read_tuning,
    trial_runs,
    tune,
    tuning_table,
    with_choice,
    with_trial,
)
from splitmix.core.errors import UserError
from splitmix.runs import run
from splitmix.runs.folder import RunFolder
from splitmix.runs.records import write_record


def trial(method, lr, accuracy, seed=1):
    return {
        **{"method": method, "lr": lr, "seed": seed, "folder": "f", "accuracy": accuracy, "round": 3},
        **{"widths": {"1": accuracy}, "seconds": 10.0, "config": f"{method} {lr} {seed}"},
    }


def record(*trials, rates=(0.01, 0.1, 1.0), seeds=(1,)):
    methods = list(dict.fromkeys(found["method"] for found in trials))
    return with_choice(
        {
            **{"schema": 1, "task": "mini", "command": "splitmix tune", "judged": "by hand", "methods": methods},
            **{"rates": list(rates), "seeds": list(seeds), "rounds": 4, "seconds": 0.0, "settings": {}, "chosen": {}},
            "trials": list(trials),
        }
    )


FULL = record(*(trial("splitmix", lr, accuracy) for lr, accuracy in ((0.01, 0.5), (0.1, 0.9), (1.0, 0.2))))


def score(round, width, accuracy, split="val"):
    return {"kind": "score", "round": round, "split": split, "width": width, "accuracy": accuracy}


# --- choosing -----------------------------------------------------------------------------------------------------


NO_ATTACK = [score(0, "1/8", 0.9), score(0, "1", 0.1), score(4, "1/8", 0.5), score(4, "1", 0.75), score(9, "1", 1.0)]
TESTED = [score(0, "1", 0.3), score(1, "1", 0.9, split="test"), score(1, "1/2", 0.9)]
ATTACKED = [
    score(r, w, 0.9 - r / 10) | ({"judged": 0.5 + r / 10} if w == "1" else {}) for r in (0, 1) for w in ("1/8", "1")
]


@pytest.mark.parametrize(
    ("rows", "widths", "best"),
    [
        (NO_ATTACK, {"1/8", "1"}, {"accuracy": 0.625, "round": 5, "widths": {"1/8": 0.5, "1": 0.75}}),
        (TESTED, {"1"}, {"accuracy": 0.3, "round": 1, "widths": {"1": 0.3}}),  # of validation images, at asked widths
        (ATTACKED, {"1/8", "1"}, {"accuracy": 0.6, "round": 2, "widths": {"1": 0.6}}),  # judged as its rounds are
    ],
)
def test_the_best_round_is_that_of_the_best_average_over_widths(rows, widths, best):
    assert best_round(rows, widths) == best


def test_a_trial_without_scores_is_told():
    with pytest.raises(UserError, match="no validation scores"):
        best_round(TESTED, {"1/4"})


def test_the_rate_with_the_best_accuracy_is_chosen_and_marked_among_all():
    assert FULL["chosen"] == {"splitmix": {"lr": 0.1, "accuracy": 0.9, "edge": False}}
    assert "| splitmix | 50.0 | **90.0** | 20.0 | 0.1 |" in tuning_table(FULL).to_markdown()


def test_of_equal_rates_the_lower_one_is_chosen_and_an_edge_is_told():
    equal = record(*(trial("splitmix", lr, 0.5) for lr in (0.01, 0.1, 1.0)))
    assert equal["chosen"]["splitmix"] == {"lr": 0.01, "accuracy": 0.5, "edge": True}
    assert "At the edge of what was tried" in tuning_table(equal).caption
    assert "At the edge" not in tuning_table(FULL).caption
    single = record(trial("splitmix", 0.1, 0.5), rates=(0.1,))  # nothing to be at the edge of
    assert not single["chosen"]["splitmix"]["edge"]


def test_seeds_are_averaged():
    found = [trial("splitmix", lr, accuracy, seed) for lr, pair in ((0.1, (0.5, 0.7)), (1.0, (0.9, 0.2)))
             for seed, accuracy in enumerate(pair, 1)]  # fmt: skip
    assert record(*found, rates=(0.1, 1.0), seeds=(1, 2))["chosen"]["splitmix"]["lr"] == 0.1


def test_a_method_that_did_not_try_all_rates_has_none_chosen():
    more = with_trial(FULL | {"methods": ["splitmix", "heterofl"]}, trial("heterofl", 0.1, 0.99))
    assert more["chosen"].keys() == {"splitmix"}
    assert tuning_table(more).cells()[1] == ["heterofl", "-", "99.0", "-", "-"]


def test_a_trial_that_is_repeated_counts_once():
    again = with_trial(FULL, trial("splitmix", 1.0, 0.95))
    assert len(again["trials"]) == 3
    assert again["chosen"]["splitmix"]["lr"] == 1.0
    assert again["seconds"] == 30.0


# --- the record ---------------------------------------------------------------------------------------------------


def test_a_record_comes_back_from_its_file_or_folder(tmp_path):
    write_record(tmp_path / "tuning.json", FULL)
    assert read_tuning(tmp_path / "tuning.json") == FULL
    assert read_rates(tmp_path, "mini") == read_rates(tmp_path / "tuning.json", "mini") == {"splitmix": 0.1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no tuning record"),
        ("[]", "schema None"),
        ('{"schema": 1}', "no tuning record"),
        (None, "there is no"),
        (json.dumps(FULL | {"schema": 2}), "schema 2"),
        (json.dumps(FULL), "tuned on mini, not on digits"),
    ],
)
def test_what_is_no_record_of_this_task_is_one_sentence(tmp_path, text, words):
    file = tmp_path / "tuning.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=words) as refusal:
        read_rates(file, "digits")
    assert "\n" not in str(refusal.value)


# --- what is tried ------------------------------------------------------------------------------------------------


def test_every_method_tries_the_same_rates(tmp_path):
    grid = RatesToTry(parse_contenders(["splitmix", "heterofl"]), rates=(0.3, 0.1), seeds=(1, 2))
    plans = trial_runs({"task": "mini"}, grid, tmp_path)
    assert len(plans) == 8
    assert [plan.folder.name for plan in plans[:3]] == ["splitmix-lr0.1-s1", "splitmix-lr0.3-s1", "heterofl-lr0.1-s1"]
    assert [plan.config.lr for plan in plans[:3]] == [0.1, 0.3, 0.1]


@pytest.mark.parametrize(
    ("methods", "more", "told"),
    [
        ([], {}, "nothing to try"),
        (["splitmix"], {"rates": ()}, "nothing to try"),
        (["splitmix"], {"seeds": ()}, "nothing to try"),
        (["splitmix:lr=0.1"], {}, "brings its own learning rate"),
    ],
)
def test_what_cannot_be_tried_is_told(methods, more, told):
    with pytest.raises(UserError, match=told):
        RatesToTry([parse_contender(text) for text in methods], **more)


# --- a real search ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_stops_a_trial_after_its_last_round_is_not_taken_for_its_end(tmp_path, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save_state", interrupted)
    given = {**SETTINGS, "task": str(small_folder(tmp_path / "data")), "rounds": 1}
    with pytest.raises(KeyboardInterrupt):
        tune(given, RatesToTry(parse_contenders(["splitmix"]), rates=(0.1,)), tmp_path / "out", Workshop())
    assert not (tmp_path / "out" / "tuning.json").exists()


@pytest.mark.slow
def test_a_search_keeps_a_record_goes_on_where_it_stopped_and_never_tests(tmp_path, monkeypatch):
    def never(*given, **more):
        raise AssertionError("a trial must not be tested")

    monkeypatch.setattr(run, "finish", never)
    given = {**SETTINGS, "task": str(small_folder(tmp_path / "data")), "rounds": 2}
    told: list[str] = []
    workshop = Workshop(command="splitmix tune", say=told.append)
    grid = RatesToTry(parse_contenders(["splitmix", "heterofl"]), rates=(0.1, 0.001))
    first = tune(given, replace(grid, contenders=grid.contenders[:1]), tmp_path / "out", workshop)
    found = tune(given, grid, tmp_path / "out", workshop)
    assert [text.split(" (")[0] for text in told] == [
        "trial 1 of 2: splitmix, lr 0.001, seed 1",
        "trial 2 of 2: splitmix, lr 0.1, seed 1",
        "trial 3 of 4: heterofl, lr 0.001, seed 1",
        "trial 4 of 4: heterofl, lr 0.1, seed 1",
    ]
    assert found["trials"][:2] == first["trials"]
    assert found["chosen"].keys() == {"splitmix", "heterofl"}
    assert found["trials"][0]["widths"].keys() == {"1/4", "1/2", "1"}
    assert not list((tmp_path / "out").rglob("result.json"))
    assert json.loads((tmp_path / "out" / "tuning.json").read_text()) == found
    assert tune(given, grid, tmp_path / "out", workshop) == found
    assert len(told) == 4
    (tmp_path / "out" / "tuning.json").unlink()
    assert tune(given, grid, tmp_path / "out", workshop) == found  # made again from the trials, with the time they took
    tuned = with_rates(grid.contenders, read_rates(tmp_path / "out", given["task"]))
    rates = [plan.config.lr for plan in compared_runs(given, tuned, [1], tmp_path / "compared")]
    assert rates == [found["chosen"]["splitmix"]["lr"], found["chosen"]["heterofl"]["lr"]]
    with pytest.raises(UserError, match="other settings"):
        tune({**given, "momentum": 0.5}, grid, tmp_path / "out", workshop)
