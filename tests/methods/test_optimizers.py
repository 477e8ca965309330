"""Servers that step by what a round changed, and the mean of late rounds: for every method, and to the bit."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.runs import LEVERS
from helpers.toys import ATOM, FULL, HALF, METHOD, Tiny, bases, to_bytes, toy_federation, toy_simulator, toy_weights
from splitmix.core.batches import Optimizer
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.rounds import federate
from splitmix.core.types import Plan, Setting, Update
from splitmix.methods import METHODS, find_method
from splitmix.methods.bases import SplitMix
from splitmix.methods.optimizers import SERVERS, Adam, Momentum, find_optimizer, find_server
from splitmix.runs.config import make_config

SETTING = Setting(ATOM, (ATOM, HALF, FULL), seed=3)
STEPPING = [name for name in SERVERS if name != "mean"]


class Adding:
    """An engine whose one client adds to all that it is sent: 1 in the first round, 2 in the second, and so on."""

    def profiles(self, round):
        return toy_simulator().profiles(round)[3:]

    def run(self, weights, jobs):
        for job in jobs:
            parts = [part.base for part in job.parts]
            answer = {name: value[parts] + job.round + 1 for name, value in weights.items()}
            yield Update(job.round, job.client, job.parts, answer, samples=1, metrics={"loss": 0.0})


class Given(SplitMix):
    """A method that deals the bases it is told to, round by round."""

    def assign(self, round, cohort):
        return {profile.client: bases(*ROUNDS[round]) for profile in cohort}


ROUNDS = [(0, 1), (0,), (0, 1)]  # base 1 is left out in the second round, bases 2 and 3 in all


def stepped(rounds=3, weights=None, **settings):
    """Reports of rounds in which the mean of what came is 1, 2, 3 more than the model."""
    how, reports = replace(toy_federation(rounds=rounds, cohort=None), **settings), []
    start = {name: torch.zeros_like(value) for name, value in (weights or toy_weights()).items()}
    federate(Given(ATOM, 4), Adding(), Net(Tiny), start, how, on_round=reports.append)
    return reports


def rows(reports, name="fc2.bias"):
    """The first number of each base, round by round."""
    return [[round(float(row.flatten()[0]), 4) for row in report.weights[name]] for report in reports]


def test_momentum_adds_a_share_of_the_last_step_where_there_was_training():
    found = rows(stepped(server=Momentum(0.5)))
    assert found[0] == [1, 1, 0, 0]
    assert found[1] == [1 + 2.5, 1, 0, 0]  # d = 2, and half of the last step; base 1 rests
    assert found[2] == [3.5 + 3 + 1.25, 1 + 3 + 0.5, 0, 0]  # base 1 goes on with what it had


def test_adam_moves_by_the_mean_over_the_root_of_the_mean_square():
    server = Adam(lr=0.1, beta1=0.5, beta2=0.75, tau=0.5)
    found = rows(stepped(server=server))
    first = 0.1 * 0.5 / (0.25**0.5 + 0.5)
    assert found[0] == [round(first, 4)] * 2 + [0, 0]
    mean, square = 0.5 * 0.5 + 0.5 * 2, 0.75 * 0.25 + 0.25 * 4
    assert found[1][0] == pytest.approx(first + 0.1 * mean / (square**0.5 + 0.5), abs=1e-4)
    assert found[1][1] == found[0][1]


@pytest.mark.parametrize("name", STEPPING)
def test_norm_statistics_are_the_mean_whatever_the_server(name):
    weights = toy_weights(tracked=True)
    ours, plain = (stepped(weights=weights, server=server) for server in (find_server(name), None))
    statistics = Net(Tiny).statistic_names(ATOM)
    for a, b in zip(ours, plain, strict=True):
        assert to_bytes({n: a.weights[n] for n in statistics}) == to_bytes({n: b.weights[n] for n in statistics})


@pytest.mark.slow
def test_the_mean_of_late_rounds_is_served_and_training_does_not_know_of_it():
    plain, averaged = stepped(), stepped(average=2)
    assert rows(averaged) == rows(plain)
    assert not averaged[0].kept
    last = averaged[-1].kept["average/fc2.bias"][:, 0].tolist()
    assert last == [(3 + 6) / 2, (1 + 4) / 2, 0, 0]
    engine = toy_simulator()
    how, reports = replace(toy_federation(), average=2), []
    served = federate(METHOD, engine, engine.net, toy_weights(), how, on_round=reports.append)
    assert_close(served, {name: (reports[1].weights[name] + value) / 2 for name, value in reports[2].weights.items()})


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", [*METHODS, pytest.param(LEVERS, id="splitmix with levers")])
def test_any_method_goes_on_from_any_round_as_if_it_had_not_stopped(name, server):
    method = find_method(name, SETTING)
    engine, reports = toy_simulator(objective=method.objective(toy_simulator().objective), layout=method.layout), []
    how = replace(toy_federation(), server=find_server(server), average=2)
    start = engine.net.init(method.layout, seed=5, tracked=True)
    whole = federate(method, engine, engine.net, start, how, on_round=reports.append)
    for report in reports[:-1]:
        on = {"start": report.round + 1, "kept": report.kept}
        assert to_bytes(federate(method, engine, engine.net, report.weights, how, **on)) == to_bytes(whole)


def test_momentum_of_nothing_is_the_mean():
    (ours, plain) = (stepped(server=server) for server in (Momentum(0.0), None))
    assert rows(ours) == rows(plain)
    assert find_server("mean") is None


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("momentun", "unknown server 'momentun'; did you mean 'momentum'?"),
        ({"beta": 0.5}, "a server needs a name, got {'beta': 0.5}; choose one of adam, mean, momentum"),
        ({"name": "momentum", "beta": 1}, "beta 1 of the server momentum is outside [0, 1); try 0.5"),
        ({"name": "momentum", "beta": True}, "beta True of the server momentum is outside [0, 1)"),
        ({"name": "momentum", "lr": 1}, "unknown setting of server momentum 'lr'"),
        ({"name": "mean", "beta": 1}, "unknown setting of server mean 'beta'"),
        ({"name": "adam", "beta2": "x"}, "beta2 'x' of the server adam is outside [0, 1); try 0.99"),
        ({"name": "adam", "lr": 0}, "lr 0 of the server adam is not positive; try 0.01"),
    ],
)
def test_a_wrong_server_is_one_sentence(value, sentence):
    with pytest.raises(UserError) as caught:
        make_config({"server": value})
    assert str(caught.value).startswith(f"server: {sentence}")
    assert "\n" not in str(caught.value)


# --- of clients ---


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_steps_are_those_of_pytorchs_own_optimizers(name, proximal):
    plan = Plan(lr=0.05, weight_decay=0.1, optimizer=name, betas=(0.8, 0.95), proximal=proximal)
    settings = {"momentum": 0.9} if name == "sgd" else {"betas": (0.8, 0.95)}
    ours, theirs = (nn.Linear(3, 2).double() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    start = [leaf.detach().clone() for leaf in theirs.parameters()]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    reference = kinds[name](theirs.parameters(), lr=0.05, weight_decay=0.1, **settings)
    optimizer, x = Optimizer(dict(ours.named_parameters()), (), plan), torch.rand(4, 3).double()
    for _ in range(5):
        optimizer.step(ours(x).square().sum())
        pull = sum((leaf - was).square().sum() for leaf, was in zip(theirs.parameters(), start, strict=True))
        reference.zero_grad()
        (theirs(x).square().sum() + proximal / 2 * pull).backward()
        reference.step()
    for leaf, same in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(leaf, same)


def test_a_leaf_that_is_reached_later_than_others_begins_at_rest():
    ours, theirs = (nn.ParameterDict({"a": torch.ones(2), "b": torch.ones(2)}) for _ in range(2))
    optimizer = Optimizer(dict(ours), (), Plan(lr=0.05, momentum=0.9, weight_decay=0.1))
    reference = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    for loss in (lambda own: own["a"].sum(), lambda own: (own["a"] * own["b"]).sum(), lambda own: own["b"].sum()):
        optimizer.step(loss(ours))
        reference.zero_grad()
        loss(theirs).backward()
        reference.step()
    assert_close(dict(ours), dict(theirs))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("adamm", "did you mean 'adam'?"),
        ({"name": "adam", "beta": 0.9}, "unknown setting of optimizer adam 'beta'"),
        ({"name": "adamw", "beta1": 1}, r"beta1 1 of the optimizer adam is outside \[0, 1\)"),
        ({"beta1": 0.9}, "an optimizer needs a name"),
    ],
)
def test_an_optimizer_that_does_not_exist_is_one_sentence(value, said):
    with pytest.raises(UserError, match=said):
        find_optimizer(value)
