"""The contract of a method: whatever stands in the table of methods passes all of this by being listed."""

import json
import runpy
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from helpers.runs import LEVERS
from helpers.small_task import SETTINGS, small_task
from helpers.toys import ATOM, FULL, HALF, Tiny, ToyClients, to_bytes, toy_simulator
from splitmix.core.client import all_parts, execute
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import covering, cut, merge
from splitmix.core.rounds import Federation, federate
from splitmix.core.types import Part, Plan, Profile, Setting, Train, Update
from splitmix.core.width import Width
from splitmix.engines.simulator import Simulator
from splitmix.methods import METHODS, find_method
from splitmix.objectives.losses import Plain
from splitmix.runs.config import make_config
from splitmix.runs.finish import finish
from splitmix.runs.progress import Watcher
from splitmix.runs.run import train_rounds
from splitmix.runs.setup import set_up

EXAMPLE = Path(__file__).parents[2] / "examples" / "add_a_method.py"
SETTING = Setting(ATOM, (ATOM, HALF, FULL), seed=3, rounds=2)
COHORT = ToyClients().profiles(0)
PLAN = Plan(lr=0.1, batch=8)


@pytest.fixture(params=[*METHODS, pytest.param(LEVERS, id="splitmix with levers")])
def method(request):
    return find_method(request.param, SETTING)


def simulator(method, *, workers=1):
    return toy_simulator(workers=workers, objective=method.objective(Plain()), layout=method.layout)


def trained(method, engine, *, rounds=2, weights=None, **settings):
    net = Net(Tiny)
    start = net.init(method.layout, seed=5, tracked=True) if weights is None else weights
    return federate(method, engine, net, start, Federation(rounds, PLAN, cohort=3, seed=2), **settings)


def test_no_client_trains_more_than_its_budget_unless_the_method_says_so(method):
    assigned = [method.assign(round, COHORT) for round in range(6)]
    fits = [
        sum(part.width for part in covering(parts)) <= COHORT[client].budget
        for parts_of_clients in assigned
        for client, parts in parts_of_clients.items()
        if parts
    ]
    assert fits
    assert all(fits) or not method.respects_budgets


def test_the_same_round_and_cohort_give_the_same_parts(method):
    first = [dict(method.assign(round, COHORT)) for round in range(4)]
    again = [dict(replace(method).assign(round, tuple(COHORT))) for round in (3, 2, 1, 0)]
    assert first == again[::-1]
    assert list(first[0]) == [profile.client for profile in COHORT]


def test_every_part_fits_the_layout(method):
    net, layout = Net(Tiny), method.layout
    weights = net.init(layout, seed=0)
    mixes = [method.compose(width) for width in method.widths]
    jobs = [parts for round in (0, 1, 37) for parts in method.assign(round, COHORT).values() if parts]
    for parts in (*mixes, *jobs):
        assert all(0 <= part.base < layout.count and part.width <= layout.width for part in parts)
        shapes = {name: shape for name, shape in net.shapes(covering(parts)[0].width).items() if name in weights}
        assert {name: value.shape[1:] for name, value in cut(net, layout, weights, covering(parts)).items()} == shapes


def test_widths_ascend_and_each_of_them_is_served_by_parts_of_that_width_together(method):
    assert list(method.widths) == sorted(set(method.widths))
    for width in method.widths:
        assert sum(part.width for part in method.compose(width)) == width


def test_the_layout_names_the_widths_that_have_statistics_of_their_own(method):
    served = {part.width for width in method.widths for part in method.compose(width)}
    assert served == {method.layout.width, *method.layout.nested}


def test_a_width_that_was_never_trained_is_refused_in_one_sentence(method):
    with pytest.raises(UserError, match=r"^width 3/16 [^;]*; choose one of [^;]*$"):
        method.compose(Width(3, 16))


def test_entries_that_nobody_held_keep_their_value(method):
    net, layout = Net(Tiny), method.layout
    weights = net.init(layout, seed=5)
    parts = method.assign(1, COHORT[2:3])[2]
    ones = {name: torch.ones_like(value) for name, value in cut(net, layout, weights, covering(parts)).items()}
    zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
    held = merge(net, layout, zeros, [Update(1, 2, parts, ones, samples=1)])
    after = merge(net, layout, weights, simulator(method).run(weights, [Train(1, 2, parts, PLAN, seed=0)]))
    for name, value in weights.items():
        assert torch.equal(after[name][held[name] == 0], value[held[name] == 0])
        assert not torch.equal(after[name][held[name] == 1], value[held[name] == 1])


@dataclass(frozen=True)
class Bytes:
    """An engine whose messages are bytes, both ways: JSON and safetensors."""

    simulator: Simulator

    def profiles(self, round):
        return self.simulator.profiles(round)

    def run(self, weights, jobs):
        net, layout = self.simulator.net, self.simulator.layout
        for job in jobs:
            told, download = unpacked(packed(job, cut(net, layout, weights, all_parts(job))))
            heard = Train(**{**told, "plan": Plan(**told["plan"])})
            data = self.simulator.clients.data(heard.client)
            answer = execute(heard, net, download, data, self.simulator.objective, {})
            said, upload = unpacked(packed(replace(answer, weights={}), answer.weights))
            yield Update(**{**said, "weights": upload})


def packed(record, tensors):
    return json.dumps(asdict(record), default=str).encode(), save(tensors)


