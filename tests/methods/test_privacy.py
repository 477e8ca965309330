"""Privacy of clients: how far one can move the weights, what covers it, what that is worth, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from helpers.runs import run
from helpers.small_task import SETTINGS
from helpers.toys import (
    ATOM,
    FULL,
    HALF,
    LAYOUT,
    METHOD,
    Tiny,
    ToyClients,
    to_bytes,
    toy_federation,
    toy_run,
    toy_simulator,
)
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import covering, merge, returned, times_held
from splitmix.core.rounds import make_jobs
from splitmix.core.types import Plan, Setting, Update
from splitmix.methods import METHODS, find_method
from splitmix.methods.privacy import Gaussian, find_privacy, shortened
from splitmix.runs.config import make_config
from splitmix.runs.records import read_metrics, read_result
from splitmix.runs.setup import federation, set_up

NET = Net(Tiny)
SETTING = Setting(ATOM, (ATOM, HALF, FULL), seed=3)
MISSING = 'dp-accounting is not installed; pip install "splitmix[privacy]"'


@pytest.fixture(params=METHODS)
def method(request):
    return find_method(request.param, SETTING)


def round_of(method, *, number=0, far=10.0):
    """Weights, the jobs of a round, and updates that go far."""
    weights, cohort = NET.init(method.layout, seed=1), ToyClients().profiles(number)
    jobs = make_jobs(method.assign(number, cohort), cohort, number, Plan(), toy_federation())
    updates = []
    for job in jobs:
        rng = torch.Generator().manual_seed(job.client)
        sent = returned(NET, method.layout, weights, job)
        came = {name: value + far * torch.randn(value.shape, generator=rng) for name, value in sent.items()}
        updates.append(Update(number, job.client, job.parts, came, samples=job.client + 1))
    return weights, jobs, updates


def times_of(method, weights, jobs):
    return times_held(NET, method.layout, weights, [part for job in jobs for part in covering(job.parts)])


def length(weights):
    return math.sqrt(sum(float(value.double().square().sum()) for value in weights.values()))


def test_no_client_moves_the_sum_over_all_bases_further_than_the_clip(method):
    weights, jobs, updates = round_of(method)
    everyone = Gaussian(clip=0.5).merge(NET, method.layout, weights, jobs, updates, 0)
    times = times_of(method, weights, jobs)
    for update in updates:
        others = [other for other in updates if other is not update]
        without = Gaussian(clip=0.5).merge(NET, method.layout, weights, jobs, others, 0)
        moved = {name: (everyone[name] - without[name]) * times[name] for name in weights}
        assert length(moved) == pytest.approx(0.5, rel=1e-3)


def test_clients_that_go_less_far_are_averaged_as_they_are_with_a_vote_each(method):
    weights, jobs, updates = round_of(method)
    found = Gaussian(clip=1e9).merge(NET, method.layout, weights, jobs, updates, 0)
    assert_close(found, merge(NET, method.layout, weights, [replace(update, samples=1) for update in updates]))


def test_noise_is_on_every_number_that_someone_was_asked_to_train_and_on_no_other(method):
    weights, jobs, updates = round_of(method)
    plain = Gaussian(clip=2.0).merge(NET, method.layout, weights, jobs[:2], updates[:2], 0)
    noisy = Gaussian(clip=2.0, noise=3.0).merge(NET, method.layout, weights, jobs[:2], updates[:2], 0)
    times = torch.cat([value.flatten() for value in times_of(method, weights, jobs[:2]).values()])
    noise = torch.cat([(noisy[name] - plain[name]).flatten() for name in weights])
    assert (noise[times > 0] != 0).all()
    assert not noise[times == 0].any()
    of_sums = noise[times > 0] * times[times > 0]
    assert float(of_sums.std()) == pytest.approx(6.0, rel=0.1)
    assert abs(float(of_sums.mean())) < 0.6


def test_the_changes_of_all_bases_are_one_length():
    old = {"w": torch.zeros(2, 2), "b": torch.zeros(2, 1)}
    new = {"w": torch.tensor([[3.0, 0.0], [0.0, 0.0]]), "b": torch.tensor([[0.0], [4.0]])}
    short = shortened(new, old, 1.0)
    assert_close(short, {"w": torch.tensor([[0.6, 0.0], [0.0, 0.0]]), "b": torch.tensor([[0.0], [0.8]])})
    assert length(shortened(new, old, 4.9)) == pytest.approx(4.9)
    assert shortened(new, old, 5.0) is new


def test_who_gives_no_update_counts_as_one_that_changes_nothing():
    weights, jobs, updates = round_of(METHOD, far=0.01)
    found = Gaussian(clip=1e9).merge(NET, LAYOUT, weights, jobs, updates[:1], 0)
    same = [Update(0, job.client, job.parts, returned(NET, LAYOUT, weights, job), 1) for job in jobs[1:]]
    assert_close(found, merge(NET, LAYOUT, weights, [replace(updates[0], samples=1), *same]))


def test_norms_that_stay_on_clients_have_no_noise():
    how = replace(toy_federation(local_norms=True), privacy=Gaussian(clip=1.0, noise=1.0))
    start = NET.init(LAYOUT, 0, tracked=True)
    found, norms = toy_run(how, weights=start), NET.norm_names(ATOM)
    assert all((found[name] == start[name]).all() == (name in norms) for name in start)


def test_noise_has_an_address_and_is_never_used_for_another_sum(tmp_path):
    weights, jobs, updates = round_of(METHOD)
    (tmp_path / "key").write_bytes(bytes(range(16)))

    def noise(updates=updates, jobs=jobs, seed=0, **settings):
        args = (NET, LAYOUT, weights, jobs, updates, seed)
        noisy, plain = (Gaussian(clip=1.0, **own).merge(*args) for own in ({"noise": 1.0, **settings}, {}))
        return (noisy["fc1.weight"] - plain["fc1.weight"]).round(decimals=3)

    later = [replace(job, round=1) for job in jobs]
    others = [noise(updates[:1]), noise(seed=1), noise(jobs=later), noise(key=str(tmp_path / "key"))]
    assert noise().equal(noise())
    assert not any(noise().equal(other) for other in others)


def test_neither_noise_nor_a_bound_is_the_run_as_it_was():
    off = make_config({"privacy": {"clip": math.inf, "noise": 0.0}})
    assert federation(off).privacy is find_privacy(None) is find_privacy({}) is None


@pytest.mark.slow
def test_rounds_with_privacy_end_with_the_same_bits_for_any_workers():
    how = replace(toy_federation(), privacy=Gaussian(clip=0.1, noise=0.5))
    assert to_bytes(toy_run(how)) == to_bytes(toy_run(how, workers=2)) != to_bytes(toy_run())


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "times", "delta"), [(1.0, 1, 1e-5), (0.7, 30, 1e-6), (12.0, 300, 1e-5)])
def test_epsilon_is_that_of_the_library(noise, times, delta):
    dp = pytest.importorskip("dp_accounting", reason=MISSING)
    found = Gaussian(clip=1.0, noise=noise, delta=delta).epsilon(times)
    renyi = dp.rdp.RdpAccountant().compose(dp.GaussianDpEvent(noise), times).get_epsilon(delta)
    assert found == dp.get_epsilon_gaussian(noise / math.sqrt(times), delta)
    assert 0.7 * renyi < found < renyi  # which is a bound that is nearly as good


@pytest.mark.slow
def test_epsilon_grows_with_rounds_and_falls_with_noise():
    pytest.importorskip("dp_accounting", reason=MISSING)
    assert Gaussian(clip=1.0, noise=1.0).epsilon(0) == 0
    assert Gaussian(clip=1.0, noise=1.0).epsilon(1) < Gaussian(clip=1.0, noise=1.0).epsilon(2)
    assert Gaussian(clip=1.0, noise=2.0).epsilon(2) < Gaussian(clip=1.0, noise=1.0).epsilon(2)


def test_a_run_tells_epsilon_of_the_client_that_was_asked_most_keeps_the_last_round_and_sends_no_statistics(
    own, tmp_path
):
    pytest.importorskip("dp_accounting", reason=MISSING)
    privacy = {"clip": 0.5, "noise": 2.0}
    run(own, tmp_path, privacy=privacy, order="natural", cohort=2, rounds=3)
    rows, result = [row for row in read_metrics(tmp_path) if row["kind"] == "round"], read_result(tmp_path)
    asked = [[client for row in rows[: n + 1] for client in row["cohort"]] for n in range(3)]
    most = [max(map(cohorts.count, cohorts)) for cohorts in asked]
    assert [row["epsilon"] for row in rows] == [Gaussian(**privacy).epsilon(times) for times in most]
    assert (result["epsilon"], result["delta"], result["best_round"]) == (rows[-1]["epsilon"], 1e-5, 2)
    assert {row["norm"] for row in result["scores"]} == {"client", "batch"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"norm": "tracked"}, "no running statistics"),
        ({"objective": {"name": "adversarial"}, "norm": "post"}, "no running statistics"),
        ({"statistics": "global"}, "never leave the clients"),
        ({"order": "greedy"}, "order = 'natural'"),
        ({"mix": "fitted"}, "mix = 'equal'"),
        ({"clip": 5.0}, "a clip of its own"),
        ({"aggregate": "median"}, "aggregate = 'mean'"),
        ({"privacy": {"noise": 1.0}}, "which is not given"),
        ({"privacy": {"clip": 0}}, "no length above 0"),
        ({"privacy": {"clip": 1.0, "noise": -1}}, "no multiple of clip"),
        ({"privacy": {"clip": 1.0, "noise": "much"}}, "no multiple of clip"),
        ({"privacy": {"clip": 1.0, "delta": 1}}, r"outside \(0, 1\)"),
        ({"privacy": {"clip": 1.0, "key": 7}}, "no path"),
        ({"privacy": {"clip": 1.0, "epsilon": 3}}, "unknown setting of privacy 'epsilon'"),
    ],
)
def test_what_would_tell_more_than_epsilon_says_is_refused_in_a_sentence(own, settings, told):
    with pytest.raises(UserError, match=told):
        set_up(make_config({"task": own, **SETTINGS, "order": "natural", "privacy": {"clip": 1.0}, **settings}))


@pytest.mark.parametrize(("content", "told"), [(None, "cannot be read"), (b"short", "has 5 bytes; give 16")])
def test_a_key_that_is_none_is_refused_before_anybody_trains(tmp_path, content, told):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    weights, jobs, _ = round_of(METHOD)
    with pytest.raises(UserError, match=told):
        Gaussian(clip=1.0, key=str(tmp_path / "key")).merge(NET, LAYOUT, weights, jobs, iter(lambda: 1 / 0, 1), 0)


def advantage(noise, trials):
    """How well someone who knows a client's update tells rounds with it from others: 0 is by chance, 1 always."""
    start, cohort = NET.init(LAYOUT, 0), ToyClients().profiles(0)
    jobs = make_jobs(METHOD.assign(0, cohort), cohort, 0, Plan(lr=0.1, batch=4), toy_federation())
    with toy_simulator() as engine:
        updates = list(engine.run(start, jobs))
    (known,) = (update for update in updates if update.client == 3)  # which trains all bases

    def likeness(came, seed):
        found = Gaussian(0.5, noise).merge(NET, LAYOUT, start, jobs, came, seed)
        return sum(float(((found[name] - start[name]) * (known.weights[name] - start[name])).sum()) for name in start)

    there = [likeness(updates, seed) for seed in range(trials)]
    away = [likeness([update for update in updates if update is not known], seed) for seed in range(trials)]
    return 2 * sum(a > b for a in there for b in away) / trials**2 - 1


@pytest.mark.slow
def test_the_more_noise_the_less_an_attacker_can_tell_who_took_part():
    assert advantage(0.01, trials=5) > 0.95
    assert advantage(20.0, trials=60) < 0.5  # by chance 0, give or take 0.1
