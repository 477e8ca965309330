"""Budgets: the laws' counts, their orders, and what can be read from a config."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitmix.core.errors import UserError
from splitmix.data.budgets import BUDGETS, Budgets, Each, Groups, LogNormal, check_budgets, parse_budgets, parse_law

EIGHTH = Fraction(1, 8)


def counts(widths):
    return [count for _, count in sorted(Counter(widths).items())]


@pytest.mark.parametrize(("clients", "expected"), [(100, [25, 25, 25, 25]), (50, [13, 12, 13, 12]), (30, [8, 7, 8, 7])])
def test_groups_have_the_papers_sizes(clients, expected):
    budgets = parse_budgets("exponential", clients=clients).at(0)
    assert counts(budgets) == expected
    assert list(budgets) == sorted(budgets)


@pytest.mark.parametrize(
    ("clients", "expected"), [(50, [8, 14, 11, 7, 4, 3, 1, 2]), (100, [16, 28, 22, 15, 8, 5, 2, 4])]
)
def test_the_log_normal_law_has_the_papers_counts(clients, expected):
    budgets = LogNormal(0.5, 0.4)(clients, None)
    assert counts(budgets) == expected
    assert set(budgets) == {EIGHTH * i for i in range(1, 9)}


@settings(max_examples=25)
@given(st.integers(1, 200), st.floats(0.3, 3), st.floats(0.3, 3), st.sampled_from(["1/8", "1/4", "1/3", "3/8", "1"]))
def test_the_log_normal_law_gives_each_client_a_multiple_of_the_atom(clients, s, scale, atom):
    budgets = LogNormal(s, scale, Fraction(atom))(clients, None)
    assert len(budgets) == clients
    assert all(width % Fraction(atom) == 0 and 0 < width <= 1 for width in budgets)


@pytest.mark.parametrize("name", BUDGETS)
@settings(max_examples=5)
@given(st.integers(1, 60), st.integers(0, 99), st.integers(0, 99))
def test_any_order_hands_out_the_same_budgets(name, clients, seed, round):
    plain = Budgets(BUDGETS[name], clients).at(0)
    shuffled = Budgets(BUDGETS[name], clients, order="shuffled", seed=seed).at(round)
    redrawn = Budgets(BUDGETS[name], clients, redraw=True, seed=seed).at(round)
    assert sorted(plain) == sorted(shuffled) == sorted(redrawn)
    assert all(isinstance(width, Fraction) for width in plain)


def test_fixed_budgets_stay_and_redrawn_ones_change():
    fixed = Budgets(BUDGETS["exponential"], 20, order="shuffled", seed=1)
    redrawn = Budgets(BUDGETS["exponential"], 20, redraw=True, seed=1)
    assert fixed.at(0) == fixed.at(5)
    assert redrawn.at(0) != redrawn.at(5)
    assert redrawn.at(5) == redrawn.at(5)
    seen = np.array([[float(width) for width in redrawn.at(round)] for round in range(60)])
    assert all(len(np.unique(seen[:, client])) == 4 for client in range(20))  # every width visits every client


def test_an_explicit_order_serves_clients_in_that_order_and_each_can_have_its_own_budget():
    budgets = parse_budgets({"name": "exponential", "order": [2, 0, 3, 1]}, clients=4).at(0)
    assert budgets == (Fraction(1, 4), Fraction(1), EIGHTH, Fraction(1, 2))
    assert parse_budgets({"name": "each", "widths": ["1", "1/8"]}, clients=2).at(0) == (1, EIGHTH)


@pytest.mark.parametrize(
    "value",
    ["1/8 1/4 1/2 1", "1/8, 1/4,1/2 , 1", ["1/8", 0.25, 0.5, 1], {"widths": "1 1/2 1/4 1/8"}, "exponential"],
)
def test_the_same_budgets_can_be_written_in_many_ways(value):
    assert parse_budgets(value, clients=8).at(0) == Budgets(BUDGETS["exponential"], 8).at(0)


def test_a_single_width_and_ready_made_laws_can_be_read():
    assert parse_law(0.5) == parse_law("1/2") == Groups((Fraction(1, 2),))
    assert parse_law({"name": "lognormal", "s": 1.0, "atom": "1/4"}) == LogNormal(1.0, atom=Fraction(1, 4))
    assert parse_law(LogNormal()) == LogNormal()
    ready = Budgets(Each((EIGHTH,)), 1)
    assert parse_budgets(ready, clients=1) is ready


def test_budgets_need_at_least_one_atom():
    check_budgets(parse_budgets("exponential", clients=4), EIGHTH)
    with pytest.raises(UserError, match=r"client 0 has a budget of 1/8, below the atom 1/4.*1 of 4 clients"):
        check_budgets(parse_budgets("exponential", clients=4), Fraction(1, 4))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("exponental", "did you mean 'exponential'"),
        ({"name": "logn"}, "unknown budgets 'logn'"),
        ({}, "unknown budgets ''"),
        ("", "unknown budgets ''"),
        ([], "there are no widths"),
        ("1/8 2", "width 2 is outside (0, 1]"),
        ("1/8 a", "'a' is not a width"),
        ("8-4-2-1", "'8-4-2-1' is not a width"),
        ({"name": "groups"}, "cannot be made from nothing; give widths"),
        ({"name": "lognormal", "scale": 0}, "scale 0 of the log-normal law is not positive"),
        ({"name": "lognormal", "scale": 1e-9}, "no client would reach the atom 1/8"),
        ({"name": "lognormal", "scales": 1}, "did you mean 'scale'"),
        ({"name": "lognormal", "s": "big"}, "cannot be made from {'s': 'big'}"),
        ({"name": "full", "widths": "1"}, "the budgets full have no setting 'widths'"),
        ({"name": "each", "widths": "1 1"}, "2 budgets for 3 clients"),
        ({"name": "full", "order": "up"}, "unknown order of budgets 'up'"),
        ({"name": "full", "order": [0, 1, 1]}, "must name each client from 0 to 2 once"),
        ({"name": "full", "order": 7}, "must name each client"),
        ({"name": "full", "order": [0, 1, 2], "redraw": True}, "cannot keep an order"),
        ({"name": "full", "seed": -3}, "seed -3 is negative"),
    ],
)
def test_mistakes_get_one_sentence(value, sentence):
    with pytest.raises(UserError) as caught:
        parse_budgets(value, clients=3).at(0)
    assert sentence in str(caught.value)


def test_no_clients_or_a_law_that_miscounts_get_one_sentence():
    with pytest.raises(UserError, match="0 clients is too few"):
        Budgets(BUDGETS["full"], 0)
    with pytest.raises(UserError, match="gave 0 budgets for 2 clients"):
        Budgets(lambda clients, rng: (), 2).at(0)
