"""Nets nested in a wider one have norm statistics of their own."""

import pytest
import torch
from torch.testing import assert_close

from helpers.toys import ATOM, FULL, HALF, Tiny, ToyClients, to_bytes, toy_simulator
from splitmix.core.client import nested_statistics, part_logits
from splitmix.core.net import Net
from splitmix.core.parts import cut, merge
from splitmix.core.score import ask, calibrate
from splitmix.core.types import Layout, Part, Plan, Question, Train, at_width

NET = Net(Tiny)
NESTED = Layout(1, FULL, nested=(ATOM, HALF))
WEIGHTS = NET.init(NESTED, seed=4)
CLIENTS = ToyClients(sizes=(24, 16, 32, 20))
MIXES = tuple((Part(0, width),) for width in (ATOM, HALF, FULL))
STATISTIC = "norm2.clean.running_var"


def alone(width):
    """The narrow net by itself: its layout, its weights and an engine for it."""
    layout = Layout(1, width)
    return layout, cut(NET, NESTED, WEIGHTS, [Part(0, width)]), toy_simulator(CLIENTS, net=NET, layout=layout)


@pytest.fixture(scope="module")
def calibrated():
    engine = toy_simulator(CLIENTS, net=NET, layout=NESTED)
    return {**WEIGHTS, **calibrate(engine, NET, NESTED, WEIGHTS, range(4), batch=8)}


@pytest.mark.parametrize("width", [ATOM, HALF, FULL])
def test_calibrating_all_widths_together_equals_calibrating_each_alone(calibrated, width):
    layout, weights, engine = alone(width)
    expected = calibrate(engine, NET, layout, weights, range(4), batch=8)
    found = cut(NET, NESTED, calibrated, [Part(0, width)])
    assert {name: found[name] for name in expected}.keys() == NET.statistic_names(width)
    for name, value in expected.items():
        assert_close(found[name], value)


def test_the_statistics_of_a_narrow_net_are_not_those_of_the_window(calibrated):
    own, whole = calibrated[at_width(ATOM, STATISTIC)], calibrated[STATISTIC]
    assert not torch.allclose(own, whole[:, : own.shape[1]], rtol=0.05)


@pytest.mark.parametrize("norm", ["stored", "client"])
def test_nested_widths_score_as_they_do_alone(calibrated, norm):
    engine = toy_simulator(CLIENTS, net=NET, layout=NESTED)
    together = ask(engine, calibrated, MIXES, range(4), Question(norm=norm))
    for place, (part,) in enumerate(MIXES):
        layout, _, own_engine = alone(part.width)
        weights = cut(NET, NESTED, calibrated, [part])
        single = ask(own_engine, weights, [(part,)], range(4), Question(norm=norm))
        assert layout.width == part.width
        assert [tally.correct[place] for tally in together] == [tally.correct[0] for tally in single]


def test_a_download_holds_the_statistics_of_what_is_nested_in_it(calibrated):
    download = cut(NET, NESTED, calibrated, [Part(0, HALF)])
    assert torch.equal(download[STATISTIC], calibrated[at_width(HALF, STATISTIC)])
    assert at_width(ATOM, STATISTIC) in download
    assert at_width(HALF, STATISTIC) not in download


def test_each_width_answers_with_its_own_statistics(calibrated):
    x = torch.rand(5, 1, 6, 6)
    logits = part_logits(NET, calibrated, MIXES, x)
    for (part,) in MIXES:
        expected = NET.run(part.width, cut(NET, NESTED, calibrated, [part]), x)[0]
        assert_close(logits[part], expected)


def test_without_statistics_of_the_whole_net_those_of_nested_widths_are_not_used(calibrated):
    bare = {name: value for name, value in calibrated.items() if name not in NET.statistic_names(FULL)}
    x = torch.rand(5, 1, 6, 6)
    assert_close(part_logits(NET, bare, MIXES, x), part_logits(NET, WEIGHTS, MIXES, x))


def test_training_from_calibrated_weights_leaves_the_statistics_of_nested_widths_alone(calibrated):
    engine = toy_simulator(CLIENTS, net=NET, layout=NESTED)
    job = Train(0, 2, (Part(0, HALF),), Plan(batch=8), seed=0)
    after = merge(NET, NESTED, calibrated, engine.run(calibrated, [job]))
    nested = {name: value for name, value in calibrated.items() if ":" in name}
    assert nested
    assert to_bytes({name: after[name] for name in nested}) == to_bytes(nested)


def test_a_client_measures_each_width_among_the_parts():
    split = CLIENTS.data(0).train
    found = nested_statistics(NET, [Part(0, ATOM), Part(0, HALF)], alone(HALF)[1], split, batch=8)
    names = NET.statistic_names(HALF)
    assert found.keys() == names | {at_width(ATOM, name) for name in names}
