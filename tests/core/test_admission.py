"""Admission: what is no answer to its job is dropped alone, also where clients score or calibrate."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from helpers.answers import FC, NET, TRACKED, WEIGHTS, Tampered, answer, edited, filled, job, through
from helpers.toys import ATOM, LAYOUT, ToyClients, bases, to_bytes, toy_simulator
from splitmix.core.admission import Rejected, valid_moments, valid_tally
from splitmix.core.parts import merge
from splitmix.core.rounds import Federation
from splitmix.core.score import Question, calibrate, mean_accuracy, middle_accuracy, score
from splitmix.core.types import Calibrate, Missing, Score, Tally, Update
from splitmix.core.width import Width

# --- what is no answer to its job --------------------------------------------------------------------------------


FAULTS = {
    "another run's": ("run", lambda u: replace(u, run="b")),
    "an old round's": ("round", lambda u: replace(u, round=-1)),
    "another client's": ("client", lambda u: replace(u, client=7)),
    "a base it was not given": ("parts", lambda u: replace(u, parts=bases(1, 3))),
    "a base too many": ("parts", lambda u: replace(u, parts=bases(1, 2, 3))),
    "another width": ("parts", lambda u: replace(u, parts=bases(1, 2, width=Width(1, 2)))),
    "no samples": ("samples", lambda u: replace(u, samples=0)),
    "negative samples": ("samples", lambda u: replace(u, samples=-10)),
    "more samples than registered": ("samples", lambda u: replace(u, samples=11)),
    "very many samples": ("samples", lambda u: replace(u, samples=10**18)),
    "half a sample": ("samples", lambda u: replace(u, samples=0.5)),
    "true samples": ("samples", lambda u: replace(u, samples=True)),
    "no loss": ("loss", lambda u: replace(u, metrics={})),
    "a loss in words": ("loss", lambda u: replace(u, metrics={"loss": "low"})),
    "an endless loss": ("loss", lambda u: replace(u, metrics={"loss": math.inf})),
    "an entry too many": ("keys", lambda u: edited(u, more=torch.zeros(2))),
    "an entry too few": ("keys", lambda u: edited(u, **{FC: None})),
    "nothing": ("keys", lambda u: replace(u, weights={})),
    "another shape": ("shape", lambda u: edited(u, **{FC: torch.zeros(2, 2, 3)})),
    "a single number": ("shape", lambda u: edited(u, **{FC: torch.zeros(1)})),
    "an oversized array": ("shape", lambda u: edited(u, **{FC: torch.zeros(2, 3000, 200)})),
    "a sparse array": ("shape", lambda u: edited(u, **{FC: u.weights[FC].to_sparse()})),
    "doubles": ("dtype", lambda u: edited(u, **{FC: u.weights[FC].double()})),
    "integers": ("dtype", lambda u: edited(u, **{FC: u.weights[FC].int()})),
    "no tensor": ("dtype", lambda u: edited(u, **{FC: [[0.0] * 6] * 2})),
    "NaN": ("finite", lambda u: filled(u, FC, math.nan)),
    "Inf": ("finite", lambda u: filled(u, FC, -math.inf)),
    "a distance beyond measure": ("size", lambda u: filled(u, FC, 3e38)),
    "no update at all": ("kind", lambda u: "hello"),
    "a tally": ("kind", lambda u: Tally(0, (1,), 1)),
    "what the engine could not read": ("unreadable", lambda u: Rejected(0, "unreadable", "it is no safetensors")),
}


@pytest.mark.parametrize("what", FAULTS)
def test_an_update_with_a_fault_is_dropped_alone(what):
    kind, spoil = FAULTS[what]
    jobs = [job(0), job(1), job(2)]
    passed, admission = through([answer(jobs[0]), spoil(answer(jobs[1])), answer(jobs[2])], jobs)
    assert [update.client for update in passed] == admission.seen.accepted == [0, 2]
    assert [(one.client, one.kind) for one in admission.seen.rejected] == [(1, kind)]
    assert 0 < len(admission.seen.rejected[0].reason) < 120
    assert admission.seen.updates == Counter({1: 2, 2: 2})


def test_an_honest_update_passes_as_it_is():
    honest = answer(job())
    (passed, *_), admission = through([honest, answer(job(1)), answer(job(2))], [job(), job(1), job(2)], clip=5.0)
    assert passed == honest
    assert all(passed.weights[name] is value for name, value in honest.weights.items())
    assert admission.seen.clipped == []


def test_a_variance_below_zero_is_no_variance():
    honest = answer(job(), weights=TRACKED)
    spoilt = filled(honest, "norm1.clean.running_var", -1e-6)
    _, admission = through([spoilt], [job()], weights=TRACKED)
    assert admission.seen.rejected[0].kind == "variance"
    assert through([honest], [job()], weights=TRACKED)[0]


def test_norms_that_stay_on_a_client_may_not_be_sent():
    asked = job(local_norms=True)
    private = NET.norm_names(ATOM)
    whole = answer(asked)
    without = replace(whole, weights={name: value for name, value in whole.weights.items() if name not in private})
    assert through([without], [asked])[0]
    assert through([whole], [asked])[1].seen.rejected[0].kind == "keys"


def test_who_did_not_come_is_noted_with_the_reason():
    passed, admission = through([Missing(0, "late"), answer(job(1))], [job(0), job(1)])
    assert len(passed) == 1
    assert admission.seen.missing == [Missing(0, "late")]


@pytest.mark.parametrize("answers", [[], [answer(job())] * 2])
def test_an_engine_that_skips_or_repeats_an_answer_is_wrong(answers):
    with pytest.raises(RuntimeError, match="one answer for each job"):
        through(answers, [job()])


def test_all_bytes_that_came_are_counted():
    honest = answer(job())
    size = sum(value.nbytes for value in honest.weights.values())
    _, admission = through([honest, replace(honest, client=7), Missing(2, "late")], [job(0), job(1), job(2)])
    assert admission.seen.bytes_up == 2 * size


def test_the_words_of_a_stranger_are_cut_short():
    strange = replace(answer(job()), client="x\x1b[31m" * 1000)
    _, admission = through([strange], [job()])
    assert len(admission.seen.rejected[0].reason) < 120
    assert admission.seen.rejected[0].reason.isprintable()


# --- scores and norm statistics ----------------------------------------------------------------------------------


ASKED = Score(3, (bases(0), bases(0, 1)))


@pytest.mark.parametrize(
    ("tally", "good"),
    [
        (Tally(3, (4, 5), 5), True),
        (Tally(3, (0, 0), 0), True),
        (Tally(2, (4, 5), 5), False),
        (Tally(3, (4,), 5), False),
        (Tally(3, (6, 5), 5), False),
        (Tally(3, (-1, 5), 5), False),
        (Tally(3, (4, 5.0), 5), False),
        (Tally(3, (0, 0), -5), False),
        (Missing(3, "late"), False),
        (None, False),
    ],
)
def test_a_tally_counts_what_was_asked(tally, good):
    assert valid_tally(ASKED, tally) == good


def moments(client=0, **changed):
    found = {"norm1.clean.running_mean": torch.zeros(4, 2), "norm1.clean.running_var": torch.ones(4, 2)}
    return replace(Update(0, client, bases(0, 1, 2, 3), found, 10), **changed)


def test_norm_statistics_are_checked_like_updates():
    asked, like = Calibrate(0, bases(0, 1, 2, 3)), {name: TRACKED[name] for name in NET.statistic_names(ATOM)}
    assert valid_moments(asked, moments(), like, 10)
    assert not valid_moments(asked, moments(samples=11), like, 10)
    assert not valid_moments(asked, moments(client=1), like, 10)
    assert not valid_moments(asked, filled(moments(), "norm1.clean.running_mean", math.nan), like, 10)
    assert not valid_moments(asked, filled(moments(), "norm1.clean.running_var", -1.0), like, 10)
    assert not valid_moments(asked, edited(moments(), more=torch.zeros(4)), like, 10)
    assert not valid_moments(asked, Missing(0, "late"), like, 10)


def test_scores_and_calibration_do_without_those_who_fail():
    def fails(asked, got):
        if asked.client == 1:
            return Missing(1, "died")
        if asked.client == 2:
            return replace(got, samples=10**18) if isinstance(got, Update) else replace(got, correct=(10**18,))
        return got

    engine, clients = Tampered(fails), [0, 1, 2, 3]
    found = calibrate(engine, NET, LAYOUT, WEIGHTS, clients, 8)
    fewer = calibrate(engine.engine, NET, LAYOUT, WEIGHTS, [0, 3], 8)
    assert to_bytes(found) == to_bytes(fewer)
    (scored,) = score(engine, WEIGHTS, {ATOM: bases(0)}, dict.fromkeys(clients, "all"), Question())
    assert len(scored.clients) == 2


def test_norm_statistics_that_are_far_off_are_brought_back_to_what_is_usual():
    crowd = ToyClients((24, 20, 28, 16, 24, 32, 20, 24, 20, 28), (ATOM,) * 10)

    def enlarged(asked, got):
        return replace(got, weights={n: 100 * v for n, v in got.weights.items()}) if asked.client in (3, 7) else got

    engine, clients = toy_simulator(crowd), range(10)
    honest, free, bound = (
        calibrate(used, NET, LAYOUT, WEIGHTS, clients, 8, how=Federation(1, clip=clip))
        for used, clip in ((engine, 0.0), (Tampered(enlarged, engine), 0.0), (Tampered(enlarged, engine), 2.0))
    )
    for name, value in honest.items():
        spread = value.abs().mean()
        assert (free[name] - value).abs().mean() > 0.9 * spread
        assert (bound[name] - value).abs().mean() < 0.2 * spread


def test_who_registered_too_many_samples_takes_no_part_in_calibration():
    boasts = toy_simulator(ToyClients((13, 9, 16, 1000)))
    found = calibrate(boasts, NET, LAYOUT, WEIGHTS, range(4), 8, how=Federation(1, max_samples="10x"))
    assert to_bytes(found) == to_bytes(calibrate(toy_simulator(), NET, LAYOUT, WEIGHTS, range(3), 8))


def test_a_variance_without_its_mean_is_no_statistic():
    asked, like = Calibrate(0, bases(0, 1, 2, 3)), {name: TRACKED[name] for name in NET.statistic_names(ATOM)}
    assert not valid_moments(asked, edited(moments(), **{"norm1.clean.running_mean": None}), like, 10)


@pytest.mark.parametrize(("liars", "far_off"), [(0, 0.02), (2, 0.1)])
def test_a_fifth_of_the_clients_hardly_moves_what_rounds_and_bases_are_chosen_by(liars, far_off):
    honest = [0.5 + 0.01 * client for client in range(10)]
    told = [1.0] * liars + honest[liars:]
    assert middle_accuracy(told) == pytest.approx(mean_accuracy(honest), abs=far_off)
    assert mean_accuracy([1.0] * 2 + honest[2:]) > mean_accuracy(honest) + 0.09


def test_calibration_is_the_mean_by_samples():
    engine, clients = toy_simulator(), [0, 1, 2, 3]
    asked = [Calibrate(client, bases(0, 1, 2, 3), 8) for client in clients]
    blank = {name: torch.zeros_like(TRACKED[name]) for name in NET.statistic_names(ATOM)}
    merged = merge(NET, LAYOUT, blank, engine.run(WEIGHTS, asked))
    found = calibrate(engine, NET, LAYOUT, WEIGHTS, clients, 8)
    assert found["norm1.clean.running_mean"].numpy().tobytes() == merged["norm1.clean.running_mean"].numpy().tobytes()
