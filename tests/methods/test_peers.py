"""What is special about each of the methods that Split-Mix is compared with."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn, tensor
from torch.testing import assert_close

from helpers.toys import ATOM, FULL, HALF, Tiny, ToyClients, toy_split
from splitmix.core.client import Parts, train_client
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import covering, cut
from splitmix.core.reproducible import torch_rng_for
from splitmix.core.rounds import Federation, federate
from splitmix.core.types import Layout, Part, Plan, Profile, Setting, Train, Update
from splitmix.core.width import Width
from splitmix.methods import find_method
from splitmix.methods.nested import FedAvg, FedRolex, FjORD, HeteroFL, SHeteroFL
from splitmix.nets.layers import Linear, Norm, scaled
from splitmix.objectives.losses import DrawnWidth, Masked, Plain, cross_entropy

WIDTHS = (ATOM, HALF, FULL)
SETTING = Setting(ATOM, WIDTHS, seed=3)
COHORT = ToyClients().profiles(0)  # budgets 1/4, 1/4, 1/2, 1


class Four(nn.Module):
    """A net of four channels, to be filled with numbers and never run."""

    stackable = True

    def __init__(self, width, channels=4):
        super().__init__()
        c = scaled(channels, width)
        self.enter, self.norm, self.inner, self.leave = Linear(2, c), Norm(c), Linear(c, c), Linear(c, 3)


@dataclass(frozen=True)
class Constants:
    """An engine whose clients fill whatever they get with a number of their own."""

    net: Net
    layout: Layout
    clients: tuple[Profile, ...]
    numbers: tuple[float, ...]

    def profiles(self, round):
        return self.clients

    def run(self, weights, jobs):
        for job in jobs:
            got = cut(self.net, self.layout, weights, covering(job.parts))
            filled = {name: torch.full_like(value, self.numbers[job.client]) for name, value in got.items()}
            samples = self.clients[job.client].samples
            yield Update(job.round, job.client, job.parts, filled, samples, {"loss": 0.0})


def rounds_of(method, clients, numbers, *, rounds=1, start=0, build=Four):
    """The weights, all 9 at first, after rounds in which clients fill what they hold with their numbers."""
    net = Net(build)
    weights = {name: torch.full_like(value, 9.0) for name, value in net.init(method.layout, seed=0).items()}
    engine = Constants(net, method.layout, clients, numbers)
    return federate(method, engine, net, weights, Federation(start + rounds), start=start)


# --- FedAvg -------------------------------------------------------------------------------------------------------


def test_free_fedavg_gives_its_net_to_all():
    assert set(FedAvg(HALF).assign(0, COHORT).values()) == {(Part(0, HALF),)}


def test_strict_fedavg_leaves_out_the_clients_that_cannot_afford_the_net():
    assigned = FedAvg(HALF, "strict").assign(0, COHORT)
    assert assigned == {0: (), 1: (), 2: (Part(0, HALF),), 3: (Part(0, HALF),)}


def test_fedavg_is_as_wide_as_the_largest_budget_unless_told_otherwise():
    assert find_method("fedavg", SETTING).widths == (FULL,)
    assert find_method({"name": "fedavg", "width": "1/4"}, SETTING).widths == (ATOM,)


def test_strict_fedavg_needs_a_client_that_can_train_it():
    with pytest.raises(UserError, match=r"^no client can train width 1, the largest budget is 1/2; choose"):
        find_method({"name": "fedavg", "width": 1, "mode": "strict"}, Setting(ATOM, (ATOM, HALF), seed=0))


# --- HeteroFL and FedRolex, worked by hand on four channels -------------------------------------------------------

UNEVEN = (Profile(0, HALF, 10), Profile(1, FULL, 30), Profile(2, ATOM, 60))  # fill with 1, 5 and 2:
BOTH, ALL = 4.0, 2.8  # (10*1 + 30*5) / 40 and (10*1 + 30*5 + 60*2) / 100


@pytest.mark.parametrize("name", ["inner.bias", "norm.clean.weight", "enter.bias"])
def test_heterofl_averages_each_channel_over_the_clients_that_hold_it(name):
    after = rounds_of(HeteroFL(WIDTHS), UNEVEN, (1.0, 5.0, 2.0))
    assert_close(after[name][0], tensor([ALL, BOTH, 5.0, 5.0]))


def test_heterofl_averages_each_weight_over_the_clients_that_hold_both_its_ends():
    after = rounds_of(HeteroFL(WIDTHS), UNEVEN, (1.0, 5.0, 2.0))
    square = [[ALL, BOTH, 5.0, 5.0], [BOTH, BOTH, 5.0, 5.0], [5.0] * 4, [5.0] * 4]
    assert_close(after["inner.weight"][0], tensor(square))
    assert_close(after["leave.bias"][0], tensor([ALL] * 3))  # all clients hold all classes


def test_heterofl_keeps_what_no_client_of_the_round_can_hold():
    weak = (Profile(0, HALF, 10), Profile(1, ATOM, 30))
    after = rounds_of(HeteroFL(WIDTHS), weak, (1.0, 5.0))
    assert after["leave.weight"][0].tolist() == [[4.0, 1.0, 9.0, 9.0]] * 3


def test_fedrolex_begins_its_windows_at_the_channel_of_the_round():
    after = rounds_of(FedRolex(WIDTHS), UNEVEN, (1.0, 5.0, 2.0), start=3)  # channels 3, 0 for 1/2, and 3 for 1/4
    square = [[BOTH, 5.0, 5.0, BOTH], [5.0] * 4, [5.0] * 4, [BOTH, 5.0, 5.0, ALL]]
    assert_close(after["inner.weight"][0], tensor(square))
    assert_close(after["inner.bias"][0], tensor([BOTH, 5.0, 5.0, ALL]))


def test_fedrolex_reaches_all_channels_of_a_net_that_is_wider_than_any_client():
    method = find_method({"name": "fedrolex", "width": "1"}, Setting(ATOM, (ATOM,), seed=0))
    weak = (Profile(0, ATOM, 10),)
    assert rounds_of(method, weak, (1.0,), rounds=3)["inner.bias"][0].tolist() == [1.0, 1.0, 1.0, 9.0]
    assert rounds_of(method, weak, (1.0,), rounds=4)["inner.bias"][0].tolist() == [1.0] * 4
    assert method.widths == (ATOM, FULL)


# --- SHeteroFL ----------------------------------------------------------------------------------------------------

EIGHTHS = tuple(Width(1, 2**i) for i in (3, 2, 1, 0))


def test_sheterofl_trains_every_affordable_width_once():
    method = find_method({"name": "sheterofl", "listed": "1/4 1 1 1"}, SETTING)
    assert method.assign(0, COHORT[2:]) == {2: (Part(0, ATOM),), 3: (Part(0, ATOM), Part(0, FULL))}


@pytest.mark.parametrize(("released", "mean"), [(False, 0.5), (True, 0.8)])
def test_a_client_is_weighed_once_or_as_released_by_its_number_of_widths(released, mean):
    method = SHeteroFL(EIGHTHS, released_weighting=released)
    two = (Profile(0, EIGHTHS[0], 10), Profile(1, FULL, 10))
    after = rounds_of(method, two, (0.0, 1.0), build=lambda width: Four(width, channels=8))
    assert_close(after["inner.bias"][0], tensor([mean] + [1.0] * 7))  # 0.8 = (4*1 + 1*0) / 5


def test_the_released_weighting_is_4_3_2_1():
    method = SHeteroFL(EIGHTHS, released_weighting=True)
    assigned = method.assign(0, [Profile(i, budget, samples=1) for i, budget in enumerate(EIGHTHS)])
    assert [method.weigh(parts) for parts in assigned.values()] == [1, 2, 3, 4]


def test_the_released_weighting_trains_a_width_as_often_as_it_is_listed():
    method = SHeteroFL((ATOM, FULL, FULL, FULL), released_weighting=True)
    parts = method.assign(0, COHORT)[3]
    net, x, y = Net(Tiny), *toy_split(8).batch(torch.arange(8))
    weights = net.init(method.layout, seed=0)
    narrow, wide = (
        cross_entropy(net.run(width, cut(net, method.layout, weights, [Part(0, width)]), x), y)
        for width in (ATOM, FULL)
    )
    assert_close(Plain()(Parts(net, parts, weights), x, y, torch.Generator()), narrow + 3 * wide)
    assert (method.weigh(parts), method.widths) == (4, (ATOM, FULL))


# --- FjORD --------------------------------------------------------------------------------------------------------


class Counted:
    """A forward over three widths that notes which of them run."""

    widths = WIDTHS

    def __init__(self):
        self.ran = []
        self.logits = [tensor([[[0.0, 1.0, 0.0]]]), tensor([[[0.0, 2.0, 0.0]]]), tensor([[[3.0, 0.0, 0.0]]])]

    def __call__(self, x, robust=0.0, *, training=True, only=None):
        places = range(3) if only is None else only
        self.ran.extend(places)
        return [self.logits[place] for place in places]


X, Y = torch.zeros(1, 1), tensor([1])


def test_ordered_dropout_runs_one_width_per_batch_and_all_equally_often():
    forward, rng = Counted(), torch_rng_for("fjord")
    for _ in range(300):
        DrawnWidth()(forward, X, Y, rng)
    assert len(forward.ran) == 300
    assert all(75 < forward.ran.count(place) < 125 for place in range(3))


def test_distillation_always_runs_the_widest_and_beside_it_the_drawn_one():
    forward, rng = Counted(), torch_rng_for("fjord")
    for _ in range(300):
        DrawnWidth(distill=True)(forward, X, Y, rng)
    assert forward.ran.count(2) == 300
    assert 475 < len(forward.ran) < 525  # 300 * (1 + 2/3)


def test_distillation_adds_the_loss_of_the_drawn_width_and_its_divergence_from_the_widest():
    forward, draws = Counted(), {int(torch.randint(3, (), generator=torch_rng_for(i))): i for i in range(20)}
    narrow, _, wide = forward.logits
    teacher, student = (torch.softmax(logits / 2, -1) for logits in (wide, narrow))
    divergence = (teacher * (teacher / student).log()).sum()
    expected = cross_entropy(wide, Y) + 0.75 * cross_entropy(narrow, Y) + 0.25 * 2**2 * divergence
    objective = DrawnWidth(distill=True, share=0.25, temperature=2.0)
    assert_close(objective(forward, X, Y, torch_rng_for(draws[0])), expected)
    assert_close(objective(forward, X, Y, torch_rng_for(draws[2])), cross_entropy(wide, Y))


def gradient(loss_of, parts, name="fc1.bias"):
    """The gradient of a loss by the leaves that nested parts share, on a batch of the toy task."""
    net, (x, y) = Net(Tiny), toy_split(8).batch(torch.arange(8))
    leaves = {n: value.requires_grad_() for n, value in net.init(Layout(1, covering(parts)[0].width), seed=0).items()}
    return torch.autograd.grad(loss_of(Parts(net, parts, leaves), x, y), leaves[name])[0][0]


def test_the_widest_learns_nothing_from_those_it_teaches():
    parts = (Part(0, ATOM), Part(0, FULL))
    seed = next(i for i in range(9) if int(torch.randint(2, (), generator=torch_rng_for(i))) == 0)  # the narrow one
    objective = DrawnWidth(distill=True, share=1.0)
    taught = gradient(lambda forward, x, y: objective(forward, x, y, torch_rng_for(seed)), parts, "fc2.weight")
    alone = gradient(lambda forward, x, y: cross_entropy(forward(x)[1], y), parts, "fc2.weight")
    assert_close(taught[:, 2:], alone[:, 2:])  # a quarter of eight channels is shared with the narrow one
    assert not torch.allclose(taught[:, :2], alone[:, :2])


def test_only_the_drawn_width_gets_gradient():
    parts = FjORD(WIDTHS).assign(0, COHORT)[2]
    assert parts == (Part(0, ATOM), Part(0, HALF))  # what a budget of 1/2 affords
    plain = DrawnWidth()
    found = [
        gradient(lambda forward, x, y, i=i: plain(forward, x, y, torch_rng_for(i)), parts, "fc2.weight")
        for i in range(6)
    ]
    assert {int(g.abs().sum(0).count_nonzero()) for g in found} == {2, 4}  # channels of 1/4 and 1/2


def test_the_reported_loss_is_that_of_one_width():
    net, method, data = Net(Tiny), FjORD(WIDTHS), ToyClients().data(3)
    weights, (x, y) = net.init(method.layout, seed=0), data.train.batch(torch.arange(8))
    job = Train(0, 3, method.assign(0, COHORT)[3], Plan(batch=8), seed=0)
    found = train_client(job, net, weights, data, method.objective(Plain()), {}).metrics["loss"]
    losses = [float(cross_entropy(logits, y)) for logits in Parts(net, job.parts, weights)(x)]
    assert any(found == pytest.approx(loss, rel=1e-5) for loss in losses)


def test_fjord_draws_widths_for_whatever_loss_was_asked_for():
    method = FjORD(WIDTHS, distill=True, share=0.3, temperature=3.0)
    assert method.objective(Masked()) == DrawnWidth(Masked(), True, 0.3, 3.0)
