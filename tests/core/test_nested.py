"""Nets nested in a wider one have norm statistics of their own."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from helpers.toys import ATOM, FULL, HALF, Tiny, ToyClients, toy_simulator
from splitmix.core.admission import Admission
from splitmix.core.client import nested_statistics, part_logits
from splitmix.core.net import Net
from splitmix.core.parts import cut, merge
from splitmix.core.score import ask, calibrate
from splitmix.core.types import Calibrate, Layout, Part, Plan, Question, Train, at_width

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


def test_a_download_holds_the_statistics_of_the_widths_that_are_asked_for(calibrated):
    download = cut(NET, NESTED, calibrated, [Part(0, HALF), Part(0, ATOM)])
    assert torch.equal(download[STATISTIC], calibrated[at_width(HALF, STATISTIC)])
    assert torch.equal(download[at_width(ATOM, STATISTIC)], calibrated[at_width(ATOM, STATISTIC)])
    assert not [name for name in cut(NET, NESTED, calibrated, [Part(0, HALF)]) if ":" in name]


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


def test_a_client_measures_each_width_among_the_parts():
    split = CLIENTS.data(0).train
    found = nested_statistics(Calibrate(0, (Part(0, ATOM), Part(0, HALF)), batch=8), NET, alone(HALF)[1], split)
    names = NET.statistic_names(HALF)
    assert found.keys() == names | {at_width(ATOM, name) for name in names}


# --- tracked norms ---

TRACKED = NET.init(NESTED, seed=4, tracked=True)


def one_round(parts, *, weights=TRACKED, layout=NESTED, client=2, **plan):
    """The weights after one client trained these parts."""
    engine = toy_simulator(CLIENTS, net=NET, layout=layout)
    asked = Train(0, client, parts, Plan(batch=8, **plan), seed=0)
    admission = Admission(NET, layout, weights, CLIENTS.profiles(0))
    after = merge(NET, layout, weights, admission.admitted([asked], engine.run(weights, [asked])))
    assert admission.seen.accepted == [client]
    return after


@pytest.mark.parametrize("width", [ATOM, HALF, FULL])
def test_a_width_that_is_trained_beside_others_tracks_what_it_tracks_alone(width):
    """At rate 0 nets stay as they are, and a batch counts once for each width, not once for each net around it."""
    together = one_round(tuple(part for (part,) in MIXES), lr=1e-30, weight_decay=0)
    single = one_round((Part(0, width),), lr=1e-30, weight_decay=0)
    for name in NET.statistic_names(width):
        kept = name if width == FULL else at_width(width, name)
        assert_close(together[kept], single[kept])
        assert not torch.equal(single[kept], TRACKED[kept])


def test_training_a_width_leaves_the_statistics_of_all_others_alone():
    after = one_round((Part(0, HALF),))
    moved = {name for name in TRACKED if "running" in name and not torch.equal(after[name], TRACKED[name])}
    assert moved == {at_width(HALF, name) for name in NET.statistic_names(HALF)}


def test_statistics_of_a_width_are_averaged_over_those_who_trained_that_width():
    engine = toy_simulator(CLIENTS, net=NET, layout=NESTED)
    jobs = [
        Train(0, c, parts, Plan(batch=8), seed=0)
        for c, parts in ((0, MIXES[0]), (1, MIXES[0] + MIXES[1]), (2, MIXES[2]))
    ]
    updates = list(engine.run(TRACKED, jobs))
    own, name = at_width(ATOM, STATISTIC), STATISTIC
    after = merge(NET, NESTED, TRACKED, updates)
    assert_close(after[own], (24 * updates[0].weights[name] + 16 * updates[1].weights[own]) / 40)
    assert_close(after[name], updates[2].weights[name])


def test_moving_windows_keep_the_statistics_of_a_width_by_channel():
    layout = replace(NESTED, moving=True)
    weights = NET.init(layout, seed=4, tracked=True)
    after = one_round((Part(0, ATOM, shift=7),), weights=weights, layout=layout)  # two of eight channels: 7 and 0
    own = at_width(ATOM, STATISTIC)
    assert (after[own] != weights[own])[0].tolist() == [True] + 6 * [False] + [True]
    assert torch.equal(after[STATISTIC], weights[STATISTIC])
    served = part_logits(
        NET, cut(NET, layout, after, [Part(0, HALF), Part(0, ATOM)]), MIXES[:1], torch.rand(5, 1, 6, 6)
    )
    assert served[Part(0, ATOM)].isfinite().all()
    assert torch.equal(cut(NET, layout, after, [Part(0, ATOM, shift=7)])[STATISTIC][0], after[own][0, [7, 0]])


def test_weights_of_before_serve_nested_widths_with_the_statistics_of_the_whole():
    shared = {name: value for name, value in TRACKED.items() if ":" not in name}
    after = one_round((Part(0, HALF),), weights=shared)
    assert (after[STATISTIC] != shared[STATISTIC])[0].tolist() == 4 * [True] + 4 * [False]
