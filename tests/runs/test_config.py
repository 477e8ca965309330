"""Configs: read from TOML and `key=value`, checked as a whole, written back, hashed."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitmix.core.errors import UserError
from splitmix.runs.config import (
    BEFORE,
    FREE,
    Config,
    check_same_config,
    make_config,
    parse_override,
    read_config,
    read_toml,
    to_toml,
)

OTHER = {  # a value for each key that differs from its default
    "task": "digits",
    "data": {"size": 64},
    "method": "fedavg",
    "net": "alexnet",
    "rounds": 7,
    "lr": 0.5,
    "seed": 2,
    "atom": "1/4",
    "budgets": {"name": "exponential", "order": "shuffled"},
    "objective": "masked",
    "norm": "batch",
    "order": "natural",
    "schedule": "constant",
    "floor": 0.1,
    "milestones": [3],
    "epochs": 2,
    "batch": 16,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "norm_rate": 10.0,
    "optimizer": {"name": "adamw", "beta2": 0.99},
    "proximal": 0.1,
    "statistics": "chosen",
    "mix": "fitted",
    "precision": "mixed",
    "kernels": "native",
    "server": "momentum",
    "average": 0.2,
    "cohort": 3,
    "min_share": 0.9,
    "repeats": 0,
    "min_updates": 2,
    "clip": 5.0,
    "aggregate": "trimmed",
    "privacy": {"clip": 1.0, "noise": 0.5},
    "max_samples": "3x",
    "clients": 4,
    "partition": {"name": "classes", "k": 3},
    "val_ratio": 0.5,
    "rescale_init": False,
    "rescale_layers": False,
    "eval_every": 1,
    "eval_batch": 64,
    "checkpoint_every": 1,
}
SCALARS = st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def mistakes_of(given):
    with pytest.raises(UserError) as caught:
        make_config(given)
    return str(caught.value)


def stored(config, folder):
    """The settings as they come back from a file."""
    file = folder / "config.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    return read_toml(file)


def test_all_mistakes_are_told_at_once():
    given = {"task": "digts", "method": "splitmx", "rounds": 0, "norm": "trakced", "budgets": "1/0", "lrate": 1}
    told = mistakes_of(given)
    for word in ("'digits'", "'splitmix'", "rounds", "'tracked'", "1/0", "'lrate'"):
        assert word in told
    assert "\n" not in told


NEAR = {  # what is written, and what was meant
    **{"rond": (3, "rounds"), "budget": ("1", "budgets"), "weight-decay": (0, "weight_decay")},
    **{"task": ("minni", "mini"), "net": ("digt", "digit"), "objective": ("maskd", "masked")},
    **{"norm": ("bach", "batch"), "order": ("greddy", "greedy"), "schedule": ("cosin", "cosine")},
    **{"method": ({"name": "fedavgg"}, "fedavg"), "budgets": ({"name": "lognorml"}, "lognormal")},
    **{"partition": ({"name": "classes", "kk": 3}, "k"), "aggregate": ("medain", "median")},
}


@pytest.mark.parametrize("key", NEAR)
def test_the_nearest_name_is_suggested(key):
    value, near = NEAR[key]
    assert f"did you mean '{near}'?" in mistakes_of({key: value})


def test_a_key_like_no_other_gets_the_whole_list():
    assert "unknown key 'zzz'; known: task, method, net, rounds" in mistakes_of({"zzz": 1})


BAD = {
    **{"rounds": [0, 2.5, "many"], "lr": [0, float("inf"), float("nan")], "seed": [-1], "atom": ["3/8", "0", [1]]},
    **{"batch": [1], "momentum": [1], "cohort": [0], "clients": [0], "val_ratio": [1], "eval_every": [0]},
    **{"checkpoint_every": [0], "milestones": [5], "budgets": ["2", []], "method": [5, {"count": 3}]},
    **{"net": ["no_such_module:build"], "task": ["no/such/folder"]},
    **{"privacy": [1, {"noise": 1}, {"clip": 0}, {"clip": 1, "noise": [1]}, {"clip": 1, "eps": 3}]},
    **{"max_samples": [0, -1, "x", "0x", "1e9x", "2.5x", "1" * 5000]},
}


@pytest.mark.parametrize("key", BAD)
def test_a_bad_value_is_one_sentence_that_names_its_key_once(key):
    for value in BAD[key]:
        told = mistakes_of({key: value})
        assert told.startswith(f"{key}: ")
        assert told.count(f"{key}: ") == 1


def test_whatever_was_set_comes_back_from_its_file(tmp_path):
    config = make_config(OTHER)
    assert make_config(stored(config, tmp_path)) == config
    assert make_config(stored(Config(), tmp_path)) == Config()


@settings(max_examples=15)
@given(task=st.text(), options=st.dictionaries(st.text().filter(lambda key: key != "name"), VALUES, max_size=4))
def test_any_text_number_list_or_table_comes_back_from_its_file(tmp_path_factory, task, options):
    config = make_config({"task": task, "method": {"name": "splitmix", **options}}, own=["task"])
    assert make_config(stored(config, tmp_path_factory.getbasetemp()), own=["task"]) == config


def test_overrides_change_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('task = "mini"\nrounds = 9\nlr = 0.2\n[budgets]\nname = "each"\nwidths = ["1", "1/2"]\n')
    config = read_config(str(file), ["rounds=12", "norm=batch"])
    assert (config.rounds, config.lr, config.norm) == (12, 0.2, "batch")
    assert config.budgets == {"name": "each", "widths": ["1", "1/2"]}


READ = {
    **{"rounds=12": ("rounds", 12), "lr=.05": ("lr", ".05"), "lr=1e-3": ("lr", 1e-3), "task=a=b": ("task", "a=b")},
    **{"budgets=1/8 1": ("budgets", "1/8 1"), "budgets=['1/8', '1']": ("budgets", ["1/8", "1"])},
    **{"method={name='fedavg'}": ("method", {"name": "fedavg"}), "rescale_init=false": ("rescale_init", False)},
    " rounds = 3": ("rounds", 3),
}


@pytest.mark.parametrize("text", READ)
def test_a_value_is_toml_or_plain_text(text):
    assert parse_override(text) == READ[text]


@pytest.mark.parametrize("text", ["rounds", "=3", " = 3", ""])
def test_a_setting_needs_a_key_and_a_value(text):
    with pytest.raises(UserError, match="write key=value"):
        parse_override(text)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028"])
def test_a_setting_is_one_line(end):
    with pytest.raises(UserError, match="has more than one line; give each key=value its own -o"):
        parse_override(f"rounds=2{end}lr=9")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 50_000, "[" * 99 + "]" * 99, "{a" + ".a" * 50_000 + "=1}"])
def test_a_setting_that_has_no_end_is_one_short_sentence(value):
    with pytest.raises(UserError, match="cannot be read: ") as caught:
        parse_override(f"rounds={value}")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("given", "same"), [("0.125", "1/8"), (0.25, "1/4"), (1, "1"), ("2/16", "1/8")])
def test_an_atom_may_be_written_in_many_ways(given, same):
    assert make_config({"atom": given}).atom == same


def test_numbers_may_come_as_text():
    config = read_config("mini", ["lr=.05", "rounds='3'"])
    assert (config.lr, config.rounds) == (0.05, 3)


def test_every_key_has_another_value_here():
    assert OTHER.keys() == Config.model_fields.keys()


@pytest.mark.parametrize("key", [key for key in OTHER if key not in FREE])
def test_the_hash_changes_with_every_key_that_decides_the_result(key):
    assert Config(**{key: OTHER[key]}).digest() != Config().digest()


@pytest.mark.parametrize("key", sorted(FREE))
def test_the_hash_does_not_change_with_how_a_run_is_kept_going(key):
    assert Config(**{key: OTHER[key]}).digest() == Config().digest()


DIGITS = {"task": "digits", "cohort": 10, "eval_every": 10}
OAT = {**DIGITS, "method": {"name": "fedavg", "width": "1/4"}, "objective": "oat", "norm": "tracked", "rounds": 20}
STORED = [  # hashes in results/, from the first to the last edition of the settings
    ({"eval_every": 5}, "1078c22fd25f6aae24225a7e38b169c45384109202efe916f38b6683ab7ff71d"),
    (DIGITS | {"lr": 0.03, "rounds": 30}, "3fcb14753b8162db1fd12ef0ac098681e704088585f701c50ca8e08f88be9551"),
    (DIGITS | {"lr": 0.01, "rounds": 50}, "60ece03e67cffee408b48b429ecb47ea97edb66b6c1edf6dc714ac94016968a6"),
    (OAT | {"clip": 5.0}, "2d1b27f8c3da9d00248b8120c9595eaa21d8607c7bb8ef491a0c4369e9568d40"),
    (
        {
            **{"task": "digits", "rounds": 300, "lr": 0.01, "seed": 3},
            **{"norm": "batch", "order": "natural", "eval_every": 5},
        },
        "d4a46accaa4a2afe26e4a726e00a410d63a45f13e58d0d003ac41b7499eb5f43",
    ),
]


@pytest.mark.parametrize(("settings", "digest"), STORED)
def test_a_hash_is_that_of_the_same_settings_for_ever(settings, digest):
    assert make_config(settings).digest() == digest


def test_another_default_is_hashed_and_changes_no_hash_of_older_runs():
    class Later(Config):
        clip: float = 7.0

    assert Later(clip=0.0).digest() == Config(clip=0.0).digest()
    assert Later().digest() == Config(clip=7.0).digest() != Config().digest()


def test_files_of_runs_with_a_bound_of_5_are_known_by_the_hash_that_left_it_out():
    once = "b26428e146e9557de788879f9ec7de1211cf78f1ea71127448a3664be4b39603"
    assert make_config(OAT | {"clip": 5.0}).digests() == (make_config(OAT | {"clip": 5.0}).digest(), once)
    assert make_config(OAT).digest() == once
    assert Config(clip=7.0).digests() == (Config(clip=7.0).digest(),)


def test_a_run_older_than_some_keys_can_be_resumed(tmp_path):
    config, later = make_config({"rounds": 3}), (*BEFORE, *FREE)
    older = [line for line in to_toml(config).splitlines() if not line.startswith(later)]
    (tmp_path / "config.toml").write_text("\n".join(older))
    check_same_config(tmp_path, to_toml(config))
    with pytest.raises(UserError, match=r"clip = 0.0 \(now 2.0\)"):
        check_same_config(tmp_path, to_toml(make_config({"rounds": 3, "clip": 2})))


def test_a_task_brings_its_own_defaults_which_give_way():
    assert read_config("digits").rounds == 300
    assert read_config("cifar10").objective == "masked"
    assert read_config("digits", ["rounds=5"]).rounds == 5
    assert read_config("mini", ["task=digits"]).rounds == 300
    assert read_config(None) == Config()


def test_a_folder_is_a_task(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 2)), y=np.zeros(1, int))
    assert read_config(str(tmp_path)).task == str(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no config file"),
        (b"rounds = = 3", "cannot be read"),
        (b"rounds = 3\nrounds = 4", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"rounds = 1979-05-27", "rounds: "),
        (b"rounds = " + b"9" * 5000, "a number of far too many digits"),
        (b"budgets = " + b"[" * 50_000, "nested too deeply"),
        (b"budgets = " + b"[" * 300 + b"]" * 300, "nested too deeply"),
        (b"a." * 90 + b"b = 1", "nested too deeply"),
        (b"a." * 40_000 + b"b = 1", "a line of more than 100 dots"),
        (b"#" * 200_000, "more than 100,000 characters"),
        (b'rounds = "' + b"x" * 9000 + b'"', "rounds: .{0,200}$"),
    ],
)
def test_a_file_that_is_no_config_is_one_sentence(tmp_path, content, words):
    if content is not None:
        (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_config(str(tmp_path / "bad.toml"))
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_config_file(tmp_path):
    (tmp_path / "dir.toml").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read_config(str(tmp_path / "dir.toml"))


def test_the_settings_and_their_recipes_are_known_without_loading_pytorch():
    code = "import sys, splitmix.runs.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
