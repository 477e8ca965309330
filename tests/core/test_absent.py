"""Clients that do not come: a round without them, rounds repeated or given up, and the run again from its record."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch

from helpers.toys import (
    LAYOUT,
    METHOD,
    PLAN,
    Tiny,
    ToyClients,
    to_bytes,
    toy_federation,
    toy_run,
    toy_simulator,
    toy_weights,
)
from splitmix.core.admission import Rejected
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import merge
from splitmix.core.rounds import federate, keep_scarce, make_jobs
from splitmix.core.types import Missing
from splitmix.engines.clients import Replay
from splitmix.runs.run import round_row


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


# --- clients that do not come ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("most", "not_asked"), [(13, [2]), ("1x", [0, 2]), ("2x", [])])  # of 13, 9, 16 and 8 samples
def test_who_registers_too_many_samples_is_not_asked(most, not_asked):
    _, (report,), _ = faulty_run({}, rounds=1, max_samples=most)
    assert report.seen.cohort == tuple(client for client in range(4) if client not in not_asked)
    assert report.seen.missing == [Missing(client, "not asked: too many samples") for client in not_asked]


def test_all_that_travelled_is_counted_also_in_vain():
    _, reports, _ = faulty_run({(1, 0): late(0, 1, 2), (2, 0): late(3)})
    down = 4 * reports[0].parameters
    assert [report.bytes_down for report in reports] == [down, 2 * down, down]
    assert reports[0].bytes_up == down
    assert reports[1].bytes_up == down + down // 2  # client 3 trains half of all bases, and came twice
    assert reports[2].bytes_up == down // 2


# --- bases that few trained --------------------------------------------------------------------------------------


@pytest.mark.slow
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
    rows = [json.loads(json.dumps(round_row(report))) for report in reports]
    assert rows[0]["cohort"] == [0, 1, 2, 3]
    assert rows[0]["missing"] == [{"client": 2, "reason": "late"}]
    assert [len(tried["missing"]) for tried in rows[1]["repeated"]] == [3]
    assert rows[1]["rejected"][0]["kind"] == "finite"
    assert "weights" not in rows[0]


@pytest.mark.parametrize("cohort", [None, 3])
def test_a_run_again_with_those_who_took_part_has_the_same_weights(cohort):
    learned, reports, _ = faulty_run(FAULTS, cohort=cohort)
    rows = [json.loads(json.dumps(round_row(report))) for report in reports]
    again = []
    replay = Replay.of(toy_simulator(), rows)
    how = toy_federation(cohort=cohort)
    assert to_bytes(federate(METHOD, replay, Net(Tiny), toy_weights(), how, on_round=again.append)) == to_bytes(learned)
    assert [report.seen for report in again] == [report.seen for report in reports]


def test_a_resumed_run_bounds_updates_as_it_would_have():
    class Leaping(Faulty):
        """Client 2 goes much too far in the last round."""

        def run(self, weights, jobs):
            for job, answer in zip(jobs, self.engine.run(weights, jobs), strict=True):
                wild = job.client == 2 and job.round == 2
                far = {name: value + 7 for name, value in answer.weights.items()} if wild else answer.weights
                yield replace(answer, weights=far)

    reports, how = [], replace(toy_federation(cohort=None), clip=5.0)
    whole = federate(METHOD, Leaping(), Net(Tiny), toy_weights(), how, on_round=reports.append)
    before = reports[1]
    resumed = federate(METHOD, Leaping(), Net(Tiny), before.weights, how, start=2)
    assert reports[2].seen.clipped == [2]
    assert to_bytes(resumed) == to_bytes(whole)
