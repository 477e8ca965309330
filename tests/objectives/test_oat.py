"""Once-for-all adversarial training: the draw of lambda and its losses; and its rival, a model for each lambda."""

import pytest
import torch
from torch.testing import assert_close

from helpers.conditioned_net import DATA, Conditioned, disturbed
from helpers.toys import ATOM, FULL, HALF, LAYOUT, PLAN, Exact, Tiny, bases, to_bytes, toy_split
from splitmix.attacks.pgd import PGD
from splitmix.core.batches import ClientData
from splitmix.core.client import train_client
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.objective import Objective, withstood
from splitmix.core.parts import cut
from splitmix.core.types import Layout, Part, Plan, Train
from splitmix.objectives.adversarial import Adversarial
from splitmix.objectives.losses import Plain, cross_entropy
from splitmix.objectives.oat import OnceForAll

ONE_STEP = Plan(lr=0.1, batch=len(DATA.train), momentum=0.0, weight_decay=0.0)
ATTACK = PGD(eps=0.1, steps=3, step=0.05)
PARTS = bases(0, 1, 2)
WEIGHTS = [0.0, 0.1, 0.2, 0.3, 0.5, 1.0]  # lambda_n of the paper's FedAvg+AT, a model for each


class Spy:
    """An attack that counts how often it was asked."""

    name, weak = "spy", True

    def __init__(self):
        self.calls = 0

    def __call__(self, predict, x, y, rng):
        self.calls += 1
        return ATTACK(predict, x, y, rng)


class Calls:
    """A forward that keeps how it was called; its logits depend on nothing but the images."""

    widths = (ATOM,)

    def __init__(self):
        self.seen = []

    def __call__(self, x, robust=0.0, *, training=True, only=None):
        self.seen.append((robust, training))
        return [(x.flatten(-3) @ torch.eye(36, 3, dtype=x.dtype)).expand(2, -1, -1)]


def train(objective, parts=PARTS, *, net=None, plan=PLAN, layout=LAYOUT, tracked=True):
    """Weights before and after local training in float64."""
    net = net or Net(Conditioned)
    download = cut(net, layout, disturbed(net, layout, tracked=tracked), parts[-1:] if layout != LAYOUT else parts)
    job = Train(0, 0, tuple(parts), plan, seed=1)
    return download, train_client(job, net, download, DATA, Exact(objective), {}).weights


# --- the objective


def test_bases_attacked_and_trained_together_learn_what_looped_bases_learn():
    (_, stacked), (_, looped) = (
        train(OnceForAll(ATTACK), net=Net(Conditioned, stacked=stacked)) for stacked in (True, False)
    )
    assert_close(stacked, looped, atol=1e-9, rtol=0)


def test_bases_trained_together_learn_what_each_learns_alone():
    objective = OnceForAll(PGD(eps=0.1, steps=3, step=0.05, random_start=False))
    _, together = train(objective)
    for base in range(3):
        _, alone = train(objective, bases(base))
        assert_close({n: v[base] for n, v in together.items()}, {n: v[0] for n, v in alone.items()}, atol=1e-9, rtol=0)


@pytest.mark.parametrize("drawn", [0.0, 0.3, 1.0])
def test_one_lambda_is_adversarial_training_of_that_weight_on_the_net_at_that_dial(drawn):
    x, y = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])
    forward = Calls()
    OnceForAll(ATTACK, lambdas=(drawn,))(forward, x, y, torch.Generator())
    attack = [(drawn, False)] * (1 + ATTACK.steps)
    clean, adversarial = [(drawn, True)], [*attack, (drawn, True)]
    assert forward.seen == {0.0: clean, 0.3: clean + adversarial, 1.0: adversarial}[drawn]


def test_the_losses_are_weighed_by_the_lambda_that_was_drawn():
    x, y, net = *DATA.train.batch(torch.arange(8)), Net(Conditioned)
    weights = disturbed(net, LAYOUT, tracked=False)  # no statistics that the clean pass could move before the attack

    def forward(x, robust=0.0, *, training=True, only=None):
        return [net.run(ATOM, weights, x, robust, training=training)]

    forward.widths = [ATOM]
    attack = PGD(eps=0.1, steps=3, step=0.05, random_start=False)
    loss = OnceForAll(attack, lambdas=(0.4,))(forward, x.double(), y, torch.Generator())
    made = attack(lambda images: forward(images, 0.4, training=False)[0], x.double(), y, torch.Generator())
    clean, adversarial = (cross_entropy(forward(i, 0.4)[0], y) for i in (x.double(), made))
    assert_close(loss, 0.6 * clean + 0.4 * adversarial)


def test_each_batch_draws_a_lambda_from_the_clients_own_rng():
    def draws(seed):
        forward, rng = Calls(), torch.Generator().manual_seed(seed)
        for _ in range(200):
            OnceForAll(PGD(eps=0.0), lambdas=(0.0, 0.2, 0.2, 1.0))(
                forward, torch.rand(2, 1, 6, 6), torch.tensor([0, 1]), rng
            )
        return [robust for robust, training in forward.seen if training]

    assert draws(1) == draws(1) != draws(2)
    assert set(draws(1)) == {0.0, 0.2, 1.0}
    assert 60 <= draws(1).count(0.2) / 2 <= 140  # listed twice: half of the batches, two passes each


