"""Whole runs with one client that sends another kind of harm in each round; where all are honest, no bit changes."""

import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch

from helpers.answers import ATTACKER, FC, NET, Attacker, Tampered
from helpers.toys import ATOM, LAYOUT, METHOD, PLAN, ToyClients, bases, to_bytes, toy_simulator, toy_weights
from splitmix.core.parts import cut, merge
from splitmix.core.rounds import Federation, federate, make_jobs
from splitmix.core.score import Question, score
from splitmix.core.types import Missing
from splitmix.core.width import Width

CLIENTS = ToyClients((24, 20, 28, 16, 24, 32, 20, 24), (ATOM, ATOM, Width(1, 2), Width(1)) * 2)
TRICKS = (
    *("nan", "inf", "shape", "single", "extra", "less", "foreign", "many", "negative", "none"),
    *("far", "old", "twice", "oversized"),
)


def run_with(tamper, *, rounds, **settings):
    """The weights and the reports of a run whose answers are tampered with."""
    reports = []
    how = Federation(rounds, replace(PLAN, batch=8), seed=2, **{"clip": 5.0, **settings})
    engine = Tampered(tamper, toy_simulator(CLIENTS))
    weights = federate(METHOD, engine, engine.engine.net, toy_weights(), how, on_round=reports.append)
    return weights, reports


def absent(asked, got):
    return Missing(ATTACKER, "away") if asked.client == ATTACKER else got


def accuracy(weights):
    """Of the widest mix, on ninety images of each client."""
    many = toy_simulator(replace(CLIENTS, sizes=(90,) * 8))
    (scored,) = score(many, weights, {Width(1): bases(0, 1, 2, 3)}, dict.fromkeys(range(8), ""), Question())
    return scored.pooled


@pytest.fixture(scope="module")
def without():
    """The accuracy of a run that the attacker takes no part in."""
    return accuracy(run_with(absent, rounds=len(TRICKS))[0])


@pytest.mark.slow
def test_one_client_that_tries_everything_harms_nothing(without):
    attacked, reports = run_with(Attacker(TRICKS), rounds=len(TRICKS))
    assert without > 0.95
    assert abs(accuracy(attacked) - without) <= 0.01
    for trick, report in zip(TRICKS, reports, strict=True):
        assert len(report.seen.accepted) == 7 + (trick in ("far", "twice"))
        assert (ATTACKER in report.seen.clipped) == (trick == "far")
        assert [one.client for one in report.seen.rejected] == [ATTACKER] * (trick not in ("far", "twice"))


@pytest.mark.slow
@pytest.mark.parametrize("trick", ["far", "backwards"])
def test_going_too_far_in_every_round_from_the_first_on_harms_nothing(without, trick):
    attacked, reports = run_with(Attacker((trick,)), rounds=len(TRICKS))
    assert all(ATTACKER in report.seen.clipped for report in reports)
    assert accuracy(attacked) >= without - 0.01


CROWD = ToyClients((24, 20, 28, 16, 24, 32, 20, 24, 28, 20), (Width(1),) * 10)
HOSTILE = (2, 7)  # a fifth
STRANGERS = {"clip": 2.0, "max_samples": "10x"}  # the defaults on Flower
POISON = {  # what becomes of an entry, of what it was and of what it should be now
    "none": lambda was, now, round: now,
    "flipped signs, 4.5 times as far": lambda was, now, round: was - 4.5 * (now - was),
    "denormals": lambda was, now, round: torch.full_like(now, 1e-40),
    "bases turned over in the first round": lambda was, now, round: now if round else -4 * was,
    "10**9 samples": lambda was, now, round: was - 4.5 * (now - was),
}


class Poisonous(Tampered):
    """A crowd a fifth of which sends poison of one kind."""

    def profiles(self, round):
        boasts = HOSTILE if self.tamper == "10**9 samples" else ()
        return [replace(p, samples=10**9) if p.client in boasts else p for p in self.engine.profiles(round)]

    def run(self, weights, jobs):
        for asked, got in zip(jobs, self.engine.run(weights, jobs), strict=True):
            old = cut(NET, LAYOUT, weights, asked.parts)
            spoilt = {n: POISON[self.tamper](old[n], v, asked.round) for n, v in got.weights.items()}
            samples = 10**9 if self.tamper == "10**9 samples" else got.samples
            yield replace(got, weights=spoilt, samples=samples) if asked.client in HOSTILE else got


@cache
def poisoned(kind, **settings):
    """The accuracy of a crowd of whom a fifth sends poison."""
    engine = Poisonous(kind, toy_simulator(CROWD))
    how = Federation(8, replace(PLAN, batch=8), seed=2, **settings)
    return accuracy(federate(METHOD, engine, NET, toy_weights(), how))


@pytest.mark.slow
@pytest.mark.parametrize("kind", POISON)
def test_a_fifth_that_sends_poison_within_all_checks_costs_little(kind):
    honest = poisoned("none")
    assert honest > 0.95
    assert poisoned(kind, **STRANGERS) > honest - 0.08


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flipped signs, 4.5 times as far", "10**9 samples"])
def test_without_these_settings_it_costs_much(kind):
    assert poisoned(kind) < poisoned("none") - 0.2


def test_without_the_bound_one_client_is_enough_to_end_it():
    weights, _ = run_with(Attacker(("far",)), rounds=1, clip=0.0)
    assert max(float(value.abs().max()) for value in weights.values()) > 100


@pytest.mark.parametrize("tracked", [False, True])
def test_where_all_are_honest_admission_changes_no_bit(tracked):
    weights, engine = toy_weights(tracked=tracked), toy_simulator()
    how, plain, reports = Federation(3, PLAN, seed=2, clip=50.0), weights, []
    guarded = federate(METHOD, engine, NET, weights, how, on_round=reports.append)
    for round in range(3):
        cohort = engine.profiles(round)
        plan = replace(PLAN, lr=PLAN.lr * how.schedule(round, 3))
        jobs = make_jobs(METHOD.assign(round, cohort), cohort, round, plan, how)
        plain = merge(NET, LAYOUT, plain, engine.run(plain, jobs))
    assert to_bytes(guarded) == to_bytes(plain)
    assert not any(report.seen.clipped for report in reports)


@pytest.mark.parametrize(("clip", "held"), [(0.0, 3), (5.0, 8)])
def test_one_update_is_in_memory_at_a_time_unless_they_are_compared(clip, held):
    alive, most = [], []

    def watch(asked, got):
        alive.append(weakref.ref(got.weights[FC]))
        most.append(sum(one() is not None for one in alive))
        return got

    run_with(watch, rounds=2, clip=clip)
    assert max(most) <= held  # three: that which comes, that which goes, and the one that the simulator still holds
