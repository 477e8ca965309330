"""How far an update may go: what is usual, and what goes further than that is brought back."""

from dataclasses import replace

import pytest
import torch

from helpers.answers import NET, PROFILES, TRACKED, WEIGHTS, answer, job, through
from helpers.toys import LAYOUT, bases, to_bytes
from splitmix.core.admission import Admission, root_mean_square
from splitmix.core.parts import cut

USUAL = dict.fromkeys(TRACKED, 0.1) | {"steps": 3.0}  # ten samples in batches of four


def far(update, weights=WEIGHTS):
    """How far each base moved, in the entry that moved furthest."""
    old = cut(NET, LAYOUT, weights, update.parts)
    moved = [root_mean_square(value - old[name]) for name, value in update.weights.items()]
    return torch.stack(moved).amax(0).tolist()


def test_an_update_that_goes_too_far_is_brought_back_to_what_is_usual():
    (passed,), admission = through([answer(job(), by=0.51)], [job()], clip=5.0, usual=USUAL)
    assert far(passed) == pytest.approx([0.1 * 0.5 / 0.51] * 2, rel=1e-4)
    assert admission.seen.clipped == admission.seen.accepted == [0]


def test_an_update_within_the_bound_is_left_alone():
    (passed,), admission = through([answer(job(), by=0.49)], [job()], clip=5.0, usual=USUAL)
    assert far(passed) == pytest.approx([0.49, 0.49], rel=1e-4)
    assert admission.seen.clipped == []


def test_its_direction_stays():
    sent = answer(job(), by=1.0)
    (passed,), _ = through([sent], [job()], clip=5.0, usual=USUAL)
    old = cut(NET, LAYOUT, WEIGHTS, sent.parts)
    moved = {name: value - old[name] for name, value in passed.weights.items()}
    assert all((value - 0.05).abs().max() < 1e-4 for value in moved.values())


def test_each_base_has_its_own_bound():
    sent = answer(job())
    one = {
        name: value + torch.tensor([0.0, 9.0]).view(-1, *[1] * (value.dim() - 1))
        for name, value in sent.weights.items()
    }
    (passed,), _ = through([replace(sent, weights=one)], [job()], clip=5.0, usual=USUAL)
    assert all(torch.equal(passed.weights[name][0], value[0]) for name, value in one.items())
    assert far(passed)[1] == pytest.approx(0.1 * 0.5 / 9, rel=1e-2)


def test_without_a_bound_nothing_is_too_far():
    (passed,), admission = through([answer(job(), by=1e4)], [job()], clip=0.0, usual=USUAL)
    assert far(passed)[0] == pytest.approx(1e4, rel=1e-3)
    assert admission.seen.clipped == []


@pytest.mark.parametrize("times", [1.0, 2.0, 1e3])
def test_the_further_an_update_goes_the_less_it_counts(times):
    (passed,), _ = through([answer(job(), by=-0.51 * times)], [job()], clip=5.0, usual=USUAL)
    assert far(passed) == pytest.approx([0.098 / times] * 2, rel=1e-2)


@pytest.mark.parametrize("by", [1e4, -1.0])
def test_in_the_first_round_no_entry_moves_by_more_than_half_of_its_size(by):
    old = cut(NET, LAYOUT, TRACKED, bases(1, 2))
    wiped = {name: (1 + by) * value for name, value in old.items()}  # -1: to nothing
    sent = replace(answer(job(), weights=TRACKED), weights=wiped)
    (passed,), _ = through([sent], [job()], weights=TRACKED, clip=5.0)
    for name, value in passed.weights.items():
        assert (root_mean_square(value - old[name]) <= root_mean_square(old[name]) / 2).all()


def test_in_the_first_round_what_is_zero_moves_by_half_the_size_of_its_kind():
    (passed,), _ = through([answer(job(), by=50.0, weights=TRACKED)], [job()], weights=TRACKED, clip=5.0)
    shift = passed.weights["norm1.clean.running_mean"]  # which were 0, and variances 1
    assert shift.abs().max() <= 0.5


