"""Accuracy of every width, and the order in which bases are mixed."""

from collections import defaultdict
from functools import partial

import pytest
import torch

from helpers.toys import (
    ATOM,
    FULL,
    HALF,
    LAYOUT,
    METHOD,
    Tiny,
    ToyClients,
    bases,
    toy_federation,
    toy_simulator,
    toy_weights,
)
from splitmix.core.client import execute, statistics, with_untrained_bases
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.rounds import federate
from splitmix.core.score import fit_times, order_bases, score
from splitmix.core.types import Calibrate, Missing, Question, Score, Tally

DOMAINS = {0: "a", 1: "a", 2: "b", 3: "b"}
MIXES = {width: METHOD.compose(width) for width in METHOD.widths}


class Table:
    """An engine whose clients have 10 images each; how many answers of a mix are right stands in a table."""

    def __init__(self, *clients):
        self.clients, self.asked = clients, []

    def run(self, weights, jobs):
        self.asked += [job.mixes for job in jobs]
        for job in jobs:
            right = self.clients[job.client]
            yield Tally(job.client, tuple(right["".join(str(p.base) for p in mix)] for mix in job.mixes), samples=10)


class Sizes:
    """An engine whose clients have these right answers out of these samples."""

    def __init__(self, *tallies):
        self.tallies = tallies

    def run(self, weights, jobs):
        return [Tally(job.client, *self.tallies[job.client]) for job in jobs]


class Halves:
    """An engine whose only client has so many right answers more, in each half, for each time that base 1 counts."""

    def __init__(self, first, second):
        self.more = {1: first, 2: second}

    def run(self, weights, jobs):
        for job in jobs:
            times = [[part.base for part in mix].count(1) for mix in job.mixes]
            yield Tally(0, tuple(50 + self.more[job.question.half] * min(count, 3) for count in times), samples=100)


@pytest.mark.parametrize(
    ("first", "second", "times"),
    [(5, 5, {HALF: (1, 3), FULL: (1, 3, 1, 1)}), (5, -5, {}), (5, 0, {}), (0, 5, {}), (-5, 5, {})],
)
def test_a_base_counts_more_often_where_that_helps_on_both_halves_of_the_images(first, second, times):
    mixes = {ATOM: bases(0), HALF: bases(0, 1), FULL: bases(0, 1, 2, 3)}
    assert fit_times(Halves(first, second), {}, mixes, [0], Question("val")) == times


@pytest.fixture(scope="module")
def trained():
    engine = toy_simulator()
    return engine, federate(METHOD, engine, engine.net, toy_weights(), toy_federation(rounds=4, cohort=None))


@pytest.mark.parametrize("norm", ["stored", "client"])
def test_all_widths_scored_together_score_as_each_by_itself(trained, norm):
    engine, weights = trained
    together = score(engine, weights, MIXES, DOMAINS, Question(norm=norm))
    alone = [score(engine, weights, {width: mix}, DOMAINS, Question(norm=norm))[0] for width, mix in MIXES.items()]
    assert together == alone
    assert [row.width for row in together] == [ATOM, HALF, ATOM * 3, FULL]
    assert together[-1].accuracy > 0.6  # better than guessing one class of three


def test_the_mean_over_clients_is_not_the_mean_over_samples():
    (row,) = score(Sizes(((1,), 2), ((6,), 8)), {}, {ATOM: bases(0)}, {0: "a", 1: "b"}, Question())
    assert row.accuracy == pytest.approx((1 / 2 + 6 / 8) / 2)
    assert row.pooled == pytest.approx(7 / 10)
    assert row.clients == (1 / 2, 6 / 8)


def test_each_domain_is_the_mean_over_its_clients():
    engine = Sizes(((1,), 2), ((6,), 8), ((0,), 5), ((4,), 4))
    (row,) = score(engine, {}, {ATOM: bases(0)}, DOMAINS, Question())
    assert row.domains == {"a": pytest.approx(0.625), "b": pytest.approx(0.5)}


def test_a_client_without_samples_is_left_out():
    (row,) = score(Sizes(((1,), 2), ((0,), 0)), {}, {ATOM: bases(0)}, {0: "a", 1: "b"}, Question())
    assert (row.accuracy, row.pooled, row.domains) == (0.5, 0.5, {"a": 0.5})


def test_only_the_named_clients_are_asked():
    (row,) = score(Sizes(((1,), 2), ((0,), 5)), {}, {ATOM: bases(0)}, {0: "a"}, Question())
    assert row.clients == (0.5,)


