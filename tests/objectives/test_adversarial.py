"""Adversarial training and once-for-all adversarial training (OAT): which pass moves what, and their settings."""

import pytest
import torch
from torch.testing import assert_close

from helpers.film_net import FilmTiny, with_film
from helpers.toys import ATOM, FULL, HALF, LAYOUT, PLAN, Exact, Tiny, ToyClients, bases, to_bytes, toy_split
from splitmix.attacks.pgd import PGD
from splitmix.core.batches import ClientData
from splitmix.core.client import train_client
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.objective import Objective, withstood
from splitmix.core.parts import cut
from splitmix.core.types import Layout, Part, Plan, Train
from splitmix.objectives.adversarial import Adversarial, OnceForAll, drawn_dials
from splitmix.objectives.losses import DrawnWidth, Masked, Plain, cross_entropy

DATA = ToyClients().data(0)
ONE_STEP = Plan(lr=0.1, batch=len(DATA.train), momentum=0.0, weight_decay=0.0)
ATTACK = PGD(eps=0.1, steps=3, step=0.05)
QUIET = PGD(eps=0.1, steps=3, step=0.05, random_start=False)
PARTS = bases(0, 1, 2)
STATISTICS = ("running_mean", "running_var")
X, Y = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def dual(width):
    """The tiny net with two norms behind each layer but the last."""
    return Tiny(width, dual=True)


class Spy:
    """An attack that keeps what it was given and what it made."""

    name, weak = "spy", True

    def __init__(self, attack=ATTACK):
        self.attack, self.given, self.made = attack, [], []

    def __call__(self, predict, x, y, rng):
        self.given.append(x)
        self.made.append(self.attack(predict, x, y, rng))
        return self.made[-1]


class Calls:
    """A forward that keeps how it was called; its logits depend on nothing but the images."""

    widths = (ATOM,)

    def __init__(self):
        self.seen = []

    def __call__(self, x, robust=0.0, *, training=True, only=None):
        self.seen.append((robust, training))
        return [(x.flatten(-3) @ torch.eye(36, 3, dtype=x.dtype)).expand(2, -1, -1)]

    def fixed(self, place, robust=0.0):
        return lambda images: self(images, robust, training=False, only=[place])[0]


def train(objective, parts=PARTS, *, build=dual, stacked=True, plan=PLAN, layout=LAYOUT, tracked=True):
    """Weights before and after local training in float64."""
    net = Net(build, stacked=stacked)
    start = cut(net, layout, with_film(net, layout, tracked=tracked), parts)
    job = Train(0, 0, tuple(parts), plan, seed=1)
    return start, train_client(job, net, start, DATA, Exact(objective), {}).weights


def statistics(weights, branch):
    return {name: value for name, value in weights.items() if branch in name and name.endswith(STATISTICS)}


def after_batches(net, width, weights, batches, robust):
    """The running statistics after training passes over some batches."""
    weights = {name: value.clone() for name, value in weights.items()}
    for x in batches:
        net.run(width, weights, x, robust, training=True)
    return weights


BOTH = [
    (Adversarial, dual, {}),
    (Adversarial, dual, {"loss": "masked"}),
    (OnceForAll, FilmTiny, {}),
]


BETWEEN = (Adversarial, dual, {"dials": "drawn"})
EACH = [*((*each, tracked) for each in BOTH for tracked in (True, False)), (*BETWEEN, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "build", "settings", "tracked"), EACH)
def test_stacked_bases_learn_what_looped_bases_learn(kind, build, settings, tracked):
    (_, stacked), (_, looped) = (
        train(kind(ATTACK, **settings), build=build, stacked=stacked, tracked=tracked) for stacked in (True, False)
    )
    assert_close(stacked, looped, atol=1e-9, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "build", "settings"), [*BOTH, BETWEEN])
