"""What methods cost: a client's round, a whole run, and which data reached which parameters."""

import json
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitmix.cli import main
from splitmix.core.method import local_objective
from splitmix.core.net import Net
from splitmix.core.objective import DrawnWidth, Plain
from splitmix.core.parts import covering, cut, merge, windows_of
from splitmix.core.rounds import Federation, federate
from splitmix.core.types import Part, Plan, Profile, Setting, Update, Width
from splitmix.experiments.config import make_config
from splitmix.experiments.costs import (
    Account,
    ClientCost,
    Spent,
    account_for,
    account_of,
    budget_costs,
    budgets_for,
    client_cost,
    coverage,
    drawn_together,
    profiles_of,
    replay,
    run_costs,
    trained,
    union_size,
    width_cost,
)
from splitmix.experiments.setup import set_up
from splitmix.methods import METHODS, find_method
from splitmix.methods.fedrolex import FedRolex
from splitmix.methods.heterofl import HeteroFL
from splitmix.nets import NETS
from splitmix.nets.cost import training_bytes, training_macs, weightless
from stripes import SETTINGS, stripes_task
from toys import ATOM, FULL, HALF, Tiny, ToyClients

EIGHTHS = tuple(Width(1, 2**i) for i in (3, 2, 1, 0))
NESTED = (176_178, 701_018, 2_796_714, 11_172_170)  # parameters of PreResNet18 at these widths
MACS = (8_872_576, 35_046_656, 139_299_328, 555_422_720)
BASES = tuple(n * NESTED[0] for n in (1, 2, 4, 8))
SETTING = Setting(ATOM, (ATOM, HALF, FULL), seed=3)
TINY = {width: 9 * c * c + 18 * c + 3 for width, c in ((ATOM, 2), (HALF, 4), (FULL, 8))}  # 75, 219, 723 parameters


DISTILLED = '{name="fjord", distill=true}'
STRICT = '{name="fedavg", mode="strict"}'


@cache
def resnet(method):
    return account_for(method, NETS["preresnet18"], (32, 32, 3), atom=EIGHTHS[0], budgets=EIGHTHS, batch=128)


def tiny(method, **options):
    made = find_method(method, SETTING)
    return Account(made, Tiny, (6, 6, 1), local_objective(made, Plain()), batch=4, **options)


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


def test_the_published_means_over_four_equal_groups():
    splitmix, sheterofl = (budget_costs(resnet(name), EIGHTHS).values() for name in ("splitmix", "sheterofl"))
    assert [round(cost.forward / 1e6, 1) for cost in sheterofl] == [8.9, 43.9, 183.2, 738.6]
    assert round(sum(cost.forward for cost in sheterofl) / 4e6, 1) == 243.7
    assert round(sum(cost.forward for cost in splitmix) / 4e6, 1) == 33.3
    assert round(sum(cost.down for cost in splitmix) / 4e6, 3) == 0.661
    assert round(sum(cost.down for cost in sheterofl) / 4e6, 2) == 3.71


def test_memory_holds_three_numbers_per_parameter_and_the_activations_of_a_batch():
    wide, mix = budget_costs(resnet("heterofl"), EIGHTHS)[FULL], budget_costs(resnet("splitmix"), EIGHTHS)[FULL]
    assert wide.memory == training_bytes(NESTED[3], 1_171_466, batch=128) == 4 * (3 * NESTED[3] + 128 * 1_171_466)
    assert mix.memory == 4 * (3 * BASES[3] + 128 * 1_171_536)


def test_nested_nets_share_their_parameters_but_not_their_activations():
    cost = budget_costs(resnet("sheterofl"), EIGHTHS)[HALF]
    alone = [resnet("sheterofl").cost_at(width).activations for width in EIGHTHS[:3]]
    assert cost.memory == training_bytes(NESTED[2], sum(alone), batch=128)


def test_a_drawn_width_needs_the_memory_of_the_widest_draw():
    plain, distilled = (budget_costs(resnet(name), EIGHTHS)[HALF] for name in ("fjord", DISTILLED))
    alone = [resnet("fjord").cost_at(width).activations for width in EIGHTHS[:3]]
    assert plain.memory == training_bytes(NESTED[2], alone[2], batch=128)
    assert distilled.memory == training_bytes(NESTED[2], alone[2] + alone[1], batch=128)


def test_what_is_trained_is_said_in_words():
    names = ["splitmix", "sheterofl", "fjord", DISTILLED, STRICT]
    assert [budget_costs(resnet(name), EIGHTHS)[HALF].trains for name in names] == [
        *("4 x 1/8", "1/8 + 1/4 + 1/2", "1/8 | 1/4 | 1/2", "1/2 + 1/8 | 1/2 + 1/4 | 1/2", "nothing")
    ]


