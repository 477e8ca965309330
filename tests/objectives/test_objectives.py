"""Objectives by name: their settings, the nets that they need, the norms that they allow, and what they cannot do."""

import pytest
from torch import nn

from helpers.small_task import SETTINGS, small_task
from helpers.toys import Tiny, plain_build
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.objective import Trial
from splitmix.core.width import Width
from splitmix.methods import METHODS
from splitmix.objectives import OBJECTIVES, find_objective
from splitmix.objectives.adversarial import Adversarial
from splitmix.objectives.losses import DrawnWidth, Plain
from splitmix.runs.config import make_config, read_config
from splitmix.runs.setup import set_up


def setup_of(build=None, **changed):
    config = make_config({**SETTINGS, "task": "stripes", **changed}, own=["task"])
    return set_up(config, task=small_task(), build=build)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_found_by_its_name(name):
    objective = find_objective(name)
    assert callable(objective)
    assert sum(trial.share for trial in objective.trials) == pytest.approx(1)
    assert set(objective.needs) <= {"dual", "film"}


def test_settings_of_the_attack_stand_beside_those_of_the_objective():
    value = {"name": "adversarial", "weight": 0.3, "dual": False, "loss": "masked", "eps": "4/255", "steps": 3}
    assert find_objective(value) == Adversarial(PGD(4 / 255, 3), 0.3, "masked", dual=False)
    assert find_objective({"name": "adversarial", "attack": "fgsm"}).attack.name == "L-inf FGSM, eps 8/255"
    assert find_objective({"name": "adversarial", "attack": "pgd2"}) == Adversarial(PGD(steps=2, step=8 / 255))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("adversariel", "unknown objective 'adversariel'; did you mean 'adversarial'?"),
        ({"weight": 0.5}, "an objective needs a name"),
        ({"name": "plain", "weight": 0.5}, "unknown setting of objective plain 'weight'"),
        ({"name": "adversarial", "weigth": 0.5}, "did you mean 'weight'?"),
        ({"name": "adversarial", "restart": 5}, "did you mean 'restarts'?"),
        ({"name": "adversarial", "attack": "pgd77"}, "unknown attack 'pgd77'; did you mean 'pgd7'?"),
        ({"name": "adversarial", "attack": "fgsm", "steps": 3}, "unknown setting of attack fgsm 'steps'"),
        ({"name": "adversarial", "eps": -1}, "eps -1.0 is not a distance"),
        ({"name": "adversarial", "weight": 2}, "adversarial weight 2 is outside [0, 1]"),
        ({"name": "adversarial", "weight": "much"}, "adversarial weight much is outside [0, 1]"),
        ({"name": "adversarial", "dual": 3}, "dual=3 is neither true nor false"),
        ({"name": "adversarial", "loss": []}, "unknown loss '[]'"),
        ({"name": "adversarial", "weight": 1}, "with weight 1 one of the two norms is never trained"),
        ({"name": "adversarial", "weight": 0}, "or dual=false for single norms"),
    ],
)
def test_a_wrong_objective_is_one_sentence(value, sentence):
    with pytest.raises(UserError) as caught:
        make_config({"objective": value})
    assert str(caught.value).startswith("objective: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_net_has_dual_norms_only_where_the_objective_needs_them():
    def noisy(objective):
        setup = setup_of(objective=objective)
        return any(".noisy." in name for name in setup.net.shapes(Width(1, 4))), setup.dial

    assert noisy("adversarial") == (True, True)
    assert noisy("plain") == (False, False)
    assert noisy({"name": "adversarial", "dual": False}) == (False, False)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_against_attacks(method):
    setup = setup_of(objective={"name": "adversarial", "steps": 1}, method=method, net="helpers.toys:Tiny")
    wrapped = isinstance(setup.objective, DrawnWidth)
    assert isinstance(setup.objective.given if wrapped else setup.objective, Adversarial)
    assert setup.trials[1].robust == 1


def test_without_a_say_of_the_user_norms_are_tracked():
    assert make_config({"objective": "adversarial"}).norm == "tracked"
    assert make_config({"objective": {"name": "adversarial", "dual": False}}).norm == "tracked"
    assert make_config({"objective": "adversarial", "norm": "local"}).norm == "local"
    assert make_config({"objective": "masked"}).norm == "post"


@pytest.mark.parametrize(("recipe", "norm", "rate"), [("paper", "tracked", 1.0), ("recommended", "post", 30.0)])
def test_recipes_know_adversarial_training(recipe, norm, rate):
    config = read_config("digits", ["objective=adversarial", f"recipe={recipe}"])
    assert (config.norm, config.norm_rate, config.lr, config.rounds) == (norm, rate, 0.1, 300)


def test_the_authors_do_not_rescale_against_attacks_on_photographs():
    config = read_config("cifar10", ["objective=adversarial", "recipe=paper", "partition=iid"])
    assert (config.lr, config.milestones, config.rescale_init, config.rescale_layers) == (0.1, [200, 300], False, False)


def test_a_dial_needs_fixed_statistics():
    with pytest.raises(UserError, match="norm 'batch' keeps no statistics of attacked images"):
        setup_of(objective="adversarial", norm="batch")
    assert setup_of(objective={"name": "adversarial", "dual": False}, norm="batch")


def test_noisy_norms_are_calibrated_by_the_attack_that_they_were_trained_by():
    setup = setup_of(objective={"name": "adversarial", "steps": 3}, norm="post")
    assert setup.question("test", "client").noise == PGD(steps=3)
    assert setup.question("test").noise is None
    assert setup_of(objective={"name": "adversarial", "dual": False}, norm="post").noise is None


def test_a_users_own_net_may_have_a_dial():
    assert setup_of(Tiny, objective="adversarial").dial
    assert setup_of(plain_build, objective="adversarial").dial
    with pytest.raises(UserError, match=r"takes no setting 'film'; write it as build\(width, \*, film=False\)"):
        setup_of(plain_build, objective="oat")
    assert not setup_of(plain_build, objective={"name": "adversarial", "dual": False}).dial


def test_a_net_whose_dial_does_not_work_is_one_sentence():
    def build(width, *, dual=False) -> nn.Module:
        return plain_build(width)  # takes images alone

    with pytest.raises(UserError, match="the net cannot take the images of"):
        setup_of(build, objective="adversarial")


def test_rounds_are_judged_as_they_are_trained():
    attack = PGD()
    assert Plain().trials == (Trial(),)
    assert Adversarial(attack, 0.25).trials == (Trial(0.75), Trial(0.25, 1.0, attack))
    assert Adversarial(attack, 0.25, dual=False).trials == (Trial(0.75), Trial(0.25, 0.0, attack))
    assert Adversarial(attack, 1, dual=False).trials == (Trial(1, 0.0, attack),)
