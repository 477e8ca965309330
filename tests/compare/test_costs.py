"""What methods cost: a client's round, and a whole run."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from helpers.accounts import TINY, tiny
from helpers.runs import LEVERS
from helpers.small_task import SETTINGS, small_task
from helpers.toys import ATOM, FULL, HALF, Tiny, ToyClients
from splitmix.compare.costs import (
    ClientCost,
    Spent,
    account_for,
    account_of,
    budget_costs,
    budgets_for,
    client_cost,
    replay,
    run_costs,
)
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.rounds import Federation, federate
from splitmix.core.types import Part, Plan, Profile, Update
from splitmix.core.width import Width
from splitmix.methods import METHODS
from splitmix.methods.nested import HeteroFL
from splitmix.nets import NETS
from splitmix.nets.cost import training_bytes, weightless
from splitmix.runs.config import make_config
from splitmix.runs.setup import set_up

EIGHTHS = tuple(Width(1, 2**i) for i in (3, 2, 1, 0))
NESTED = (176_178, 701_018, 2_796_714, 11_172_170)  # parameters of PreResNet18 at these widths
MACS = (8_872_576, 35_046_656, 139_299_328, 555_422_720)
BASES = tuple(n * NESTED[0] for n in (1, 2, 4, 8))
DISTILLED = '{name="fjord", distill=true}'
STRICT = '{name="fedavg", mode="strict"}'


@cache
def resnet(method):
    return account_for(method, NETS["preresnet18"], (32, 32, 3), atom=EIGHTHS[0], budgets=EIGHTHS, batch=128)


# --- a client's round ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "traffic"),
    [("splitmix", BASES), ("fedensemble", BASES[:1] * 4), ("fedavg", NESTED[3:] * 4)]
    + [(name, NESTED) for name in ("heterofl", "sheterofl", "fedrolex", "fjord")],
)
def test_only_what_is_trained_travels(method, traffic):
    found = budget_costs(resnet(method), EIGHTHS)
    assert tuple(cost.down for cost in found.values()) == traffic
    assert tuple(cost.up for cost in found.values()) == traffic


@pytest.mark.parametrize(
    ("method", "forward"),
    [
        ("splitmix", [n * MACS[0] for n in (1, 2, 4, 8)]),
        ("heterofl", MACS),
        ("sheterofl", [sum(MACS[:n]) for n in (1, 2, 3, 4)]),
        ("fjord", [round(sum(MACS[:n]) / n) for n in (1, 2, 3, 4)]),
        (DISTILLED, [MACS[n - 1] + round(sum(MACS[: n - 1]) / n) for n in (1, 2, 3, 4)]),
    ],
)
def test_training_runs_an_image_through_every_net_that_is_trained_on_it(method, forward):
    found = budget_costs(resnet(method), EIGHTHS).values()
    assert [cost.forward for cost in found] == list(forward)
    assert [cost.macs for cost in found] == [3 * 128 * macs for macs in forward]


def test_memory_holds_three_numbers_per_parameter_and_the_activations_of_a_batch():
    memory = {
        name: budget_costs(resnet(name), EIGHTHS) for name in ("heterofl", "splitmix", "sheterofl", "fjord", DISTILLED)
    }
    alone = [resnet("heterofl").cost_at(width).activations for width in EIGHTHS]
    assert memory["heterofl"][FULL].memory == training_bytes(NESTED[3], alone[3], batch=128)
    assert memory["heterofl"][FULL].memory == 4 * (3 * NESTED[3] + 128 * 1_171_466)
    assert memory["splitmix"][FULL].memory == 4 * (3 * BASES[3] + 128 * 1_171_536)
    # nested nets share their parameters but not their activations; of drawn widths the largest draw counts
    assert memory["sheterofl"][HALF].memory == training_bytes(NESTED[2], sum(alone[:3]), batch=128)
    assert memory["fjord"][HALF].memory == training_bytes(NESTED[2], alone[2], batch=128)
    assert memory[DISTILLED][HALF].memory == training_bytes(NESTED[2], alone[2] + alone[1], batch=128)


def test_what_is_trained_is_said_in_words():
    names = ["splitmix", "sheterofl", "fjord", DISTILLED, STRICT]
    assert [budget_costs(resnet(name), EIGHTHS)[HALF].trains for name in names] == [
        *("4 x 1/8", "1/8 + 1/4 + 1/2", "1/8 | 1/4 | 1/2", "1/2 + 1/8 | 1/2 + 1/4 | 1/2", "nothing")
    ]


def test_a_client_that_trains_nothing_spends_nothing():
    assert client_cost(tiny("heterofl"), ()) == ClientCost()


@pytest.mark.parametrize("name", METHODS)
def test_serving_a_width_costs_what_its_parts_cost(name):
    account = tiny(name)
    for width in account.method.widths:
        parts = [part.width for part in account.method.compose(width)]
        assert account.cost_at(*parts).parameters == sum(TINY[part] for part in parts)


@pytest.mark.parametrize(("norm", "down", "up"), [("post", 75, 75), ("tracked", 83, 83), ("local", 83, 67)])
def test_statistics_travel_where_they_are_tracked_and_local_norms_stay(norm, down, up):
    found = client_cost(tiny("heterofl", norm=norm), (Part(0, ATOM),))
    assert (found.down, found.up) == (down, up)  # two norms of two channels have 8 statistics, and 8 of affine


def test_weightless_nets_have_shapes_alone_and_fall_back_on_real_ones():
    assert weightless(Tiny)(ATOM).conv.weight.is_meta

    def picky(width):
        return torch.nn.Linear(2, int(torch.ones(3).sum()))

    assert weightless(picky)(ATOM).weight.shape == (3, 2)


def test_budgets_are_those_of_the_paper_that_hold_whole_atoms():
    assert budgets_for("", Width(1, 8)) == EIGHTHS
    assert budgets_for("", Width(1, 3)) == (FULL,)
    assert budgets_for("", Width(3, 8)) == (Width(3, 8),)
    assert budgets_for("skewed-8111", Width(1, 8)) == (Width(1, 8), FULL)


# --- a whole run --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Echo:
    """An engine whose clients send back what they got."""

    net: Net
    layout: object

    def profiles(self, round):
        return ToyClients().profiles(round)

    def run(self, weights, jobs):
        for job in jobs:
            got = cut(self.net, self.layout, weights, job.parts)
            yield Update(job.round, job.client, job.parts, got, 1, {"loss": 0.0})


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["post", "tracked"])
@pytest.mark.parametrize("name", [*METHODS, LEVERS])
def test_a_replay_finds_the_traffic_of_the_run_itself(name, norm):
    account, how, moved = tiny(name, norm=norm), Federation(5, Plan(batch=4), cohort=3, seed=2), []
    net, layout = Net(Tiny), account.method.layout
    weights = net.init(layout, seed=0, tracked=norm == "tracked")
    federate(account.method, Echo(net, layout), net, weights, how, on_round=lambda r: moved.append(r.parameters))
    total = sum(run_costs(account, ToyClients().profiles, how).values(), Spent())
    assert total.down == total.up == 4 * sum(moved)


def test_a_client_pays_for_its_own_rounds_and_samples():
    account = tiny("heterofl", epochs=2)
    found = run_costs(account, ToyClients().profiles, Federation(3))
    wide = account.cost_at(FULL).macs
    assert found[3] == Spent(
        3, 3 * 4 * 723, 3 * 4 * 723, 3 * (3 * wide * 8 * 2), client_cost(account, (Part(0, FULL),)).memory
    )
    assert found[0].down == found[1].down == 3 * 4 * 75


def test_clients_without_a_job_are_listed_with_nothing():
    found = run_costs(tiny({"name": "fedavg", "mode": "strict"}), ToyClients().profiles, Federation(2))
    assert [spent.jobs for spent in found.values()] == [0, 0, 0, 2]
    assert found[0] == Spent()


def test_budgets_that_change_are_replayed_as_they_are_in_each_round():
    def profiles(round):
        return [Profile(0, ATOM if round % 2 else FULL, samples=1)]

    jobs = list(replay(HeteroFL((ATOM, FULL)), profiles, Federation(3)))
    assert [parts[0].width for _, parts in jobs] == [FULL, ATOM, FULL]


def test_the_account_of_a_run_follows_its_settings():
    setup = set_up(
        make_config({**SETTINGS, "batch": 6, "epochs": 2, "norm": "tracked"}, own=["task"]), task=small_task()
    )
    account = account_of(setup)
    assert (account.batch, account.epochs, account.norm, account.image) == (6, 2, "tracked", setup.image)
    total = sum(run_costs(account, setup.clients().profiles, setup.how).values(), Spent())
    assert total.jobs == setup.how.rounds * len(setup.task.shards)