def test_a_client_that_trains_nothing_spends_nothing():
    assert client_cost(tiny("heterofl"), ()) == ClientCost()


def test_all_parts_train_on_a_batch_unless_a_width_is_drawn():
    narrow, wide = Part(0, ATOM), Part(0, FULL)
    assert drawn_together(Plain(), [narrow, wide]) == [(narrow, wide)]
    assert drawn_together(DrawnWidth(), [narrow, wide]) == [(narrow,), (wide,)]
    assert drawn_together(DrawnWidth(distill=True), [narrow, wide]) == [(wide, narrow), (wide,)]


@pytest.mark.parametrize("name", METHODS)
def test_serving_a_width_costs_what_its_parts_cost(name):
    account = tiny(name)
    for width in account.method.widths:
        parts = account.method.compose(width)
        assert width_cost(account, width).parameters == sum(TINY[part.width] for part in parts)


@pytest.mark.parametrize(("norm", "down", "up"), [("post", 75, 75), ("tracked", 83, 83), ("local", 83, 67)])
def test_statistics_travel_where_they_are_tracked_and_local_norms_stay(norm, down, up):
    found = client_cost(tiny("heterofl", norm=norm), (Part(0, ATOM),))
    assert (found.down, found.up) == (down, up)  # two norms of two channels have 8 statistics, and 8 of affine


def test_weightless_nets_have_shapes_alone_and_fall_back_on_real_ones():
    assert weightless(Tiny)(ATOM).conv.weight.is_meta

    def picky(width):
        return torch.nn.Linear(2, int(torch.ones(3).sum()))

    assert weightless(picky)(ATOM).weight.shape == (3, 2)


def test_training_costs_three_forward_passes():
    assert training_macs(5, images=4) == 60


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
            got = cut(self.net, self.layout, weights, covering(job.parts))
            yield Update(job.round, job.client, job.parts, got, 1, {"loss": 0.0})


@pytest.mark.parametrize("norm", ["post", "tracked"])
@pytest.mark.parametrize("name", METHODS)
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
        make_config({**SETTINGS, "batch": 6, "epochs": 2, "norm": "tracked"}, own=["task"]), task=stripes_task()
    )
    account = account_of(setup)
    assert (account.batch, account.epochs, account.norm, account.image) == (6, 2, "tracked", setup.image)
    total = sum(run_costs(account, profiles_of(setup), setup.how).values(), Spent())
    assert total.jobs == setup.how.rounds * len(setup.task.shards)


# --- which data reached which parameters --------------------------------------------------------------------------


def held_by_hand(method, parts):
    """Parameters that a merge of these parts changes, by changing them."""
    net, layout = Net(Tiny), method.layout
    zeros = {name: torch.zeros_like(value) for name, value in net.init(layout, seed=0).items()}
    for part in parts:
        shapes = {name: net.shapes(part.width)[name] for name in zeros}
        ones = {name: torch.ones(1, *shape) for name, shape in shapes.items()}
        zeros = merge(net, layout, zeros, [Update(0, 0, (part,), ones, samples=1)])
    return sum(int(value.count_nonzero()) for value in zeros.values())


@pytest.mark.parametrize("name", METHODS)
def test_coverage_counts_the_entries_that_updates_changed(name):
    account, how = tiny(name), Federation(4, cohort=3, seed=1)
    found = coverage(account, ToyClients().profiles, how, dict.fromkeys(range(4), "all"))
    size = account.method.layout.count * TINY[account.method.layout.width]
    held = {client: set() for client in range(4)}
    for profile, parts in replay(account.method, ToyClients().profiles, how):
        held[profile.client] |= set(covering(parts))
    by_hand = {client: held_by_hand(account.method, parts) / size for client, parts in held.items()}
    assert found.clients == pytest.approx(by_hand)
    assert found.domains == pytest.approx({"all": held_by_hand(account.method, set().union(*held.values())) / size})


def test_nested_windows_leave_the_outer_rings_to_strong_clients():
    domains = dict(enumerate(["weak", "weak", "half", "full"]))
    found = coverage(tiny("heterofl"), ToyClients().profiles, Federation(9), domains)
    assert found.slices == ("1/4", "1/2", "1")
    assert found.reached == {"weak": (1, 0, 0), "half": (1, 1, 0), "full": (1, 1, 1)}
    assert found.domains == pytest.approx({"weak": 75 / 723, "half": 219 / 723, "full": 1})


def test_every_domain_reaches_every_base_of_split_mix():
    domains = dict(enumerate(["weak", "weak", "half", "full"]))
    found = coverage(tiny("splitmix"), ToyClients().profiles, Federation(20), domains)
    assert found.slices == ("base 0", "base 1", "base 2", "base 3")
    assert set(found.domains.values()) == {1.0}


