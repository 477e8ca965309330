"""Recipes: what is filled in where a config leaves it open."""

import pytest

from splitmix.core.errors import UserError
from splitmix.runs.config import make_config, read_config, to_toml
from splitmix.runs.recipes import RECIPES


@pytest.mark.parametrize(
    ("task", "method", "expected"),
    [
        ("digits", "splitmix", {"lr": 0.01, "rescale_init": True, "schedule": "cosine", "rounds": 300}),
        ("digits", "fedavg", {"lr": 0.1, "rescale_init": False}),
        ("digits", {"name": "sheterofl"}, {"lr": 0.1}),
        ("cifar10", "splitmix", {"lr": 0.01, "schedule": "steps", "epochs": 5, "batch": 128, "milestones": [150, 250]}),
        ("cifar10", "fedavg", {"lr": 0.01, "objective": "masked"}),
        ("cifar10", "sheterofl", {"lr": 0.1, "rounds": 400}),
    ],
)
def test_the_papers_recipe_is_the_released_setting_of_task_and_method(task, method, expected):
    config = make_config({"task": task, "method": method, "recipe": "paper"}).model_dump()
    assert {key: config[key] for key in expected} == expected
    assert (config["norm"], config["order"]) == ("batch", "natural")


def test_an_explicit_setting_wins_over_a_recipe_and_the_file_shows_what_came_of_it(tmp_path):
    config = read_config("digits", ["recipe=paper", "lr=0.5"])
    assert (config.lr, config.norm) == (0.5, "batch")
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert "recipe" not in to_toml(config)
    assert read_config(str(tmp_path / "config.toml")) == config


def test_the_even_split_of_cifar10_has_rates_of_its_own():
    config = make_config({"task": "cifar10", "method": "fedavg", "recipe": "paper", "partition": "iid"})
    assert (config.lr, config.objective) == (0.1, "plain")


def test_the_recommended_recipe_is_what_our_runs_support():
    config = make_config({"recipe": "recommended"})
    assert (config.lr, config.order, config.norm) == (0.1, "greedy", "post")
    assert config.method == {"name": "splitmix", "draws": "anchored"}
    assert config.server == {"name": "momentum", "beta": 0.5}
    assert config.statistics == "chosen"


def test_a_server_that_the_user_names_is_left_alone():
    assert make_config({"recipe": "recommended", "server": "momentum"}).server == "momentum"


@pytest.mark.parametrize("task", ["domainnet", "office-caltech10", "pacs"])
def test_the_recommended_recipe_has_a_lower_rate_for_photographs_and_drawings(task):
    assert make_config({"recipe": "recommended", "task": task}).lr == 0.01


@pytest.mark.parametrize("kept", [{"norm": "batch"}, {"privacy": {"clip": 1.0}, "order": "natural"}])
def test_the_recommended_recipe_chooses_no_statistics_where_there_is_no_choice(kept):
    config = make_config({"recipe": "recommended"} | kept)
    assert config.statistics == "client"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("splitmix", {"name": "splitmix", "draws": "anchored"}),
        ({"name": "splitmix", "mutual": 0.2}, {"name": "splitmix", "draws": "anchored", "mutual": 0.2}),
        ("fedavg", "fedavg"),
        ({"name": "heterofl"}, {"name": "heterofl"}),
    ],
)
def test_a_recipe_fills_in_the_method_that_is_named_and_no_other(method, expected):
    assert make_config({"recipe": "recommended", "method": method}).method == expected


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("adversarial", {"name": "adversarial", "attack": "pgd7-strong"}),
        ({"name": "adversarial", "weight": 0.7}, {"name": "adversarial", "weight": 0.7, "attack": "pgd7-strong"}),
        ({"name": "adversarial", "steps": 4}, {"name": "adversarial", "steps": 4}),
        ({"name": "adversarial", "attack": "pgd2"}, {"name": "adversarial", "attack": "pgd2"}),
        ("oat", "oat"),
    ],
)
def test_against_attacks_the_recommended_recipe_averages_late_rounds_and_leaves_an_attack_to_who_names_one(
    objective, expected
):
    config = make_config({"recipe": "recommended", "objective": objective})
    assert config.objective == expected
    assert (config.floor, config.average) == (0.5, 0.4)


@pytest.mark.parametrize(("epochs", "rate"), [(None, 30.0), (4, 7.5), (100, 1.0)])
def test_against_attacks_norms_learn_the_faster_the_fewer_epochs_a_round_has(epochs, rate):
    given = {"recipe": "recommended", "objective": "adversarial"} | ({"epochs": epochs} if epochs else {})
    assert make_config(given).norm_rate == rate


def test_an_unknown_recipe_is_told_with_all_other_mistakes():
    with pytest.raises(UserError, match=r"rounds: .*unknown recipe 'papr'; did you mean 'paper'\?"):
        make_config({"recipe": "papr", "rounds": 0})
    assert set(RECIPES) == {"paper", "recommended"}
