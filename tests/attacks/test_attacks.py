"""Attacks: balls and boxes, worst cases known by hand, stacked against looped, names and mistakes."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.attacked import rng, toy_batch, toy_net
from helpers.toys import ATOM, LAYOUT, Tiny, bases
from splitmix.attacks import ATTACKS, find_attack
from splitmix.attacks.pgd import PGD, losses
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import cut

STRONG = PGD(eps=0.1, steps=3, step=0.05)


def weigh(*weights):
    """A net of two classes on images of two pixels: class 1 has the logit weights * x, class 0 has 0."""
    w = tensor(weights, dtype=torch.float64)
    return lambda x: torch.stack([0 * x.sum((1, 2, 3)), (x.flatten(1) * w).sum(1)], 1)


def pixels(*values):
    return tensor(values, dtype=torch.float64).view(1, 1, 1, -1)


def stacked_net(count=3):
    """The net, and some bases of it in float64 with tracked statistics."""
    net = Net(Tiny)
    weights = cut(net, LAYOUT, net.init(LAYOUT, seed=0, tracked=True), bases(*range(count)))
    return net, {name: value.double() for name, value in weights.items()}


# Attacks


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_with_eps_0_is_the_identity(name):
    x, y = toy_batch()
    assert_close(find_attack({"name": name, "eps": 0})(toy_net(), x, y, rng()), x, atol=0, rtol=0)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    eps=st.floats(0.001, 3.0),
    step=st.floats(0.001, 3.0),
    steps=st.integers(1, 4),
    norm=st.sampled_from(["linf", "l2"]),
    restarts=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_adversarial_images_stay_in_the_ball_and_the_box(eps, step, steps, norm, restarts, seed):
    x, y = toy_batch(5)
    x = (2 * x - 0.5).clamp(0, 1)  # some pixels are black, some white
    adversarial = PGD(eps=eps, steps=steps, step=step, norm=norm, restarts=restarts)(toy_net(), x, y, rng(seed))
    distance = torch.linalg.vector_norm((adversarial - x).flatten(1), ord={"linf": torch.inf, "l2": 2}[norm], dim=1)
    assert (distance <= eps * (1 + 1e-5) + 1e-6).all()
    assert ((adversarial >= 0) & (adversarial <= 1)).all()


def test_fgsm_goes_by_the_sign_of_the_gradient():
    made = find_attack({"name": "fgsm", "eps": 0.1})(weigh(3.0, -4.0, 2.0), pixels(0.5, 0.5, 0.95), tensor([0]), rng())
    assert_close(made, pixels(0.6, 0.4, 1.0))  # class 1 gains; the last pixel meets the box


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize(("label", "worst"), [(0, (0.7, 0.3, 1.0)), (1, (0.3, 0.7, 0.7))])
def test_linf_pgd_finds_the_worst_case_of_a_linear_net(start, label, worst):
    attack = PGD(eps=0.2, steps=10, step=0.05, random_start=start)
    made = attack(weigh(3.0, -4.0, 2.0), pixels(0.5, 0.5, 0.9), tensor([label]), rng())
    assert_close(made, pixels(*worst))


@pytest.mark.slow
@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize(
    ("x", "worst"),
    [
        ((0.4, 0.5), (0.4 + 0.3, 0.5 + 0.4)),  # eps along (3, 4) / 5
        ((0.4, 0.9), (0.4 + 0.24**0.5, 1.0)),  # the second pixel is stopped after 0.1: 0.5^2 - 0.1^2 is left
        ((0.9, 0.9), (1.0, 1.0)),  # the corner is nearer than eps
    ],
)
def test_l2_pgd_finds_the_worst_case_of_a_linear_net(start, x, worst):
    attack = PGD(eps=0.5, steps=300, step=0.1, norm="l2", random_start=start)
    assert_close(attack(weigh(3.0, 4.0), pixels(*x), tensor([0]), rng()), pixels(*worst), atol=1e-6, rtol=0)


def test_a_random_start_fills_the_ball():
    x, y = torch.full((400, 1, 1, 2), 0.5), torch.zeros(400, dtype=torch.int64)
    for norm, mean in (("linf", 0.2), ("l2", 0.4 * 2 / 3)):  # of the distance of a pixel; of the point
        made = PGD(eps=0.4, steps=1, step=1e-9, norm=norm)(lambda x: x.flatten(1), x, y, rng()) - x
        found = made.abs().mean() if norm == "linf" else made.flatten(1).norm(dim=1).mean()
        assert found.item() == pytest.approx(mean, rel=0.1)


def accuracy_and_loss(attack):
    x, y = toy_batch()
    logits = toy_net()(attack(toy_net(), x, y, rng()))
    return (logits.argmax(1) == y).float().mean().item(), F.cross_entropy(logits, y).item()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_more_steps_never_help_the_defender(norm):
    attack = PGD(eps=0.15 if norm == "linf" else 0.8, step=0.02 if norm == "linf" else 0.1, norm=norm)
    found = [accuracy_and_loss(replace(attack, steps=steps)) for steps in (1, 3, 7, 20)]
    accuracies, losses = zip(*found, strict=True)
    assert list(accuracies) == sorted(accuracies, reverse=True)
    assert list(losses) == sorted(losses)
    assert accuracies[0] > accuracies[-1]


def test_more_restarts_never_help_the_defender():
    x, y = toy_batch()
    attack = PGD(eps=0.2, steps=2, step=0.1)
    few, more, many = (
        toy_net()(replace(attack, restarts=restarts)(toy_net(), x, y, rng())).argmax(1) == y for restarts in (2, 3, 6)
    )
    assert not (more & ~few).any()
    assert not (many & ~more).any()
    assert few.sum() > many.sum()


def test_of_walks_that_turn_no_answer_the_worst_is_kept():
    x, y = toy_batch()
    attack, net = replace(STRONG, eps=0.02, step=0.01), toy_net()
    few, more = (net(replace(attack, restarts=restarts)(net, x, y, rng())) for restarts in (2, 5))
    held = more.argmax(1) == y
    assert held.any()
    assert (losses(more, y) >= losses(few, y))[held].all()
    assert (losses(few, y) > losses(net(x), y))[held].all()


def test_a_net_that_is_wrong_without_an_attack_stays_wrong_under_a_strong_one():
    x, _ = toy_batch()
    wrong = (toy_net()(x).argmax(1) + 1) % 3
    made = PGD(restarts=2)(toy_net(), x, wrong, rng())
    assert (toy_net()(made).argmax(1) != wrong).all()


def test_a_large_eps_leaves_nothing():
    accuracy, _ = accuracy_and_loss(PGD(eps=1.0, steps=20, step=0.1))
    assert accuracy == 0


@pytest.mark.parametrize(
    "attack",
    [STRONG, replace(STRONG, restarts=2), PGD(eps=0.5, steps=3, step=0.2, norm="l2", random_start=False)],
    ids=lambda attack: attack.name,
)
def test_stacked_bases_are_attacked_as_looped_bases_are(attack):
    net, weights = stacked_net()
    x, y = (value.double() if value.is_floating_point() else value for value in toy_batch(6))
    stacked = attack(lambda images: net.run(ATOM, weights, images), x, y, rng())
    assert stacked.shape == (3, *x.shape)
    looped = Net(Tiny, stacked=False)
    assert_close(attack(lambda images: looped.run(ATOM, weights, images), x, y, rng()), stacked, atol=1e-9, rtol=0)
    if attack.restarts == 1:  # several restarts of all bases draw in another order
        source = rng()
        for base in range(3):
            one = {name: value[base : base + 1] for name, value in weights.items()}
            alone = attack(lambda images, one=one: net.run(ATOM, one, images)[0], x, y, source)
            assert_close(alone, stacked[base], atol=1e-9, rtol=0)


def test_bases_may_start_from_images_of_their_own():
    net, weights = stacked_net(2)
    x, y = toy_batch(4)
    own = torch.stack([x, 1 - x]).double()
    quiet = replace(STRONG, random_start=False)
    made = quiet(lambda images: net.run(ATOM, weights, images), own, y, rng())
    assert (made - own).abs().max().item() == pytest.approx(0.1)
    second = {name: value[1:] for name, value in weights.items()}
    assert_close(made[1], quiet(lambda images: net.run(ATOM, second, images)[0], own[1], y, rng()))


def test_an_attack_leaves_no_gradient():
    net = toy_net()
    made = STRONG(net, *toy_batch(), rng())
    assert [parameter.grad for parameter in net.parameters()] == [None] * 4
    assert not made.requires_grad
    assert all(parameter.requires_grad for parameter in net.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_attack_works_where_gradients_are_off(mode):
    x, y = toy_batch()
    with mode():
        made = STRONG(toy_net(), x, y, rng())
    assert_close(made, STRONG(toy_net(), x, y, rng()))


def test_the_same_rng_gives_the_same_images():
    x, y = toy_batch()
    first, again, other = (STRONG(toy_net(), x, y, rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_our_pgd_walks_where_foolbox_walks(norm):
    foolbox = pytest.importorskip("foolbox")
    x, y = (value.double() if value.is_floating_point() else value for value in toy_batch())
    x = 0.3 + 0.4 * x  # away from the box, where both project alike
    attack = PGD(eps=0.1, steps=9, step=0.03, norm=norm, random_start=False)
    theirs = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]
    net = deepcopy(toy_net()).double().eval()
    _, expected, _ = theirs(abs_stepsize=0.03, steps=9, random_start=False)(
        foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu"), x, y, epsilons=0.1
    )
    assert_close(attack(net, x, y, rng()), expected, atol=1e-9, rtol=0)


# Names and mistakes


def test_an_attack_says_its_full_name():
    assert {name: find_attack(name).name for name in ATTACKS} == {
        "fgsm": "L-inf FGSM, eps 8/255",
        "l2-fgsm": "L2 FGSM, eps 128/255",
        "autoattack": "AutoAttack (standard ensemble), L-inf, eps 8/255",
        "l2-autoattack": "AutoAttack (standard ensemble), L2, eps 128/255",
        "pgd2": "L-inf PGD, eps 8/255, 2 steps of 8/255, random start, 1 restart",
        "pgd7": "L-inf PGD, eps 8/255, 7 steps of 2/255, random start, 1 restart",
        "pgd7-strong": "L-inf PGD, eps 9/255, 7 steps of 2.25/255, random start, 1 restart",
        "pgd7-released": "L-inf PGD, eps 8/255, 7 steps of 1.429/255, random start, 1 restart",
        "pgd20": "L-inf PGD, eps 8/255, 20 steps of 2/255, random start, 5 restarts",
        "l2-pgd20": "L2 PGD, eps 128/255, 20 steps of 16/255, random start, 5 restarts",
    }


def test_few_steps_and_single_starts_are_weak():
    weak = [name for name in ATTACKS if find_attack(name).weak]
    assert weak == ["fgsm", "pgd2", "pgd7", "pgd7-strong", "pgd7-released", "l2-fgsm"]
    assert PGD(steps=100).weak  # a single start
    assert find_attack({"name": "pgd20", "eps": 0.1}).weak  # 20 steps of 2/255 do not cross it


def test_the_released_step_follows_its_rule():
    eps = 8 / 255
    assert find_attack("pgd7-released").step == pytest.approx(min(1.25 * eps, eps + 4 / 255) / 7)


def test_settings_may_be_given_with_the_name():
    assert find_attack({"name": "pgd7", "eps": "4/255", "step": "1/255", "steps": 9}) == PGD(4 / 255, 9, 1 / 255)
    assert find_attack({"name": "fgsm", "eps": "4/255"}).name == "L-inf FGSM, eps 4/255"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("pgd", "unknown attack 'pgd'; did you mean 'pgd7'?"),
        ({"eps": 0.1}, "an attack needs a name"),
        ({"name": "pgd7", "eps": "eight"}, "eps 'eight' is not a distance"),
        ({"name": "pgd7", "eps": -0.1}, "eps -0.1 is not a distance"),
        ({"name": "pgd7", "eps": float("nan")}, "eps nan is not a distance"),
        ({"name": "pgd7", "eps": "1/0"}, "eps '1/0' is not a distance"),
        ({"name": "pgd7", "step": float("inf")}, "step inf leads nowhere"),
        ({"name": "pgd7", "step": 0}, "step 0.0 leads nowhere"),
        ({"name": "pgd7", "steps": 0}, "steps=0 makes no attack"),
        ({"name": "pgd7", "steps": 2.5}, "steps=2.5 makes no attack"),
        ({"name": "pgd7", "restarts": 0}, "restarts=0 makes no attack"),
        ({"name": "pgd20", "random_start": False}, "5 restarts at the same point are one"),
        ({"name": "pgd7", "norm": "inf"}, "unknown norm 'inf'; did you mean 'linf'?"),
        ({"name": "autoattack", "norm": "l3"}, "unknown norm 'l3'; Known: l2, linf"),
        ({"name": "autoattack", "eps": -1}, "eps -1.0 is not a distance"),
        ({"name": "fgsm", "steps": 3}, "unknown setting of attack fgsm 'steps'"),
    ],
)
def test_a_wrong_attack_is_refused_in_one_sentence(value, sentence):
    with pytest.raises(UserError) as error:
        find_attack(value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_labels_that_the_net_does_not_know_are_refused(label, eps):
    x, _ = toy_batch(3)
    with pytest.raises(UserError, match=r"do not fit a net of 3 classes; give labels from 0 to 2"):
        PGD(eps=eps)(toy_net(), x, tensor([0, label, 1]), rng())


@pytest.mark.parametrize("value", [-0.5, 1.5, float("nan")])
def test_images_outside_the_box_are_refused(value):
    x, y = toy_batch(3)
    x[1, 0, 2, 2] = value
    with pytest.raises(UserError, match="needs images in"):
        STRONG(toy_net(), x, y, rng())
