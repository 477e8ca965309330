"""The round loop: schedules, cohorts, jobs, and runs that repeat and resume to the bit."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitmix.core.door import Rejected
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import merge
from splitmix.core.replay import Replay
from splitmix.core.rounds import Constant, Cosine, Federation, Steps, draw_cohort, federate, keep_scarce, make_jobs
from splitmix.core.types import Missing, Part, Profile, Update, Width
from toys import (
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


def test_a_run_in_two_pieces_is_the_same_run():
    reports = []
    whole = toy_run(on_round=reports.append)
    resumed = toy_run(weights=reports[0].weights, start=1)
    assert [report.round for report in reports] == [0, 1, 2]
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


def test_training_lowers_the_loss():
    reports = []
    toy_run(toy_federation(rounds=8, cohort=None), on_round=reports.append)
    assert reports[-1].loss < 0.9 * reports[0].loss


class Halves:
    """A method of one net, whose clients train half of it."""

    layout = replace(LAYOUT, count=1, width=Width(1))

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


# --- clients that do not come ------------------------------------------------------------------------------------


@dataclass
class Faulty:
    """The simulator, some of whose clients do not come: `away` says who, by round and try."""

    away: dict = field(default_factory=dict)
    engine: object = field(default_factory=toy_simulator)
    tries: Counter = field(default_factory=Counter)

    def profiles(self, round):
        return self.engine.profiles(round)

    def run(self, weights, jobs):
        (round,) = {job.round for job in jobs}
        gone = self.away.get((round, self.tries[round]), {})
        self.tries[round] += 1
        here = iter(self.engine.run(weights, [job for job in jobs if job.client not in gone]))
        yield from (gone[job.client] if job.client in gone else next(here) for job in jobs)


def late(*clients):
    return {client: Missing(client, "late") for client in clients}


def faulty_run(away, *, rounds=3, **settings):
    reports, engine = [], Faulty(away)
    how = replace(toy_federation(rounds=rounds, cohort=None), **settings)
    return federate(METHOD, engine, Net(Tiny), toy_weights(), how, on_round=reports.append), reports, engine


def test_a_round_commits_with_those_who_came():
    learned, reports, _ = faulty_run({(1, 0): late(0, 2)})
    assert [sorted(report.seen.accepted) for report in reports] == [[0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]
    assert [report.clients for report in reports] == [4, 4, 4]
    assert sorted(one.client for one in reports[1].seen.missing) == [0, 2]
    assert to_bytes(learned) != to_bytes(toy_run(toy_federation(cohort=None)))


def test_a_client_that_does_not_come_changes_nothing_of_what_others_do():
    _, (report,), _ = faulty_run({(0, 0): late(3)}, rounds=1)
    cohort = ToyClients().profiles(0)
    jobs = make_jobs(METHOD.assign(0, cohort), cohort, 0, PLAN, toy_federation())
    updates = toy_simulator().run(toy_weights(), [job for job in jobs if job.client != 3])
    assert to_bytes(report.weights) == to_bytes(merge(Net(Tiny), LAYOUT, toy_weights(), updates))


def test_a_round_to_which_too_few_came_is_repeated_as_if_nothing_had_happened():
    learned, reports, engine = faulty_run({(1, 0): late(0, 1, 2), (1, 1): late(0, 1, 2)})
    assert engine.tries == {0: 1, 1: 3, 2: 1}
    assert [len(report.repeated) for report in reports] == [0, 2, 0]
    assert to_bytes(learned) == to_bytes(toy_run(toy_federation(cohort=None)))


@pytest.mark.parametrize(("share", "came", "repeats"), [(0.5, 2, 0), (0.51, 2, 1), (1.0, 3, 1), (0.0, 0, 0)])
def test_enough_is_a_share_of_those_who_were_asked(share, came, repeats):
    _, (report,), _ = faulty_run({(0, 0): late(*range(4 - came))}, rounds=1, min_share=share)
    assert len(report.repeated) == repeats


def test_a_rejected_update_came_so_nobody_can_hold_up_a_run_with_nonsense():
    nonsense = {client: Rejected(client, "keys", "nonsense") for client in range(4)}
    learned, reports, engine = faulty_run({(1, 0): nonsense}, rounds=2)
    assert engine.tries == {0: 1, 1: 1}
    assert len(reports[1].seen.rejected) == 4
    assert to_bytes(learned) == to_bytes(reports[0].weights)  # a round without an update changes nothing


def test_a_round_that_fails_again_and_again_is_given_up_in_one_sentence():
    away = {(0, attempt): late(0, 1, 2) for attempt in range(9)}
    with pytest.raises(UserError) as caught:
        faulty_run(away, repeats=3)
    said = str(caught.value)
    assert "round 1 was tried 4 times" in said
    assert "3 late" in said
    assert "--resume" in said
    assert "\n" not in said


def test_without_any_client_a_round_is_given_up():
    engine = Faulty()
    engine.profiles = lambda round: []
    engine.run = lambda weights, jobs: iter(())
    with pytest.raises(UserError, match="nobody is registered"):
        federate(METHOD, engine, Net(Tiny), toy_weights(), toy_federation())


def test_who_registers_too_many_samples_is_not_asked():
    _, (report,), _ = faulty_run({}, rounds=1, max_samples=13)  # client 2 has sixteen
    assert report.seen.cohort == (0, 1, 3)
    assert report.seen.missing == [Missing(2, "not asked: too many samples")]


def test_a_repeated_round_draws_others():
    draws = [draw_cohort(PROFILES, 5, 0, 0, repeat) for repeat in range(3)]
    assert draws[0] == draw_cohort(PROFILES, 5, 0, 0)
    assert len(set(draws)) == 3


def test_all_that_travelled_is_counted_also_in_vain():
    _, reports, _ = faulty_run({(1, 0): late(0, 1, 2), (2, 0): late(3)})
    down = 4 * reports[0].parameters
    assert [report.bytes_down for report in reports] == [down, 2 * down, down]
    assert reports[0].bytes_up == down
    assert reports[1].bytes_up == down + down // 2  # client 3 trains half of all bases, and came twice
    assert reports[2].bytes_up == down // 2


# --- bases that few trained --------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 2, 3, 9])
def test_a_base_with_too_few_updates_keeps_its_value(least):
    _, (report,), _ = faulty_run({}, rounds=1, min_updates=least)
    _, (free,), _ = faulty_run({}, rounds=1)
    for base in range(4):
        kept = toy_weights() if report.seen.updates[base] < least else free.weights
        for name, value in report.weights.items():
            assert torch.equal(value[base], kept[name][base])


def test_one_update_is_enough_unless_more_are_asked_for():
    merged = toy_weights(seed=1)
    assert keep_scarce(toy_weights(), merged, {0: 1, 2: 3}, 1) is merged


def test_a_base_that_nobody_trained_is_as_it_was():
    merged = keep_scarce(toy_weights(), toy_weights(seed=1), {0: 1, 1: 2}, 2)
    assert torch.equal(merged["fc2.weight"][0], toy_weights()["fc2.weight"][0])
    assert torch.equal(merged["fc2.weight"][1], toy_weights(seed=1)["fc2.weight"][1])


# --- what is recorded, and the run again -------------------------------------------------------------------------

FAULTS = {
    (0, 0): late(2),
    (1, 0): late(0, 1, 3),
    (1, 1): {1: Rejected(1, "finite", "conv.weight has values that are not finite")},
    (2, 0): late(0) | {3: Missing(3, "died")} | {1: Rejected(1, "keys", "nonsense")},
}


def test_a_row_tells_who_took_part_and_can_be_stored():
    _, reports, _ = faulty_run(FAULTS)
    rows = [json.loads(json.dumps(report.row())) for report in reports]
    assert rows[0]["cohort"] == [0, 1, 2, 3]
    assert rows[0]["missing"] == [{"client": 2, "reason": "late"}]
    assert [len(tried["missing"]) for tried in rows[1]["repeated"]] == [3]
    assert rows[1]["rejected"][0]["kind"] == "finite"
    assert set(rows[0]["usual"]) == {"parameters", "steps"}
    assert "weights" not in rows[0]


@pytest.mark.parametrize("cohort", [None, 3])
def test_a_run_again_with_those_who_took_part_has_the_same_weights(cohort):
    learned, reports, _ = faulty_run(FAULTS, cohort=cohort)
    rows = [{"kind": "round", **json.loads(json.dumps(report.row()))} for report in reports]
    again = []
    replay = Replay.of(toy_simulator(), rows)
    how = toy_federation(cohort=cohort)
    assert to_bytes(federate(METHOD, replay, Net(Tiny), toy_weights(), how, on_round=again.append)) == to_bytes(learned)
    assert [report.seen for report in again] == [report.seen for report in reports]


def test_what_is_usual_goes_on_from_the_report_of_the_round_before():
    class Leaping(Faulty):
        """Client 2 goes much too far in the last round."""

        def run(self, weights, jobs):
            for job, answer in zip(jobs, self.engine.run(weights, jobs), strict=True):
                wild = job.client == 2 and job.round == 2
                far = {name: value + 7 for name, value in answer.weights.items()} if wild else answer.weights
                yield replace(answer, weights=far)

    reports, how = [], toy_federation(cohort=None)
    whole = federate(METHOD, Leaping(), Net(Tiny), toy_weights(), how, on_round=reports.append)
    before = reports[1]
    resumed = federate(METHOD, Leaping(), Net(Tiny), before.weights, how, start=2, usual=before.usual)
    assert reports[2].seen.clipped == [2]
    assert to_bytes(resumed) == to_bytes(whole)
