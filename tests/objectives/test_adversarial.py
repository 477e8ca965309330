"""Adversarial training: stacked against looped, which pass moves which norms, and the edges of its settings."""

import pytest
import torch
from torch.testing import assert_close

from helpers.toys import ATOM, FULL, HALF, LAYOUT, PLAN, Exact, Tiny, ToyClients, bases, to_bytes
from splitmix.attacks.pgd import PGD
from splitmix.core.client import train_client
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.types import Layout, Part, Plan, Train
from splitmix.nets.layers import Norm, scaled
from splitmix.objectives.adversarial import Adversarial
from splitmix.objectives.losses import DrawnWidth, Masked, Plain

DATA = ToyClients().data(0)
ONE_STEP = Plan(lr=0.1, batch=len(DATA.train), momentum=0.0, weight_decay=0.0)
ATTACK = PGD(eps=0.1, steps=3, step=0.05)
PARTS = bases(0, 1, 2)
STATISTICS = ("running_mean", "running_var")


class Dual(Tiny):
    """The tiny net with two norms behind each layer but the last."""

    def __init__(self, width):
        super().__init__(width)
        channels = scaled(8, width)
        self.norm1, self.norm2 = Norm(channels, dual=True), Norm(channels, dual=True)


class Spy:
    """An attack that keeps what it was given and what it made."""

    name, weak = "spy", True

    def __init__(self, attack=ATTACK):
        self.attack, self.given, self.made = attack, [], []

    def __call__(self, predict, x, y, rng):
        self.given.append(x)
        self.made.append(self.attack(predict, x, y, rng))
        return self.made[-1]


def train(objective, parts=PARTS, *, net=None, plan=PLAN, layout=LAYOUT, tracked=True):
    """Weights before and after local training in float64."""
    net = net or Net(Dual)
    download = cut(net, layout, net.init(layout, seed=0, tracked=tracked), parts[-1:] if layout != LAYOUT else parts)
    start = {name: value.double() for name, value in download.items()}
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


@pytest.mark.slow
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("loss", ["plain", "masked"])
def test_stacked_bases_learn_what_looped_bases_learn(tracked, loss):
    objective = Adversarial(ATTACK, loss=loss)
    (_, stacked), (_, looped) = (
        train(objective, net=Net(Dual, stacked=stacked), tracked=tracked) for stacked in (True, False)
    )
    assert_close(stacked, looped, atol=1e-9, rtol=0)


def test_bases_trained_together_learn_what_each_learns_alone():
    objective = Adversarial(PGD(eps=0.1, steps=3, step=0.05, random_start=False))
    _, together = train(objective, bases(0, 1, 2))
    for base in range(3):
        _, alone = train(objective, bases(base))
        assert_close({n: v[base] for n, v in together.items()}, {n: v[0] for n, v in alone.items()}, atol=1e-9, rtol=0)


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
    expected = after_batches(Net(Dual), ATOM, start, spy.made, robust=1.0)
    assert_close(statistics(end, ".noisy."), statistics(expected, ".noisy."))
    assert statistics(end, ".noisy.").keys() == {f"norm{i}.noisy.{s}" for i in (1, 2) for s in STATISTICS}


def test_the_attack_sees_the_noisy_norms_in_eval_mode():
    seen = []

    def forward(x, robust=0.0, *, training=True, only=None):
        seen.append((robust, training))
        return [(x.flatten(-3) @ torch.eye(36, 3, dtype=x.dtype)).expand(2, -1, -1)]

    forward.widths = [ATOM]
    Adversarial(ATTACK)(forward, torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 0]), torch.Generator())
    assert seen == [(0.0, True), *[(1.0, False)] * (1 + ATTACK.steps), (1.0, True)]


@pytest.mark.parametrize("build", [Tiny, Dual])
def test_on_single_norms_both_batches_go_through_the_same_one_after_the_other(build):
    spy, net = Spy(), Net(build)
    start, end = train(Adversarial(spy, dual=False), net=net, plan=ONE_STEP)
    expected = after_batches(net, ATOM, start, [*spy.given, *spy.made], robust=0.0)
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


def test_an_unknown_loss_is_refused():
    with pytest.raises(UserError, match="unknown loss 'mask'; did you mean 'masked'"):
        Adversarial(loss="mask")