def test_rolling_windows_reach_all_channels_but_not_all_pairs_of_them():
    account = replace(tiny("fedrolex"), method=FedRolex((ATOM, FULL)))
    found = coverage(account, lambda round: [Profile(0, ATOM, samples=1)], Federation(8), {0: "weak"})
    # of 8 x 8 pairs of channels in fc1, windows of 2 x 2 along the diagonal hold 3 in each row
    assert found.clients[0] == (723 - 9 * 8 * 5) / 723


windows = st.lists(st.tuples(st.sampled_from([Width(n, 8) for n in range(1, 8)]), st.integers(0, 20)), max_size=6)


@settings(max_examples=40, deadline=None)
@given(windows, st.sampled_from([Width(1, 8), HALF, FULL]))
def test_the_union_of_windows_is_that_of_their_entries(drawn, within):
    net, parts = Net(Tiny), [Part(0, width, shift) for width, shift in drawn]
    masks = {name: torch.zeros(net.shapes(FULL)[name], dtype=torch.bool) for name in net.parameter_names(FULL)}
    for part in parts:
        for name, axes in windows_of(net, FULL, part).items():
            if name in masks:
                rows = [torch.arange(n)[axis] for n, axis in zip(masks[name].shape, axes, strict=True)]
                masks[name][torch.meshgrid(*rows, indexing="ij")] = True
    inner = {name: tuple(slice(n) for n in net.shapes(within)[name]) for name in masks}
    assert union_size(net, FULL, parts, within) == sum(int(masks[name][inner[name]].sum()) for name in masks)


def test_slices_add_up_to_the_whole_net():
    method = find_method("heterofl", SETTING)
    assert trained(Net(Tiny), method.layout, [Part(0, FULL)]) == {"1/4": 75, "1/2": 219 - 75, "1": 723 - 219}


# --- the command --------------------------------------------------------------------------------------------------


def told(capsys, *arguments):
    main(["cost", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_without_a_method_the_json_is_a_list_of_widths(capsys):
    rows = told(capsys, "digit", "--width", "1/8", "--budgets", "1/8", "--batch", "16")
    assert rows == [
        {
            **{"width": "1/8", "bases": 1, "parameters": 224194, "macs": 1158528, "activations": 17898},
            **{"single_parameters": 224194, "single_macs": 1158528},
        }
    ]


def test_with_a_method_the_json_tells_widths_and_clients(capsys):
    found = told(capsys, "digit", "--method", "heterofl", "--budgets", "1/8", "1/4", "--batch", "16")
    assert (found["net"], found["method"], found["atom"], found["batch"]) == ("digit", "heterofl", "1/8", 16)
    assert [row["width"] for row in found["widths"]] == ["1/8", "1/4"]
    assert found["widths"][1] == {
        "width": "1/4",
        "parts": 1,
        "parameters": 892154,
        "macs": 3692032,
        "activations": 35786,
    }
    narrow = found["clients"][0]
    assert narrow == {
        **{"budget": "1/8", "trains": "1/8", "forward": 1158528, "macs": 3 * 16 * 1158528},
        **{"memory": 4 * (3 * 224194 + 16 * 17898), "down": 224194, "up": 224194},
    }


def test_a_method_may_have_settings(capsys):
    found = told(capsys, "digit", "--method", '{name="fedavg", width="1/4", mode="strict"}', "--width", "1/4")
    assert [row["trains"] for row in found["clients"]] == ["nothing", "1/4", "1/4", "1/4"]


def test_people_see_both_tables(capsys):
    main(["cost", "digit", "--width", "1/8", "--budgets", "1/8 1"])
    shown = capsys.readouterr().out
    assert "parameters of one net" in shown
    assert "A client's round under SplitMix" in shown
    assert "8 x 1/8" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--method", "hetrofl"), "did you mean 'heterofl'?"),
        (("--method", "heterofl", "--width", "3/8"), "width 3/8 was never trained; choose one of 1/8, 1/4, 1/2, 1"),
        (("--budgets", "3/16"), "the atom 1/8 does not divide the budget 3/16"),
        (("--budgets", "exponentail"), "did you mean 'exponential'?"),
        (("--batch", "1"), "batch 1 is too small"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, arguments, sentence):
    with pytest.raises(SystemExit):
        main(["cost", "digit", *arguments])
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_budgets_are_those_of_the_paper_that_hold_whole_atoms():
    assert budgets_for("", Width(1, 8)) == EIGHTHS
    assert budgets_for("", Width(1, 3)) == (FULL,)
    assert budgets_for("", Width(3, 8)) == (Width(3, 8),)
    assert budgets_for("skewed-8111", Width(1, 8)) == (Width(1, 8), FULL)
