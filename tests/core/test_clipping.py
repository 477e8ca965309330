"""How far an update may go: updates of a round are compared, and what goes much further than others counts little."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch.testing import assert_close

from helpers.answers import FC, NET, PROFILES, TRACKED, WEIGHTS, answer, edited, job, through
from helpers.toys import ATOM, FULL, HALF, LAYOUT, PLAN, ToyClients, bases, to_bytes
from splitmix.core.admission import Admission, root_mean_square
from splitmix.core.parts import cut, merge
from splitmix.core.rounds import Federation, aggregated, make_jobs
from splitmix.core.types import Setting
from splitmix.methods import METHODS, find_method

CLIP = 2.0
FAR = 1.0, -1.0, 7.0, 1e4, -1e30  # where 0.1 is usual


def far(update, weights=WEIGHTS):
    """How far each base moved, in the entry that moved furthest."""
    old = cut(NET, LAYOUT, weights, update.parts)
    moved = [root_mean_square(value - old[name]) for name, value in update.weights.items()]
    return torch.stack(moved).amax(0).tolist()


def crowd(last, *, clip=CLIP, weights=WEIGHTS):
    """What is admitted of four clients who move every number by 0.1, and of a fifth; and their admission."""
    jobs = [job(client) for client in range(5)]
    sent = [answer(asked, by=0.1, weights=weights) for asked in jobs[:4]]
    return through([*sent, replace(last, client=4)], jobs, clip=clip, weights=weights)


@pytest.mark.parametrize("by", FAR[:4])
def test_who_goes_too_far_is_brought_back_and_nearer_the_further_it_went(by):
    (*_, passed), admission = crowd(answer(job(), by=by))
    share = CLIP / (abs(by) / 0.1)
    assert far(passed) == pytest.approx([0.1 * share] * 2, rel=1e-2, abs=1e-7)
    assert passed.weight == pytest.approx(max(1e-6, share**2), rel=1e-3)
    assert admission.seen.clipped == [4]
    assert admission.seen.accepted == [0, 1, 2, 3, 4]


def test_an_update_within_the_bound_is_left_alone():
    sent = answer(job(), by=0.19)
    (*_, passed), admission = crowd(sent)
    assert (to_bytes(passed.weights), passed.weight) == (to_bytes(sent.weights), 1)
    assert admission.seen.clipped == []


def test_its_direction_stays():
    (*_, passed), _ = crowd(answer(job(), by=1.0))
    old = cut(NET, LAYOUT, WEIGHTS, passed.parts)
    assert all((value - old[name] - 0.02).abs().max() < 1e-4 for name, value in passed.weights.items())


@pytest.mark.parametrize("by", [*FAR, 0.19, -0.19, 0.0])
def test_nobody_moves_the_mean_further_than_its_share_of_the_bound(by):
    admitted, _ = crowd(answer(job(), by=by))
    together, others = (merge(NET, LAYOUT, WEIGHTS, updates) for updates in (admitted, admitted[:4]))
    most = max(float((together[name] - value).abs().max()) for name, value in others.items())
    assert most <= (CLIP + 1) * 0.1 / 5 + 1e-6


def test_clients_that_do_the_same_have_the_mean_that_they_have_without_a_bound():
    bounded, plain = (crowd(answer(job(), by=0.1), clip=clip)[0] for clip in (CLIP, 0.0))
    assert to_bytes(merge(NET, LAYOUT, WEIGHTS, bounded)) == to_bytes(merge(NET, LAYOUT, WEIGHTS, plain))


def test_the_order_of_clients_does_not_matter():
    distances = {0: 0.1, 1: 0.12, 2: 0.5, 3: 0.09}
    found = []
    for order in permutations(distances):
        jobs = [job(client) for client in order]
        passed, _ = through([answer(asked, by=distances[asked.client]) for asked in jobs], jobs, clip=CLIP)
        found.append({update.client: (update.weight, to_bytes(update.weights)) for update in passed})
    assert all(one == found[0] for one in found)


def test_without_a_bound_nothing_is_too_far():
    (*_, passed), admission = crowd(answer(job(), by=1e4), clip=0.0)
    assert far(passed)[0] == pytest.approx(1e4, rel=1e-3)
    assert admission.seen.clipped == []


def test_what_is_far_for_one_base_is_told_of_the_client():
    sent = answer(job(), by=0.1)
    for value in sent.weights.values():
        value[1] += 9.0
    (*_, passed), admission = crowd(sent)
    assert admission.seen.clipped == [4]
    assert max(far(passed)) < 0.01


@pytest.mark.parametrize(("times", "clipped"), [(0.9, []), (1.1, [4])])
def test_further_than_the_root_of_how_many_they_are_no_entry_goes_alone(times, clipped):
    still = answer(job(), by=0.0)
    hidden = 0.1 * CLIP * len(WEIGHTS) ** 0.5
    assert crowd(edited(still, **{FC: still.weights[FC] + times * hidden}))[1].seen.clipped == clipped


def test_statistics_are_compared_like_any_entry():
    sent = answer(job(), by=0.1, weights=TRACKED)
    shifted = {name: value + 50 * name.endswith("running_mean") for name, value in sent.weights.items()}
    (*_, passed), admission = crowd(replace(sent, weights=shifted), weights=TRACKED)
    assert admission.seen.clipped == [4]
    assert max(far(passed, TRACKED)) < 0.1


def test_each_client_has_one_vote_whatever_it_trains():
    wide = [job(client, 0, 1, 2, 3) for client in (0, 1)]
    narrow = [job(client, 0) for client in (2, 3, 4)]
    sent = [answer(asked, by=1.0) for asked in wide] + [answer(asked, by=0.1) for asked in narrow]
    assert through(sent, [*wide, *narrow], clip=CLIP)[1].seen.clipped == [0, 1]  # who sent eight of eleven bases


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("by", [1e4, -1.0])
def test_one_or_two_clients_move_a_base_by_half_of_its_size_at_most(by, clients):
    old, jobs = cut(NET, LAYOUT, TRACKED, bases(1, 2)), [job(client) for client in range(clients)]
    wiped = {name: (1 + by) * value for name, value in old.items()}  # -1: to nothing
    sent = [replace(answer(asked, weights=TRACKED), weights=wiped) for asked in jobs]
    for passed in through(sent, jobs, weights=TRACKED, clip=CLIP)[0]:
        for name, value in passed.weights.items():
            assert (root_mean_square(value - old[name]) <= root_mean_square(old[name]) / 2).all()


def test_what_is_zero_has_the_size_of_its_kind():
    (passed,), _ = through([answer(job(), by=50.0, weights=TRACKED)], [job()], weights=TRACKED, clip=CLIP)
    shift = passed.weights["norm1.clean.running_mean"]  # which were 0, and variances 1
    assert shift.abs().max() <= 0.5


@pytest.mark.parametrize("steps", [(0, 0, 0.1), (1e-6, 1e-6, 1e-4)], ids=["most do not move", "a trace"])
def test_where_others_hardly_move_a_base_may_still_move_by_some_of_its_size(steps):
    jobs, old = [job(client) for client in range(3)], cut(NET, LAYOUT, WEIGHTS, bases(1, 2))
    sent = [replace(answer(job(i)), weights={n: v * (1 + steps[i]) for n, v in old.items()}) for i in range(3)]
    assert through(sent, jobs, clip=CLIP)[1].seen.clipped == []


@pytest.mark.parametrize(("samples", "clipped"), [(10, [4]), (20, []), (10**18, [])])
def test_more_steps_may_go_further(samples, clipped):
    admission = admission_of(samples, by=0.3)  # three times as far; three steps are usual, and 20 samples take five
    assert admission.seen.clipped == clipped


def test_claiming_ever_more_steps_does_not_help():
    assert admission_of(10**18, by=0.1 * CLIP * CLIP * 1.1).seen.clipped == [4]


def admission_of(samples, *, by):
    """Of four clients with ten samples each, and of a fifth with others, which goes so far."""
    jobs = [job(client) for client in range(5)]
    admission = Admission(NET, LAYOUT, WEIGHTS, [*PROFILES[:4], replace(PROFILES[4], samples=samples)], clip=CLIP)
    sent = [answer(asked, by=0.1) for asked in jobs[:4]]
    list(admission.admitted(jobs, [*sent, answer(jobs[4], by=by, samples=samples)]))
    return admission


@pytest.mark.parametrize("name", METHODS)
def test_under_every_method_who_goes_far_moves_nothing_far(name):
    method = find_method(name, Setting(ATOM, (ATOM, HALF, FULL), seed=3))
    weights, cohort = NET.init(method.layout, seed=1), ToyClients((20,) * 6, (FULL, HALF) * 3).profiles(0)
    jobs = make_jobs(method.assign(0, cohort), cohort, 0, PLAN, Federation(1))
    sent = [
        answer(asked, by=1e6 if asked.client == 0 else 0.1, weights=weights, layout=method.layout) for asked in jobs
    ]
    admission = Admission(NET, method.layout, weights, cohort, clip=CLIP)
    merged = aggregated(method, NET, weights, jobs, admission.admitted(jobs, sent), Federation(1))
    assert admission.seen.clipped == [0]
    assert max(float((value - weights[name]).abs().max()) for name, value in merged.items()) <= 0.1 + 1e-5


def test_a_vote_is_the_server_s_whatever_the_client_says():
    (*_, passed), _ = crowd(answer(job(), by=0.1, weight=10**9))
    assert passed.weight == 1


def test_the_bound_is_the_same_however_the_tensors_lie_in_memory():
    sent = answer(job(), by=100.0)
    lying = {name: value.transpose(0, -1).contiguous().transpose(0, -1) for name, value in sent.weights.items()}
    results = [crowd(replace(sent, weights=weights))[0][-1] for weights in (sent.weights, lying)]
    for name, value in results[0].weights.items():
        assert_close(results[1].weights[name], value, rtol=0, atol=0)