def test_bases_trained_together_learn_what_each_learns_alone(kind, build, settings):
    _, together = train(kind(QUIET, **settings), build=build)
    for base in range(3):
        _, alone = train(kind(QUIET, **settings), bases(base), build=build)
        assert_close({n: v[base] for n, v in together.items()}, {n: v[0] for n, v in alone.items()}, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", [Adversarial, OnceForAll])
def test_an_unknown_loss_is_refused(kind):
    with pytest.raises(UserError, match="unknown loss 'mask'; did you mean 'masked'"):
        kind(loss="mask")


# --- adversarial training


def test_each_base_has_images_of_its_own():
    spy = Spy()
    train(Adversarial(spy), plan=ONE_STEP)
    (made,), (x,) = spy.made, spy.given
    assert made.shape == (3, *x.shape)
    assert ((made - x).abs() > 0).any()
    assert not torch.equal(made[0] - x > 0, made[1] - x > 0)


@pytest.mark.parametrize(("loss", "plain"), [("plain", Plain()), ("masked", Masked())])
def test_weight_0_is_plain_training(loss, plain):
    _, adversarial = train(Adversarial(ATTACK, weight=0, loss=loss))
    _, expected = train(plain)
    assert to_bytes(adversarial) == to_bytes(expected)


def test_weight_1_sees_no_clean_images():
    start, end = train(Adversarial(ATTACK, weight=1), plan=ONE_STEP)
    clean = [name for name in start if ".clean." in name]
    assert to_bytes({n: end[n] for n in clean}) == to_bytes({n: start[n] for n in clean})
    assert all(not torch.equal(end[name], start[name]) for name in start if ".noisy." in name)


def test_the_loss_is_weighed():
    clean, adversarial, mixed = (
        train(Adversarial(ATTACK, weight=weight), plan=ONE_STEP) for weight in (0.0, 1.0, 0.25)
    )
    start, name = clean[0]["fc1.weight"], "fc1.weight"
    assert_close(mixed[1][name] - start, 0.75 * (clean[1][name] - start) + 0.25 * (adversarial[1][name] - start))


def test_clean_statistics_move_by_the_clean_pass_alone():
    start, end = train(Adversarial(ATTACK), plan=ONE_STEP)
    _, plain = train(Plain(), plan=ONE_STEP)
    assert to_bytes(statistics(end, ".clean.")) == to_bytes(statistics(plain, ".clean."))
    assert to_bytes(statistics(plain, ".noisy.")) == to_bytes(statistics(start, ".noisy."))


def test_noisy_statistics_move_by_the_adversarial_pass_alone():
    spy = Spy()
    start, end = train(Adversarial(spy), plan=ONE_STEP)
    expected = after_batches(Net(dual), ATOM, start, spy.made, robust=1.0)
    assert_close(statistics(end, ".noisy."), statistics(expected, ".noisy."))
    assert statistics(end, ".noisy.").keys() == {f"norm{i}.noisy.{s}" for i in (1, 2) for s in STATISTICS}


def test_the_attack_sees_the_noisy_norms_in_eval_mode():
    forward = Calls()
    Adversarial(ATTACK)(forward, X, Y, torch.Generator())
    assert forward.seen == [(0.0, True), *[(1.0, False)] * (1 + ATTACK.steps), (1.0, True)]


@pytest.mark.parametrize("build", [Tiny, dual])
def test_on_single_norms_both_batches_go_through_the_same_one_after_the_other(build):
    spy = Spy()
    start, end = train(Adversarial(spy, dual=False), build=build, plan=ONE_STEP)
    expected = after_batches(Net(build), ATOM, start, [*spy.given, *spy.made], robust=0.0)
    assert_close(statistics(end, ".clean."), statistics(expected, ".clean."))
    assert to_bytes(statistics(end, ".noisy.")) == to_bytes(statistics(start, ".noisy."))


def test_each_width_of_a_job_is_attacked_by_itself():
    spy, layout = Spy(), Layout(1, FULL)
    parts = (Part(0, ATOM), Part(0, HALF), Part(0, FULL))
    start, end = train(Adversarial(spy), parts, layout=layout, plan=ONE_STEP)
    assert [tuple(made.shape[:2]) for made in spy.made] == [(1, len(DATA.train))] * 3
    assert not torch.equal(spy.made[0], spy.made[2])
    assert all(not torch.equal(end[name], start[name]) for name in start)


def test_a_width_drawn_for_the_batch_is_attacked_alone():
    spy, layout = Spy(), Layout(1, FULL)
    train(DrawnWidth(Adversarial(spy)), (Part(0, HALF), Part(0, FULL)), layout=layout, plan=ONE_STEP)
    assert len(spy.made) == 1


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_outside_0_and_1_is_refused(weight):
    with pytest.raises(UserError, match=r"is outside \[0, 1\]"):
        Adversarial(weight=weight)


def test_of_two_drawn_dials_clean_images_are_seen_at_the_lower_and_attacked_ones_at_the_higher():
    for seed in range(20):
        forward = Calls()
        Adversarial(ATTACK, dials="drawn")(forward, X, Y, torch.Generator().manual_seed(seed))
        (low, learning), *attack, (high, also_learning) = forward.seen
        assert (learning, {*attack}, also_learning, low <= high) == (True, {(high, False)}, True, True)


def test_every_other_dial_is_drawn_at_an_end():
    drawn = [dial for seed in range(1000) for dial in drawn_dials(torch.Generator().manual_seed(seed))]
    assert all(400 <= drawn.count(end) <= 600 for end in (0.0, 1.0))  # 19 is a standard deviation


def test_drawn_dials_train_both_norms():
    start, end = train(Adversarial(ATTACK, dials="drawn"))
    assert all(not torch.equal(start[name], end[name]) for name in start if not name.endswith(STATISTICS))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"dials": "drwn"}, "did you mean 'drawn'"),
        ({"dials": 3}, "3"),
        ({"dials": "drawn", "dual": False}, "two norms"),
    ],
)
def test_dials_that_cannot_be_are_refused_in_one_sentence(settings, told):
    with pytest.raises(UserError, match=told) as error:
        Adversarial(ATTACK, **settings)
    assert "\n" not in str(error.value)


# --- adversarial training on single norms, a model for each weight (FedAvg+AT)


