"""Split-Mix: who trains which bases, and which bases make up a width."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.toys import METHOD, toy_federation, toy_simulator, toy_weights
from splitmix.core.errors import UserError
from splitmix.core.rounds import federate
from splitmix.core.types import Part, Profile, Setting
from splitmix.core.width import Width
from splitmix.methods import find_method
from splitmix.methods.bases import DRAWS, FedEnsemble, SplitMix
from splitmix.methods.optimizers import SERVERS, find_server

EIGHTH = Width(1, 8)
budgets = st.fractions(EIGHTH, 1, max_denominator=40)
cohorts = st.lists(budgets, min_size=1, max_size=6)


def profiles(widths):
    return [Profile(10 + i, width, samples=20) for i, width in enumerate(widths)]


@pytest.mark.slow
@settings(max_examples=50)
@given(cohorts, st.integers(0, 50), st.integers(0, 9), st.sampled_from(DRAWS))
def test_each_client_gets_distinct_bases_as_many_as_its_budget_holds(widths, round, seed, draws):
    cohort = profiles(widths)
    assigned = SplitMix(EIGHTH, 8, seed, draws=draws).assign(round, cohort)
    for profile in cohort:
        parts = assigned[profile.client]
        assert profile.budget - EIGHTH < sum(part.width for part in parts) <= profile.budget
        assert len({part.base for part in parts}) == len(parts)


@pytest.mark.slow
@settings(max_examples=30)
@given(cohorts, st.integers(0, 50), st.sampled_from(DRAWS))
def test_who_trains_what_depends_only_on_seed_round_and_cohort(widths, round, draws):
    cohort, method = profiles(widths), SplitMix(EIGHTH, 8, seed=1, draws=draws)
    first = method.assign(round, cohort)
    method.assign(round + 1, cohort)
    assert method.assign(round, cohort) == first == SplitMix(EIGHTH, 8, seed=1, draws=draws).assign(round, cohort)


def test_another_seed_or_round_gives_other_bases():
    cohort = profiles([Width(1, 2)] * 4)
    draws = [SplitMix(EIGHTH, 8, seed).assign(round, cohort) for seed, round in [(0, 0), (0, 1), (1, 0)]]
    assert draws[0] != draws[1]
    assert draws[0] != draws[2]


@pytest.mark.parametrize("draws", DRAWS)
def test_a_client_never_gets_more_bases_than_there_are(draws):
    assigned = SplitMix(EIGHTH, count=4, draws=draws).assign(0, profiles([Width(1)]))
    assert [part.base for part in assigned[10]] == [0, 1, 2, 3]


@settings(max_examples=30)
@given(st.integers(0, 99), st.integers(1, 9), st.integers(0, 20))
def test_within_one_lap_of_the_cycle_every_base_appears_once(seed, count, lap):
    met = SplitMix(count=count, seed=seed).lap(lap)
    assert sorted(met) == list(range(count))


def test_every_lap_is_a_shuffle_of_its_own():
    laps = {tuple(SplitMix().lap(lap)) for lap in range(5)}
    assert len(laps) == 5


def trained_often(draws, rounds=200):
    """How often each client trains each base, and how often each base is trained."""
    method, cohort = SplitMix(EIGHTH, 8, draws=draws), profiles([EIGHTH, Width(1, 4), Width(1, 2), Width(1)])
    pairs, often = Counter(), Counter()
    for round in range(rounds):
        for client, parts in method.assign(round, cohort).items():
            pairs.update((client, part.base) for part in parts)
            often.update(part.base for part in parts)
    return pairs, often


def test_in_the_long_run_every_client_trains_every_base_and_all_bases_equally_often():
    pairs, often = trained_often("cycle")
    assert len(pairs) == 4 * 8
    assert max(often.values()) < 1.1 * min(often.values())


def test_anchored_draws_train_the_first_base_most_and_all_others_equally_often():
    pairs, often = trained_often("anchored")
    assert len(pairs) == 4 * 8  # still every client trains every base
    assert [pairs[client, 0] for client in (11, 12, 13)] == [200] * 3  # all that train two or more
    assert 100 <= pairs[10, 0] <= 125  # half of the time, and when it is its turn: 9/16 of 200
    rest = [often[base] for base in range(1, 8)]
    assert max(rest) < 1.2 * min(rest)


def test_an_anchored_client_of_two_bases_still_takes_its_turn_of_the_cycle():
    cohort = profiles([Width(1, 4)] * 8)
    assigned = SplitMix(draws="anchored").assign(5, cohort)
    assert {part.base for parts in assigned.values() for part in parts} == set(range(8))


def test_a_width_is_made_of_the_first_bases_of_the_order():
    method = SplitMix(EIGHTH, count=4, order=(2, 0, 3, 1))
    assert method.compose(EIGHTH) == (Part(2, EIGHTH),)
    assert SplitMix(EIGHTH, count=4).compose(Width(1, 4)) == (Part(0, EIGHTH), Part(1, EIGHTH))
    assert method.compose(Width(3, 8)) == (Part(2, EIGHTH), Part(0, EIGHTH), Part(3, EIGHTH))


def test_each_width_holds_all_narrower_ones():
    method = SplitMix(EIGHTH, count=8, order=(7, 3, 1, 0, 2, 6, 5, 4))
    mixes = [method.compose(width) for width in method.widths]
    assert [len(mix) for mix in mixes] == list(range(1, 9))
    assert all(wide[: len(narrow)] == narrow for narrow, wide in pairwise(mixes))


def test_there_are_as_many_bases_as_the_strongest_client_can_train():
    method = SplitMix.for_setting(Setting(EIGHTH, (EIGHTH, Width(1, 2), Width(3, 8)), seed=5))
    assert (method.count, method.atom, method.seed) == (4, EIGHTH, 5)


def test_widths_are_exact():
    method = SplitMix.for_setting(Setting(Width(1, 10), (Width(3, 10),), seed=0))
    assert method.widths == (Width(1, 10), Width(1, 5), Width(3, 10))


@pytest.mark.parametrize("width", [Width(1, 3), Width(1, 16), Width(9, 16)])
def test_a_width_between_the_bases_is_refused(width):
    with pytest.raises(UserError, match=f"width {width} is not a multiple of the atom 1/8; choose one of 1/8, 1/4"):
        SplitMix(EIGHTH, 8).compose(width)


def test_a_width_beyond_the_trained_bases_is_refused():
    with pytest.raises(UserError, match="width 1 needs 8 bases but only 4 were trained; widest: 1/2"):
        SplitMix(EIGHTH, 4).compose(Width(1))


def test_a_budget_below_the_atom_is_refused():
    with pytest.raises(UserError, match="client 10 has budget 1/16, below the atom 1/8; choose a smaller atom"):
        SplitMix(EIGHTH, 8).assign(0, profiles([Width(1, 16)]))


@pytest.mark.parametrize("kind", [SplitMix, FedEnsemble])
@given(st.lists(st.integers(1, 9), min_size=2, max_size=12))
@settings(max_examples=20)
def test_whatever_the_cohorts_no_base_is_dealt_twice_more_than_another(kind, sizes):
    """Nodes join and leave, profiles are refused: the cycle goes on where it stopped."""
    asked, dealt = 0, Counter(range(8))  # each once, so that none is left out
    for round, size in enumerate(sizes):
        cohort = profiles([EIGHTH if kind is SplitMix else Width(1)] * size)  # Fed-ensemble looks at no budget
        dealt.update(part.base for parts in kind().after(asked).assign(round, cohort).values() for part in parts)
        asked += size
    assert dealt.total() == 8 + asked
    assert max(dealt.values()) - min(dealt.values()) <= 1


def test_with_cohorts_of_one_size_the_place_in_the_cycle_need_not_be_told():
    cohort = profiles([Width(1, 2)] * 3)
    for round in range(4):
        assert SplitMix().assign(round, cohort) == SplitMix().after(3 * round).assign(round, cohort)


@pytest.mark.parametrize("kind", [SplitMix, FedEnsemble])
def test_until_the_fork_everybody_trains_base_0_and_then_all_goes_as_without_it(kind):
    forked, plain, cohort = kind(forked=3), kind(), profiles([EIGHTH, Width(1, 2), Width(1)])
    for round in range(3):
        assert set(forked.assign(round, cohort).values()) == {(Part(0, EIGHTH),)}
    for round in range(3, 6):
        assert forked.assign(round, cohort) == plain.assign(round, cohort)


@pytest.mark.parametrize("name", ["splitmix", "fedensemble"])
def test_a_fork_is_a_share_of_the_rounds(name):
    setting = Setting(EIGHTH, (EIGHTH,), seed=0, rounds=50)
    assert [find_method({"name": name, "fork": share}, setting).forked for share in (0, 0.2, 0.33)] == [0, 10, 16]


@pytest.mark.parametrize("server", SERVERS)
def test_until_the_fork_all_bases_are_one_and_then_they_part(server):
    how, reports = replace(toy_federation(rounds=4), server=find_server(server), average=4), []
    engine = toy_simulator()
    federate(replace(METHOD, forked=2), engine, engine.net, toy_weights(tracked=True), how, on_round=reports.append)
    for report in reports:
        one = [(value == value[:1]).all() for value in (*report.weights.values(), *report.kept.values())]
        assert all(one) if report.round < 2 else not any(one)
