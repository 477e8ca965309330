"""Accuracy of every width, and the order in which bases are mixed."""

from collections import defaultdict
from functools import partial

import pytest
import torch
from torch import Tensor

from helpers.toys import (
    ATOM,
    FULL,
    HALF,
    LAYOUT,
    METHOD,
    Tiny,
    ToyClients,
    bases,
    to_bytes,
    toy_federation,
    toy_simulator,
    toy_weights,
)
from splitmix.attacks.pgd import PGD
from splitmix.core.client import execute, mixed, nested_statistics, statistics, touched, with_untrained_bases
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.rounds import federate
from splitmix.core.score import calibrate, fit_times, order_bases, score
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


# Under attack

ATTACK = PGD(eps=0.15, steps=5, step=0.05)
WIDTHS = {ATOM: bases(2), FULL: bases(2, 0, 3, 1)}


def dual(width):
    return Tiny(width, dual=True)


@pytest.fixture(scope="module")
def turned():
    """An engine of nets with a dial, and weights whose two norms differ."""
    engine = toy_simulator(net=Net(dual))
    weights = federate(METHOD, engine, engine.net, toy_weights(engine.net, tracked=True), toy_federation(rounds=6))
    noisy = {n.replace("clean", "noisy"): v for n, v in weights.items() if "clean" in n}
    rng = torch.Generator().manual_seed(0)
    return engine, weights | {n: v * (1 + 0.3 * torch.rand(v.shape, generator=rng)) for n, v in noisy.items()}


def asked(engine, weights, mixes=WIDTHS, **question):
    return [row.clients for row in score(engine, weights, mixes, DOMAINS, Question(**question))]


class Spy:
    """An attack that looks at the model it is to attack, and leaves the images alone."""

    name, weak = "spy", True

    def __init__(self):
        self.saw: list[Tensor] = []

    def __call__(self, predict, x, y, rng):
        self.saw.append(predict(x))
        return x


def test_an_attack_takes_right_answers_away(turned):
    engine, weights = turned
    clean, attacked = asked(engine, weights), asked(engine, weights, attack=ATTACK)
    assert all(
        a <= c for before, after in zip(clean, attacked, strict=True) for c, a in zip(before, after, strict=True)
    )
    assert sum(map(sum, attacked)) < sum(map(sum, clean))


@pytest.mark.parametrize("robust", [0.0, 0.3, 1.0])
def test_the_mix_that_is_served_is_attacked_at_its_very_dial(turned, robust):
    engine, weights = turned
    spy, parts = Spy(), bases(2, 0)
    download = cut(engine.net, LAYOUT, weights, parts)
    job = Score(0, (parts[:1], parts), Question(robust=robust, attack=spy))
    execute(job, engine.net, download, data := ToyClients().data(0), None, {})
    x, y = data.test.batch(torch.arange(len(data.test)))
    for mix, saw in zip(job.mixes, spy.saw, strict=True):
        logits = engine.net.run(ATOM, cut(engine.net, LAYOUT, weights, mix), x, robust).mean(0)
        right = logits.argmax(-1) == y  # what is misread anyway needs no attack
        torch.testing.assert_close(saw, logits[right])
        assert right.any()


def test_each_mix_is_attacked_as_if_it_were_alone(turned):
    engine, weights = turned
    together = asked(engine, weights, attack=ATTACK, robust=0.5)
    assert together == [asked(engine, weights, {w: mix}, attack=ATTACK, robust=0.5)[0] for w, mix in WIDTHS.items()]


def test_the_number_of_workers_does_not_matter_to_an_attack(turned):
    engine, weights = turned
    question = {"attack": ATTACK, "robust": 0.5, "images": 5, "seed": 7}
    with toy_simulator(net=Net(dual), workers=2) as pool:
        assert asked(pool, weights, **question) == asked(engine, weights, **question)


def test_images_are_drawn_by_the_seed(turned):
    engine, weights = turned
    whole = [row.samples for row in engine.run(weights, [Score(c, (bases(0),)) for c in range(4)])]
    some = [row.samples for row in engine.run(weights, [Score(c, (bases(0),), Question(images=9)) for c in range(4)])]
    assert some == [min(9, samples) for samples in whole]
    draws = [asked(engine, weights, images=4, seed=seed) for seed in range(8)]
    assert draws[0] == asked(engine, weights, images=4, seed=0)
    assert any(draw != draws[0] for draw in draws)


def test_a_black_box_attack_knows_only_its_surrogate(turned):
    engine, weights = turned
    spy, parts = Spy(), bases(2, 0)
    job = Score(0, (bases(2),), Question(robust=0.0, attack=spy, surrogate=(bases(0), 1.0)))
    execute(job, engine.net, cut(engine.net, LAYOUT, weights, parts), data := ToyClients().data(0), None, {})
    x, y = data.test.batch(torch.arange(len(data.test)))
    known = mixed(engine.net, bases(0), cut(engine.net, LAYOUT, weights, bases(0)), bases(0), 1.0)
    right = engine.net.run(ATOM, cut(engine.net, LAYOUT, weights, bases(2)), x)[0].argmax(-1) == y
    torch.testing.assert_close(spy.saw[0], known(x[right]))


def test_an_attack_needs_fixed_statistics(trained):
    engine, weights = trained
    with pytest.raises(UserError, match="an attack needs fixed norm statistics"):
        asked(engine, weights, attack=ATTACK)
    assert asked(engine, weights, attack=ATTACK, norm="client")


def test_noisy_norms_are_not_calibrated_on_clean_images(turned):
    engine, weights = turned
    with pytest.raises(UserError, match="noisy norms cannot be calibrated on clean images"):
        calibrate(engine, engine.net, LAYOUT, weights, range(4), batch=8)


@pytest.mark.parametrize("tracked", [True, False])
def test_clean_norms_are_calibrated_on_clean_images_and_noisy_ones_on_attacked_images(turned, tracked):
    engine, weights = turned
    weights = {name: value for name, value in weights.items() if tracked or "running" not in name}
    clean, noisy = (partial(by_twin, twin) for twin in (".clean.", ".noisy."))
    nothing, much = (
        calibrate(engine, engine.net, LAYOUT, weights, range(4), 8, PGD(eps=eps, random_start=False))
        for eps in (0.0, 0.1)
    )
    assert to_bytes(clean(nothing)) == to_bytes(clean(much))
    assert all(not torch.equal(value, noisy(much)[name]) for name, value in noisy(nothing).items())
    first = {name.replace("noisy", "clean"): value for name, value in noisy(nothing).items() if "norm1" in name}
    torch.testing.assert_close(first, {name: clean(nothing)[name] for name in first})  # they see the same images


def by_twin(twin, statistics):
    return {name: value for name, value in statistics.items() if twin in name}


@pytest.mark.parametrize(
    ("robust", "measured"), [(0.0, [".clean."]), (1.0, [".noisy."]), (0.3, [".clean.", ".noisy."])]
)
def test_a_client_calibrates_the_norms_that_the_dial_touches(turned, robust, measured):
    engine, weights = turned
    data, download = ToyClients().data(2), cut(engine.net, LAYOUT, weights, bases(0, 1))
    asked = Question(robust=robust, norm="client", noise=ATTACK)
    found = nested_statistics(Calibrate(2, bases(0, 1), 8, touched(asked), ATTACK), engine.net, download, data.train)
    assert found.keys() == {name for name in engine.net.statistic_names(ATOM) if any(twin in name for twin in measured)}


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