def test_the_attack_leaves_no_gradient_in_the_parameters():
    x, y, net = *DATA.train.batch(torch.arange(8)), Net(Conditioned)
    weights = net.init(LAYOUT, seed=0, tracked=True)
    leaves = {n: v.clone().requires_grad_(n in net.parameter_names(ATOM)) for n, v in weights.items()}
    before = to_bytes({name: leaf.detach() for name, leaf in leaves.items()})
    made = ATTACK(lambda images: net.run(ATOM, leaves, images, 0.3), x, y, torch.Generator())
    assert made.shape == (4, *x.shape)
    assert all(leaf.grad is None for leaf in leaves.values())
    assert to_bytes({name: leaf.detach() for name, leaf in leaves.items()}) == before


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_norms_that_the_first_batch_does_not_reach_are_trained_by_later_ones(momentum):
    class InTurn(Objective):
        drawn = 1.0

        def __call__(self, forward, x, y, rng):
            self.drawn = 1.0 - self.drawn
            return OnceForAll(ATTACK, lambdas=(self.drawn,))(forward, x, y, rng)

    start, end = train(InTurn(), plan=Plan(lr=0.1, batch=4, momentum=momentum))
    assert all(not torch.equal(start[name], end[name]) for name in start)


def test_every_width_of_a_job_is_trained_at_the_same_dial():
    layout, parts = Layout(1, FULL), (Part(0, HALF), Part(0, FULL))
    start, end = train(OnceForAll(ATTACK, lambdas=(0.3,)), parts, layout=layout, plan=ONE_STEP)
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert {name for name in start if ".noisy." in name} <= moved
    assert not {name for name in start if ".clean." in name} & moved


@pytest.mark.slow
def test_one_net_learns_to_be_accurate_and_to_be_robust():
    net, attack, whole = Net(Conditioned), PGD(eps=0.2, steps=5, step=0.08), Part(0, FULL)
    job = Train(0, 0, (whole,), Plan(lr=0.1, epochs=10, batch=16), seed=1)
    start, data = net.init(Layout(1, FULL), seed=0, tracked=True), ClientData(*[toy_split(240)] * 3)
    weights = train_client(job, net, start, data, OnceForAll(attack), {}).weights
    x, y = toy_split(120, seed=9).batch(torch.arange(120))

    def accuracies(robust):
        def predict(images):
            return net.run(FULL, weights, images, robust)[0]

        attacked = withstood(attack, predict, x, y, torch.Generator().manual_seed(0))
        return (predict(x).argmax(-1) == y).float().mean(), attacked.float().mean()

    (clean, fragile), (_, robust) = accuracies(0.0), accuracies(1.0)
    assert clean > 0.95
    assert robust > fragile + 0.15


def test_an_unknown_loss_is_refused():
    with pytest.raises(UserError, match="unknown loss 'mask'; did you mean 'masked'"):
        OnceForAll(loss="mask")


@pytest.mark.parametrize("lambdas", [(), "0.5", 0.5, None, (0.0, 1.1), (-0.1,), (float("nan"),), ("high",), (None,)])
def test_lambdas_that_are_no_dials_are_refused_in_one_sentence(lambdas):
    with pytest.raises(UserError, match="robustness dial") as error:
        OnceForAll(lambdas=lambdas)
    assert "\n" not in str(error.value)


# --- adversarial training on single norms, a model for each weight (FedAvg+AT)


def test_on_single_norms_weight_0_is_plain_training_and_makes_no_attack():
    spy = Spy()
    _, adversarial = train(Adversarial(spy, weight=0.0, dual=False), net=Net(Tiny))
    _, plain = train(Plain(), net=Net(Tiny))
    assert to_bytes(adversarial) == to_bytes(plain)
    assert spy.calls == 0


def test_on_single_norms_weight_1_never_trains_on_clean_images():
    forward = Calls()
    Adversarial(ATTACK, weight=1.0, dual=False)(
        forward, torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 0]), torch.Generator()
    )
    assert forward.seen == [*[(0.0, False)] * (1 + ATTACK.steps), (0.0, True)]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_on_single_norms_a_step_is_the_weighed_mean_of_a_clean_and_an_adversarial_one(weight):
    attack = PGD(eps=0.1, steps=3, step=0.05, random_start=False)
    clean, adversarial, mixed = (
        train(Adversarial(attack, weight=w, dual=False), net=Net(Tiny), plan=ONE_STEP, tracked=False)
        for w in (0.0, 1.0, weight)
    )
    for name in Net(Tiny).parameter_names(ATOM):
        start = clean[0][name]
        expected = (1 - weight) * (clean[1][name] - start) + weight * (adversarial[1][name] - start)
        assert_close(mixed[1][name] - start, expected, atol=1e-12, rtol=1e-9)