@pytest.mark.parametrize("dual", [False, True])
def test_with_local_norms_a_base_that_a_client_never_trained_is_calibrated_there(dual):
    net, data, parts = Net(partial(Tiny, dual=dual)), ToyClients().data(2), bases(0, 1)
    weights = cut(net, LAYOUT, net.init(LAYOUT, seed=0, tracked=True), parts)
    job = Score(2, (parts,), Question(batch=8))
    served = with_untrained_bases(job, net, weights, data.train, {0: {}})  # it trained base 0
    found = statistics(Calibrate(0, parts, 8, (0.0, 1.0)), net, ATOM, weights, data.train)
    for name in net.statistic_names(ATOM):
        torch.testing.assert_close(served[name], torch.stack([weights[name][0], found[name][1]]))


def test_local_norms_of_strange_bases_answer_as_calibrated_ones():
    net, data = Net(Tiny), ToyClients().data(2)
    download = cut(net, LAYOUT, toy_weights(tracked=True), bases(1, 2))
    asked = [
        Score(2, (bases(1, 2),), Question("train", batch=8, **how))
        for how in ({"local_norms": True}, {"norm": "client"})
    ]
    strange, calibrated = (execute(job, net, download, data, None, {}) for job in asked)
    assert strange == calibrated
    assert strange != execute(Score(2, (bases(1, 2),), Question("train", batch=8)), net, download, data, None, {})


def test_a_score_names_its_width_and_counts_its_bases():
    rows = score(Sizes(((1, 2), 2)), {}, {ATOM: bases(2), HALF: bases(2, 0)}, {0: "a"}, Question())
    assert [(row.width, row.bases, row.accuracy) for row in rows] == [(ATOM, 1, 0.5), (HALF, 2, 1.0)]


# base 1 is the best alone; 0 adds more to it than 2 does, though 2 is better alone
RIGHT = {"0": 5, "1": 7, "2": 6, "01": 9, "12": 8, "02": 10}


def test_the_greedy_order_takes_the_best_base_and_then_what_complements_it():
    order = order_bases(Table(RIGHT), {}, bases(0, 1, 2), [0], Question(), greedy=True)
    assert order == (1, 0, 2)


def test_the_validation_order_sorts_bases_by_their_own_accuracy():
    order = order_bases(Table(RIGHT), {}, bases(0, 1, 2), [0], Question(), greedy=False)
    assert order == (1, 2, 0)


def test_the_mixes_of_few_bases_are_all_counted_in_one_pass():
    engine = Table(RIGHT)
    order_bases(engine, {}, bases(0, 1, 2), [0], Question(), greedy=True)
    assert engine.asked == [(bases(0), bases(1), bases(2), bases(0, 1), bases(0, 2), bases(1, 2))]


def test_those_of_many_bases_are_counted_step_by_step():
    engine = Table(defaultdict(int))
    order = order_bases(engine, {}, bases(*range(9)), [0], Question(), greedy=True)
    assert order == tuple(range(9))
    assert [len(mixes) for mixes in engine.asked] == [9, 8, 7, 6, 5, 4, 3, 2]


@pytest.mark.parametrize("greedy", [True, False])
def test_among_equals_the_lower_number_comes_first(greedy):
    even = dict.fromkeys(("0", "1", "2", "01", "02", "12"), 5)
    assert order_bases(Table(even), {}, bases(0, 1, 2), [0], Question(), greedy=greedy) == (0, 1, 2)


def test_clients_count_alike_when_bases_are_ordered():
    one, other = {"0": 9, "1": 4}, {"0": 1, "1": 7}
    assert order_bases(Table(one, other), {}, bases(0, 1), [0, 1], Question(), greedy=False) == (1, 0)
    assert order_bases(Table(one, other), {}, bases(0, 1), [0], Question(), greedy=False) == (0, 1)


def test_an_order_is_found_on_the_split_that_the_question_names(trained):
    engine, weights = trained
    order = order_bases(engine, weights, bases(0, 1, 2, 3), range(4), Question(split="val"), greedy=True)
    (first,) = score(engine, weights, {ATOM: bases(order[0])}, DOMAINS, Question(split="val"))
    others = score(engine, weights, {ATOM * i: bases(i) for i in range(4)}, DOMAINS, Question(split="val"))
    assert first.accuracy == max(row.accuracy for row in others)


def test_a_client_that_does_not_answer_is_left_out():
    class Lossy(Sizes):
        def run(self, weights, jobs):
            return [
                Missing(1, "late") if job.client == 1 else answer
                for job, answer in zip(jobs, super().run(weights, jobs), strict=True)
            ]

    (row,) = score(Lossy(((1,), 2), ((0,), 4)), {}, {ATOM: bases(0)}, {0: "a", 1: "b"}, Question())
    assert row.clients == (0.5,)


class Silent:
    """An engine whose clients do not come."""

    def run(self, weights, jobs):
        return (Missing(job.client, "not connected") for job in jobs)


def test_where_no_client_answers_it_is_not_the_images_that_are_too_few():
    with pytest.raises(UserError, match="no client answered in time"):
        score(Silent(), {}, {ATOM: bases(2)}, {0: "a"}, Question())
