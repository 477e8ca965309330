"""AutoAttack, the ensemble of a package: as strong as ours, within the same bounds."""

import sys
from copy import deepcopy

import pytest
import torch
from torch import nn

from helpers.attacked import rng, toy_batch, toy_net
from splitmix.attacks import find_attack
from splitmix.attacks.autoattack import AutoAttack
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError


@pytest.fixture
def short_ensemble(monkeypatch):
    """The ensemble with fewer steps of each attack."""
    pytest.importorskip("pyautoattack")
    make = AutoAttack._ensemble

    def shortened(*arguments):
        made = make(*arguments)
        made.square.n_queries, made.fab.n_iter, made.apgd.n_iter = 200, 20, 50
        return made

    monkeypatch.setattr(AutoAttack, "_ensemble", shortened)


@pytest.mark.slow
@pytest.mark.usefixtures("short_ensemble")
def test_the_ensemble_is_at_least_as_strong_as_ours_and_stays_in_the_ball():
    x, y = toy_batch(5)
    net = deepcopy(toy_net()).requires_grad_(False)
    ours = PGD(eps=0.18, steps=20, step=0.02, restarts=2)
    theirs = find_attack({"name": "autoattack", "eps": 0.18})  # three classes: no targeted attacks
    state = torch.get_rng_state()
    fooled, found = (attack(net, x, y, rng()) for attack in (ours, theirs))
    assert torch.equal(torch.get_rng_state(), state)
    assert (found - x).abs().max() <= 0.18 + 1e-6
    assert ((found >= 0) & (found <= 1)).all()
    assert (net(found).argmax(1) == y).sum() <= (net(fooled).argmax(1) == y).sum() < len(y)
    assert torch.equal(theirs(net, x, y, rng()), found)


@pytest.mark.slow
@pytest.mark.usefixtures("short_ensemble")
def test_the_whole_ensemble_takes_images_in_the_order_of_our_batches():
    x = toy_batch(1)[0]
    x = x.expand(-1, 2, -1, -1).contiguous(memory_format=torch.channels_last)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).requires_grad_(False)
    found = find_attack({"name": "autoattack", "eps": 0.001})(net, x, net(x).argmax(1), rng())  # all four attacks
    assert (found - x).abs().max() <= 0.001 + 1e-6


def test_the_ensemble_names_its_package_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    x, y = toy_batch(4)
    with pytest.raises(UserError, match=r'pip install "splitmix\[attacks\]"'):
        find_attack("autoattack")(toy_net(), x, y, rng())