def unpacked(message):
    record = json.loads(message[0])
    parts = tuple(Part(part["base"], Width(part["width"]), part["shift"]) for part in record["parts"])
    return {**record, "parts": parts}, load(message[1])


@pytest.mark.slow
def test_messages_that_pass_through_bytes_give_the_same_weights(method):
    direct = simulator(method)
    assert to_bytes(trained(method, direct)) == to_bytes(trained(method, Bytes(direct)))


@pytest.mark.slow
def test_two_workers_give_the_same_bytes_as_one(method):
    with simulator(method, workers=2) as pool:
        assert to_bytes(trained(method, pool)) == to_bytes(trained(method, simulator(method)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS, {**LEVERS, "fork": 0}])  # two channels alone learn too little to fork
def test_it_learns_a_task_from_end_to_end(name):
    """Chance is 1/3. The narrowest nets of a method may know less than its widest."""
    settings = {**SETTINGS, "method": name, "rounds": 10, "eval_every": 10, "order": "natural"}
    setup = set_up(make_config(settings, own=["task"]), task=small_task(rows=120))
    engine, losses = setup.engine(1), []
    watch = Watcher()
    watch.round = lambda row: losses.append(row["loss"])
    scores = finish(setup, engine, train_rounds(setup, engine, watchers=[watch])).result["scores"]
    assert losses[-1] < 0.7 * losses[0]
    for norm in ("client", "global", "batch"):
        accuracies = [row["accuracy"] for row in scores if row["norm"] == norm]
        assert accuracies[-1] > 0.85
        assert min(accuracies) > 0.4


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("hetrofl", "unknown method 'hetrofl'; did you mean 'heterofl'?"),
        ({"name": "fedavg", "mode": "strikt"}, "unknown mode of fedavg 'strikt'; did you mean 'strict'?"),
        ({"name": "fedavg", "width": "5/4"}, "width 5/4 is outside (0, 1]"),
        ({"name": "fjord", "share": 2}, "share 2 of fjord's distillation is outside [0, 1]; try 0.5"),
        ({"name": "fjord", "temperature": 0}, "temperature 0 of fjord's distillation is not positive; try 1"),
        ({"name": "splitmix", "draws": "anchord"}, "unknown draws of splitmix 'anchord'; did you mean 'anchored'?"),
        ({"name": "splitmix", "draws": []}, "unknown draws of splitmix '[]'"),
        ({"name": "splitmix", "mutual": -1}, "mutual -1 is no weight of distillation; give 0 for none, or try 0.2"),
        ({"name": "splitmix", "mutual": "much"}, "mutual 'much' is no weight of distillation"),
        ({"name": "splitmix", "mutual": True}, "mutual True is no weight of distillation"),
        ({"name": "splitmix", "fork": 1}, "fork 1 is no share of the rounds in [0, 1); give 0 for none, or try 0.2"),
        ({"name": "fedensemble", "fork": "half"}, "fork 'half' is no share of the rounds in [0, 1)"),
        ({"name": "heterofl", "colour": "red"}, "unknown setting of method heterofl 'colour'; Known: none"),
        ({"mode": "free"}, "a method needs a name"),
    ],
)
def test_a_mistake_in_a_method_is_one_sentence(given, sentence):
    with pytest.raises(UserError) as error:
        find_method(given, SETTING)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("name", ["splitmix", "fedensemble"])
def test_an_atom_must_divide_the_budgets(name):
    with pytest.raises(UserError, match=r"^the atom 1/4 does not divide the budget 3/8; choose atom 1/8, or"):
        find_method(name, Setting(ATOM, (ATOM, Width(3, 8)), seed=0))


@pytest.mark.parametrize("name", ["heterofl", "sheterofl", "fedrolex", "fjord"])
def test_a_client_below_the_narrowest_width_is_named(name):
    with pytest.raises(UserError, match=r"^client 7 has budget 1/8, below the narrowest width 1/4; give it"):
        find_method(name, SETTING).assign(0, [Profile(7, Width(1, 8), samples=10)])


def test_norms_that_stay_on_the_clients_are_refused_where_bases_start_from_one():
    config = make_config({**SETTINGS, "method": LEVERS, "norm": "local"}, own=["task"])
    with pytest.raises(UserError, match=r"^with norm 'local' the norms of base 0 stay on the clients, [^;]*; choose"):
        set_up(config, task=small_task())


def test_norms_that_stay_on_the_clients_are_refused_where_widths_are_nested():
    with pytest.raises(UserError, match=r"^norm 'local' needs parts of one width, but this method nests 4 widths"):
        set_up(make_config({"task": "mini", "method": "heterofl", "norm": "local"}))


@pytest.mark.slow
def test_the_example_of_a_method_of_ones_own_trains_it_beside_a_listed_one(capsys, monkeypatch):
    monkeypatch.setattr("splitmix.methods.METHODS", dict(METHODS))
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["method", "heterofl", "randomwindow"]
    assert all(float(cell.rstrip("%")) > 30 for row in rows[1:] for cell in row[1:])  # chance is 10%


def test_a_class_that_lacks_what_a_round_asks_is_told_what_to_inherit_from(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", lambda setting: object())
    with pytest.raises(UserError, match=r"method mine lacks .* let its class inherit from splitmix.methods.Method"):
        find_method("mine", SETTING)