def test_on_single_norms_weight_0_is_plain_training_and_makes_no_attack():
    spy = Spy()
    _, adversarial = train(Adversarial(spy, weight=0.0, dual=False), build=Tiny)
    _, plain = train(Plain(), build=Tiny)
    assert to_bytes(adversarial) == to_bytes(plain)
    assert spy.given == []


def test_on_single_norms_weight_1_never_trains_on_clean_images():
    forward = Calls()
    Adversarial(ATTACK, weight=1.0, dual=False)(forward, X, Y, torch.Generator())
    assert forward.seen == [*[(0.0, False)] * (1 + ATTACK.steps), (0.0, True)]


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.2, 0.3, 0.5, 1.0])  # the paper's, a model for each
def test_on_single_norms_a_step_is_the_weighed_mean_of_a_clean_and_an_adversarial_one(weight):
    clean, adversarial, mixed = (
        train(Adversarial(QUIET, weight=w, dual=False), build=Tiny, plan=ONE_STEP, tracked=False)
        for w in (0.0, 1.0, weight)
    )
    for name in Net(Tiny).parameter_names(ATOM):
        start = clean[0][name]
        expected = (1 - weight) * (clean[1][name] - start) + weight * (adversarial[1][name] - start)
        assert_close(mixed[1][name] - start, expected, atol=1e-12, rtol=1e-9)


# --- once for all


@pytest.mark.parametrize("drawn", [0.0, 0.3, 1.0])
def test_one_lambda_is_adversarial_training_of_that_weight_on_the_net_at_that_dial(drawn):
    forward = Calls()
    OnceForAll(ATTACK, lambdas=(drawn,))(forward, X, Y, torch.Generator())
    attack = [(drawn, False)] * (1 + ATTACK.steps)
    clean, adversarial = [(drawn, True)], [*attack, (drawn, True)]
    assert forward.seen == {0.0: clean, 0.3: clean + adversarial, 1.0: adversarial}[drawn]


def test_the_losses_are_weighed_by_the_lambda_that_was_drawn():
    x, y, net = *DATA.train.batch(torch.arange(8)), Net(FilmTiny)
    weights = with_film(net, LAYOUT, tracked=False)  # no statistics that the clean pass could move before the attack

    def forward(x, robust=0.0, *, training=True, only=None):
        return [net.run(ATOM, weights, x, robust, training=training)]

    forward.widths = [ATOM]
    forward.fixed = lambda place, robust=0.0: net.fixed(ATOM, weights, robust)
    loss = OnceForAll(QUIET, lambdas=(0.4,))(forward, x.double(), y, torch.Generator())
    made = QUIET(lambda images: forward(images, 0.4, training=False)[0], x.double(), y, torch.Generator())
    clean, adversarial = (cross_entropy(forward(i, 0.4)[0], y) for i in (x.double(), made))
    assert_close(loss, 0.6 * clean + 0.4 * adversarial)


@pytest.mark.slow
def test_each_batch_draws_a_lambda_from_the_clients_own_rng():
    def draws(seed):
        forward, rng = Calls(), torch.Generator().manual_seed(seed)
        for _ in range(200):
            OnceForAll(PGD(eps=0.0), lambdas=(0.0, 0.2, 0.2, 1.0))(forward, X, Y, rng)
        return [robust for robust, training in forward.seen if training]

    assert draws(1) == draws(1) != draws(2)
    assert set(draws(1)) == {0.0, 0.2, 1.0}
    assert 60 <= draws(1).count(0.2) / 2 <= 140  # listed twice: half of the batches, two passes each


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_norms_that_the_first_batch_does_not_reach_are_trained_by_later_ones(momentum):
    class InTurn(Objective):
        drawn = 1.0

        def __call__(self, forward, x, y, rng):
            self.drawn = 1.0 - self.drawn
            return OnceForAll(ATTACK, lambdas=(self.drawn,))(forward, x, y, rng)

    start, end = train(InTurn(), build=FilmTiny, plan=Plan(lr=0.1, batch=4, momentum=momentum))
    assert all(not torch.equal(start[name], end[name]) for name in start)


def test_every_width_of_a_job_is_trained_at_the_same_dial():
    layout, parts = Layout(1, FULL), (Part(0, HALF), Part(0, FULL))
    start, end = train(OnceForAll(ATTACK, lambdas=(0.3,)), parts, build=FilmTiny, layout=layout, plan=ONE_STEP)
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert {name for name in start if ".noisy." in name} <= moved
    assert not {name for name in start if ".clean." in name} & moved


@pytest.mark.slow
def test_one_net_learns_to_be_accurate_and_to_be_robust():
    net, attack, whole = Net(FilmTiny), PGD(eps=0.2, steps=5, step=0.08), Part(0, FULL)
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


@pytest.mark.parametrize("lambdas", [(), "0.5", 0.5, None, (0.0, 1.1), (-0.1,), (float("nan"),), ("high",), (None,)])
def test_lambdas_that_are_no_dials_are_refused_in_one_sentence(lambdas):
    with pytest.raises(UserError, match="robustness dial") as error:
        OnceForAll(lambdas=lambdas)
    assert "\n" not in str(error.value)