def test_each_entry_has_its_own_bound():
    usual = USUAL | {"norm1.clean.running_mean": 1.0}
    (passed,), _ = through([answer(job(), by=3.0, weights=TRACKED)], [job()], weights=TRACKED, clip=5.0, usual=usual)
    old = cut(NET, LAYOUT, TRACKED, passed.parts)
    moved = {name: float((value - old[name]).mean()) for name, value in passed.weights.items()}
    assert moved["norm1.clean.running_mean"] == pytest.approx(3.0)
    assert moved["fc1.weight"] == pytest.approx(0.1 * 0.5 / 3, rel=1e-3)


def test_an_entry_may_always_move_by_a_trace_of_its_size():
    usual = dict.fromkeys(WEIGHTS, 1e-12) | {"steps": 3.0}
    old = cut(NET, LAYOUT, WEIGHTS, bases(1, 2))
    sent = replace(answer(job()), weights={name: 1.0001 * value for name, value in old.items()})
    assert through([sent], [job()], clip=5.0, usual=usual)[1].seen.clipped == []


def test_more_steps_may_go_further():
    profiles = [replace(PROFILES[0], samples=40)]
    admission = Admission(NET, LAYOUT, WEIGHTS, profiles, clip=5.0, usual=USUAL)
    (passed,) = admission.admitted([job()], [answer(job(), by=100.0, samples=36)])  # nine steps, where three are usual
    assert far(passed) == pytest.approx([0.3 * 1.5 / 100] * 2, rel=1e-2)


def test_claiming_ever_more_steps_does_not_help():
    profiles = [replace(PROFILES[0], samples=10**18)]
    admission = Admission(NET, LAYOUT, WEIGHTS, profiles, clip=5.0, usual=USUAL)
    (passed,) = admission.admitted([job()], [answer(job(), by=100.0, samples=10**18)])
    assert far(passed) == pytest.approx([0.5 * 2.5 / 100] * 2, rel=1e-2)  # five times the usual, and no more


def test_usual_is_the_median_of_the_clients_with_a_vote_each():
    jobs = [job(0), job(1, 0), job(2), job(3, 0, 1, 2, 3)]
    distances = [0.1, 0.2, 0.3, 0.4]
    _, admission = through([answer(j, by=d) for j, d in zip(jobs, distances, strict=True)], jobs)
    found = admission.usual_next()
    assert found == pytest.approx(dict.fromkeys(WEIGHTS, 0.2) | {"steps": 3.0}, rel=1e-4)  # the lower of the two


def test_what_is_usual_grows_no_faster_than_the_bound():
    jobs = [job(client) for client in range(5)]
    _, admission = through([answer(j, by=1e3) for j in jobs], jobs, clip=5.0, usual=USUAL)
    assert admission.usual_next()["fc1.weight"] == pytest.approx(0.5, rel=1e-4)


def test_two_clients_do_not_say_what_is_usual():
    jobs = [job(0), job(1)]
    _, admission = through([answer(j, by=0.3) for j in jobs], jobs, clip=5.0, usual=USUAL)
    assert admission.usual_next() == USUAL


def test_a_round_in_which_nothing_moved_sets_no_bound():
    jobs = [job(client) for client in range(3)]
    _, admission = through([answer(j, by=0.0) for j in jobs], jobs, clip=5.0)
    old = cut(NET, LAYOUT, WEIGHTS, bases(1, 2))
    sent = replace(answer(job()), weights={name: 1.1 * value for name, value in old.items()})
    assert through([sent], [job()], clip=5.0, usual=admission.usual_next())[1].seen.clipped == []


def test_the_bound_is_the_same_however_the_tensors_lie_in_memory():
    sent = answer(job(), by=100.0)
    lying = {name: value.transpose(0, -1).contiguous().transpose(0, -1) for name, value in sent.weights.items()}
    results = [through([replace(sent, weights=w)], [job()], clip=5.0, usual=USUAL)[0][0] for w in (sent.weights, lying)]
    assert to_bytes(results[0].weights) == to_bytes({n: v.contiguous() for n, v in results[1].weights.items()})
