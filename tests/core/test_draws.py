"""Draws that have no address of their own, such as a dropout's: they repeat for a job, and disturb nobody else's."""

import torch
from torch import nn
from torch.testing import assert_close

from helpers.toys import LAYOUT, PLAN, Tiny, ToyClients, bases, to_bytes, toy_weights
from splitmix.core.client import train_client
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.types import Train
from splitmix.objectives.losses import Plain

DATA = ToyClients().data(0)


def test_a_dropout_drops_the_same_for_a_job_whatever_was_drawn_before():
    def build(width):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(), nn.Linear(8, 3))

    net, learned = Net(build), []
    start = cut(net, LAYOUT, net.init(LAYOUT, 0), bases(0))
    for round in (0, 0, 1):
        torch.rand(round + 7)
        learned.append(
            to_bytes(train_client(Train(round, 0, bases(0), PLAN, seed=1), net, start, DATA, Plain(), {}).weights)
        )
        torch.rand(3)
    assert learned[0] == learned[1] != learned[2]


def test_training_leaves_the_draws_of_others_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    net = Net(Tiny)
    start = cut(net, LAYOUT, toy_weights(), bases(0))
    train_client(Train(0, 0, bases(0), PLAN, seed=1), net, start, DATA, Plain(), {})
    assert_close(torch.rand(2), expected, rtol=0, atol=0)
