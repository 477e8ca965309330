"""Bases that learn from their mean: the number it adds, whom it teaches, and with which losses it goes together."""

import pytest
import torch
from torch.nn.functional import one_hot
from torch.testing import assert_close

from helpers.film_net import FilmTiny, with_film
from helpers.toys import LAYOUT, PLAN, Exact, Tiny, ToyClients, bases, to_bytes
from splitmix.attacks.pgd import PGD
from splitmix.core.client import train_client
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.reproducible import torch_rng_for
from splitmix.core.types import Train
from splitmix.methods.bases import SplitMix
from splitmix.objectives.adversarial import Adversarial, OnceForAll
from splitmix.objectives.losses import Masked, Mutual, Plain

DATA = ToyClients().data(0)
ATTACK = PGD(eps=0.1, steps=2, step=0.05, random_start=False)
X, Y = torch.zeros(2, 1), torch.tensor([0, 2])
LOGITS = torch.tensor([[[1.0, 0, 2], [3, 0, 0]], [[0.0, 1, 0], [1, 2, 0]], [[2.0, 0, 0], [0, 0, 1]]])  # three bases


class Answers:
    """A forward that gives logits whatever it is asked."""

    widths = (LAYOUT.width,)

    def __init__(self, logits=LOGITS):
        self.logits = logits.clone().requires_grad_()

    def __call__(self, x, robust=0.0, *, training=True, only=None):
        return [self.logits]

    def fixed(self, place, robust=0.0):
        return lambda images: self.logits.detach()


def by_hand(logits, temperature=2.0):
    """T^2 KL(mean || base), mean over the batch, sum over the bases."""
    teacher, students = torch.softmax(logits.mean(0) / temperature, -1), torch.softmax(logits / temperature, -1)
    return temperature**2 * (teacher * (teacher / students).log()).sum() / logits.shape[1]


def loss(objective, forward):
    return objective(forward, X, Y, torch_rng_for(0))


@pytest.mark.parametrize("given", [Plain(), Masked()])
def test_it_adds_the_divergence_of_each_base_from_their_mean(given):
    expected = loss(given, Answers()) + 0.2 * by_hand(LOGITS)
    assert_close(loss(Mutual(given, 0.2), Answers()), expected)


def test_only_the_first_base_may_be_taught():
    first = Mutual(Plain(), 0.2, taught=1)
    forward = Answers()
    loss(first, forward).backward()
    taught = 0.4 * (torch.softmax(LOGITS[0] / 2, -1) - torch.softmax(LOGITS.mean(0) / 2, -1)) / len(Y)  # w T (q - p)
    own = (torch.softmax(LOGITS, -1) - one_hot(Y, 3)) / len(Y)
    assert_close(forward.logits.grad, torch.stack([own[0] + taught, *own[1:]]))


def test_clean_and_attacked_images_teach_by_their_mean():
    given = Adversarial(lambda predict, x, y, rng: x, weight=0.3)
    assert_close(loss(Mutual(given, 0.5), Answers()), loss(given, Answers()) + 0.5 * by_hand(LOGITS))


def test_the_mean_learns_nothing_from_those_it_teaches():
    forward = Answers()
    loss(Mutual(Plain(), 1.0), forward).backward()
    own = (torch.softmax(LOGITS, -1) - one_hot(Y, 3)) / len(Y)
    taught = 2 * (torch.softmax(LOGITS / 2, -1) - torch.softmax(LOGITS.mean(0) / 2, -1)) / len(Y)  # T (q - p)
    assert_close(forward.logits.grad, own + taught)


def test_bases_that_agree_have_nothing_to_learn():
    agreed = LOGITS[:1].expand(3, -1, -1)
    assert_close(loss(Mutual(Plain(), 1.0), Answers(agreed)), loss(Plain(), Answers(agreed)))


GIVEN = {
    "plain": (Plain(), Tiny),
    "masked": (Masked(), Tiny),
    "adversarial": (Adversarial(ATTACK), lambda width: Tiny(width, dual=True)),
    "single norms": (Adversarial(ATTACK, dual=False, loss="masked"), Tiny),
    "oat": (OnceForAll(ATTACK), FilmTiny),
}


def trained(objective, build, parts, *, stacked=True):
    net = Net(build, stacked=stacked)
    start = cut(net, LAYOUT, with_film(net, LAYOUT, tracked=True), parts)
    return train_client(Train(0, 0, parts, PLAN, seed=1), net, start, DATA, Exact(objective), {}).weights


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_stacked_bases_teach_each_other_as_looped_ones_do_whatever_the_loss(name):
    given, build = GIVEN[name]
    stacked, looped = (trained(Mutual(given, 0.5), build, bases(0, 1, 2), stacked=s) for s in (True, False))
    assert_close(stacked, looped)
    assert to_bytes(stacked) != to_bytes(trained(given, build, bases(0, 1, 2)))


@pytest.mark.parametrize("name", GIVEN)
def test_a_client_of_one_base_trains_as_before_to_the_bit(name):
    given, build = GIVEN[name]
    assert to_bytes(trained(Mutual(given, 0.5), build, bases(1))) == to_bytes(trained(given, build, bases(1)))


@pytest.mark.parametrize("name", GIVEN)
def test_whatever_else_a_run_asks_of_a_loss_is_as_given(name):
    given, _ = GIVEN[name]
    made = SplitMix(mutual=0.2).objective(given)
    assert made == Mutual(given, 0.2)
    assert (made.needs, made.trials, made.terms(3)) == (given.needs, given.trials, given.terms(3))
    assert SplitMix(mutual=0.2, taught="first").objective(given) == Mutual(given, 0.2, taught=1)
    assert SplitMix().objective(given) is given
