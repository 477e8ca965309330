"""The round loop: schedules, cohorts, jobs, and runs that repeat and resume to the bit."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.toys import (
    LAYOUT,
    METHOD,
    PLAN,
    Tiny,
    ToyClients,
    bases,
    to_bytes,
    toy_federation,
    toy_run,
    toy_simulator,
    toy_weights,
)
from splitmix.core.method import Method
from splitmix.core.net import Net
from splitmix.core.rounds import Constant, Cosine, Federation, Steps, draw_cohort, federate, make_jobs
from splitmix.core.types import Part, Profile, Update
from splitmix.core.width import Width

PROFILES = [Profile(client, Width(1), samples=10) for client in range(20)]


def test_half_a_cosine_wave_falls_from_one_to_the_floor():
    assert [Cosine()(t, 4) for t in (0, 2, 4)] == pytest.approx([1, 0.5, 0])
    assert [Cosine(floor=0.2)(t, 4) for t in (0, 2, 4)] == pytest.approx([1, 0.6, 0.2])


def test_steps_are_taken_at_the_milestone_and_not_a_round_later():
    schedule = Steps(milestones=(2, 4), gamma=0.1)
    assert [schedule(t, 6) for t in range(6)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_a_constant_rate_stays():
    assert [Constant()(t, 9) for t in (0, 5, 8)] == [1, 1, 1]


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(0, 99), st.integers(0, 99))
def test_a_cohort_holds_each_client_at_most_once_and_is_the_same_when_drawn_again(size, seed, round):
    cohort = draw_cohort(PROFILES, size, seed, round)
    assert len(set(cohort)) == len(cohort) == min(size, 20)
    assert set(cohort) <= set(PROFILES)
    assert draw_cohort(PROFILES, size, seed, round) == cohort


def test_each_round_and_each_seed_draws_its_own_cohort():
    draws = {draw_cohort(PROFILES, 5, seed, round) for seed in range(3) for round in range(3)}
    assert len(draws) == 9


def test_a_repeated_round_draws_others():
    draws = [draw_cohort(PROFILES, 5, 0, 0, repeat) for repeat in range(3)]
    assert draws[0] == draw_cohort(PROFILES, 5, 0, 0)
    assert len(set(draws)) == 3


def test_in_the_long_run_every_client_is_drawn():
    drawn = {profile.client for round in range(40) for profile in draw_cohort(PROFILES, 5, 0, round)}
    assert drawn == set(range(20))


def test_without_a_size_all_clients_take_part_in_order():
    assert draw_cohort(PROFILES, None, 0, 0) == tuple(PROFILES)


def test_the_longest_jobs_come_first_and_equals_by_number():
    assigned = {0: bases(0), 1: bases(0, 1), 2: bases(0, 1, 2), 3: bases(1)}
    cohort = [Profile(client, Width(1), samples) for client, samples in enumerate((10, 10, 2, 20))]
    jobs = make_jobs(assigned, cohort, 0, PLAN, toy_federation())
    assert [job.client for job in jobs] == [1, 3, 0, 2]  # samples times bases: 20, 20, 10, 6


def test_a_client_without_parts_gets_no_job():
    jobs = make_jobs({0: (), 1: bases(0)}, PROFILES[:2], 0, PLAN, toy_federation())
    assert [job.client for job in jobs] == [1]


def test_a_job_carries_the_round_the_plan_and_the_seed():
    (job,) = make_jobs({3: bases(1)}, PROFILES, 7, PLAN, toy_federation(seed=5, local_norms=True))
    assert (job.round, job.client, job.plan, job.seed, job.local_norms) == (7, 3, PLAN, 5, True)


class Changing(ToyClients):
    """Clients of which some are away in some rounds."""

    def profiles(self, round):
        return super().profiles(round)[: (4, 1, 3, 2)[round]]


def test_where_cohorts_change_in_size_a_resumed_run_deals_bases_as_an_unbroken_one():
    how, reports = toy_federation(rounds=4, cohort=None), []
    engine = toy_simulator(Changing())
    whole = federate(METHOD, engine, engine.net, toy_weights(), how, on_round=reports.append)
    bases = [METHOD.after(asked).assign(t, Changing().profiles(t)) for t, asked in enumerate((0, 4, 5, 8))]
    assert [sum(report.seen.updates.values()) for report in reports] == [sum(map(len, b.values())) for b in bases]
    for t in (1, 2, 3):
        asked = sum(report.clients for report in reports[:t])
        resumed = federate(METHOD, engine, engine.net, reports[t - 1].weights, how, start=t, asked=asked)
        assert to_bytes(resumed) == to_bytes(whole)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    first, again, other = (to_bytes(toy_run(toy_federation(seed=seed))) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_weights_given_to_a_run_stay_as_they_were():
    weights = toy_weights()
    toy_run(weights=weights)
    assert to_bytes(weights) == to_bytes(toy_weights())


def test_clients_learn_at_the_rate_of_the_schedule():
    reports = []
    toy_run(replace(toy_federation(), schedule=Steps((1, 2))), on_round=reports.append)
    assert [report.lr for report in reports] == pytest.approx([0.1, 0.01, 0.001])


def test_a_report_says_who_took_part_and_how_much_was_downloaded():
    reports = []
    toy_run(toy_federation(rounds=1, cohort=None), on_round=reports.append)
    base = sum(value[0].numel() for value in toy_weights().values())
    assert reports[0].clients == 4
    assert reports[0].parameters == (1 + 1 + 2 + 4) * base  # the budgets, in bases


class Halves(Method):
    """A method of one net, whose clients train half of it."""

    layout = replace(LAYOUT, count=1, width=Width(1))
    widths = (Width(1),)

    def assign(self, round, cohort):
        return {profile.client: (Part(0, Width(1, 2), shift=round),) for profile in cohort}


def test_a_narrow_download_counts_as_narrow():
    reports = []
    engine = toy_simulator(layout=Halves.layout)
    weights = engine.net.init(Halves.layout, seed=0)
    federate(Halves(), engine, engine.net, weights, toy_federation(rounds=1, cohort=1), on_round=reports.append)
    shapes = engine.net.shapes(Width(1, 2))
    assert reports[0].parameters == sum(shape.numel() for name, shape in shapes.items() if name in weights)


class Ones:
    """An engine whose clients answer ones; it notes the jobs it was given."""

    def __init__(self):
        self.given = []

    def profiles(self, round):
        return ToyClients().profiles(round)

    def run(self, weights, jobs):
        self.given.append([job.client for job in jobs])
        for job in jobs:
            answer = {name: value[: len(job.parts)] * 0 + 1 for name, value in weights.items()}
            yield Update(job.round, job.client, job.parts, answer, samples=1, metrics={"loss": 2.0})


def test_any_engine_will_do():
    engine, reports = Ones(), []
    learned = federate(METHOD, engine, Net(Tiny), toy_weights(), Federation(rounds=2), on_round=reports.append)
    assert engine.given == [[2, 3, 0, 1]] * 2  # 16 samples of 2 bases, 8 of 4, 13 of 1, 9 of 1
    assert [report.loss for report in reports] == [2.0, 2.0]
    assert all((value == 1).all() for value in learned.values())
