"""Partitioners: what each deals, and the laws that hold for all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitmix.core.errors import UserError
from splitmix.data.partition import (
    PARTITIONERS,
    ByDomain,
    Classes,
    Dirichlet,
    Iid,
    Shares,
    deal_like,
    hold_out,
    parse_partition,
    split_validation,
)

FAST = settings(max_examples=15)


def rng(seed=0):
    return np.random.default_rng(seed)


def pot(rows=120, classes=5, domains=2):
    """Labels and domain numbers: classes in turn, domains in blocks."""
    return np.arange(rows) % classes, np.arange(rows) * domains // rows


def lists(shares):
    return [rows.tolist() for rows in shares]


@pytest.mark.parametrize("name", PARTITIONERS)
@FAST
@given(st.integers(0, 999), st.integers(2, 8))
def test_no_row_is_dealt_twice_and_every_client_has_rows(name, seed, clients):
    labels, domain = pot()
    shares = PARTITIONERS[name]()(labels, domain, clients, rng(seed))
    dealt = np.concatenate(shares)
    assert len(shares) == clients
    assert min(map(len, shares)) > 0
    assert len(np.unique(dealt)) == len(dealt)


@pytest.mark.parametrize("deal", [ByDomain(), ByDomain(shuffle=False), Iid(), Dirichlet(0.1), Dirichlet(100)])
@FAST
@given(st.integers(0, 999), st.integers(2, 12))
def test_every_row_is_dealt(deal, seed, clients):
    labels, domain = pot()
    dealt = np.concatenate(deal(labels, domain, clients, rng(seed)))
    assert sorted(dealt) == list(range(120))


@pytest.mark.parametrize("name", PARTITIONERS)
def test_the_same_seed_deals_the_same_rows(name):
    labels, domain = pot()
    first, again = (PARTITIONERS[name]()(labels, domain, 6, rng(4)) for _ in range(2))
    assert lists(first) == lists(again)


def test_the_first_domains_and_clients_get_the_odd_ones():
    labels, domain = pot(rows=12, domains=3)
    shares = ByDomain()(labels, domain, 5, rng())
    assert [set(domain[rows]) for rows in shares] == [{0}, {0}, {1}, {1}, {2}]
    labels, domain = pot(rows=7, domains=1)
    assert lists(Iid(shuffle=False)(labels, domain, 3, rng())) == [[0, 1, 2], [3, 4], [5, 6]]


def test_sorted_classes_reach_all_clients_when_shuffled():
    labels = np.repeat(np.arange(2), 50)
    shares = ByDomain()(labels, np.zeros(100, np.int64), 2, rng())
    assert all(len(np.unique(labels[rows])) == 2 for rows in shares)


@FAST
@given(st.integers(0, 999), st.integers(1, 7), st.integers(1, 20))
def test_a_client_holds_exactly_k_distinct_classes(seed, k, clients):
    labels, domain = pot(rows=210, classes=7)
    shares = Classes(k)(labels, domain, clients, rng(seed))
    held = [np.unique(labels[rows]) for rows in shares]
    assert {len(classes) for classes in held} == {k}
    uses = np.bincount(np.concatenate(held), minlength=7)
    assert uses.max() - uses.min() <= 1


def test_the_rows_of_a_class_are_split_evenly_over_its_holders():
    labels, domain = pot(rows=100, classes=5)
    shares = Classes(2)(labels, domain, 10, rng())
    counts = np.array([np.bincount(labels[rows], minlength=5) for rows in shares])
    assert {int(n) for n in counts[counts > 0]} == {5}  # 20 rows of a class over 4 holders


@FAST
@given(st.integers(0, 999), st.sampled_from([0.001, 0.05, 1.0, 1e6]), st.integers(1, 10))
def test_dirichlet_gives_every_client_its_least_rows(seed, alpha, clients):
    labels, domain = pot()
    shares = Dirichlet(alpha, min_rows=12)(labels, domain, clients, rng(seed))
    assert min(map(len, shares)) >= 12


def test_a_small_alpha_is_less_even_than_a_large_one():
    labels, domain = pot(rows=1000)
    spread = [np.std([len(s) for s in Dirichlet(a, min_rows=1)(labels, domain, 10, rng())]) for a in (0.1, 100.0)]
    assert spread[0] > 3 * spread[1]


@FAST
@given(st.integers(0, 999), st.integers(2, 10))
def test_rows_dealt_alike_come_from_the_classes_a_client_trains_on(seed, clients):
    labels, domain = pot(rows=140, classes=7)
    shares = Classes(3)(labels, domain, clients, rng(seed))
    tests = deal_like(labels, shares, labels[:70], rng(seed))
    dealt = np.concatenate(tests)
    assert len(np.unique(dealt)) == len(dealt)
    for rows, test in zip(shares, tests, strict=True):
        assert len(test) > 0
        assert set(labels[test]) <= set(labels[rows])


@pytest.mark.parametrize(
    ("held", "tests", "expected"),
    [((30, 10), 8, [6, 2]), ((100, 1), 4, [3, 1])],  # in proportion, but one row for whoever would be left out
)
def test_rows_dealt_alike_follow_the_proportions_of_training(held, tests, expected):
    labels = np.zeros(sum(held), np.int64)
    shares = deal_like(labels, np.split(np.arange(sum(held)), held[:1]), labels[:tests], rng())
    assert [len(rows) for rows in shares] == expected


@FAST
@given(st.integers(2, 300), st.floats(0.001, 0.999))
def test_validation_and_training_rows_are_disjoint_and_complete(count, ratio):
    train, val = split_validation(np.arange(count), ratio)
    assert [*train, *val] == list(range(count))
    assert len(train) > 0
    assert len(val) == max(1, int(count * ratio + 1e-9))
    assert [len(part) for part in split_validation(np.arange(count), 0.0)] == [count, 0]


@FAST
@given(st.integers(0, 999), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_held_out_rows_have_nearly_the_mix_of_classes_of_the_rest(seed, sizes):
    labels = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept, out = hold_out(labels, 0.2, rng(seed))
    assert sorted([*kept, *out]) == list(range(len(labels)))
    for label, size in enumerate(sizes):
        assert abs((labels[out] == label).sum() - 0.2 * size) <= 0.5


def test_the_only_row_of_a_class_is_kept_and_of_others_at_least_one():
    kept, out = hold_out(np.array([0, 0, 1]), 0.9, rng())
    assert (2 in kept, len(kept), len(out)) == (True, 2, 1)


def test_partitions_are_read_from_names_and_settings():
    assert parse_partition({"name": "dirichlet", "alpha": 0.3}) == Dirichlet(0.3)
    assert parse_partition("domain") == ByDomain()
    own = Iid(shuffle=False)
    assert parse_partition(own) is own


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Iid()(*pot(3), 5, rng()), "3 rows cannot be dealt to 5 clients"),
        (lambda: Iid()(*pot(), 0, rng()), "0 clients is too few"),
        (lambda: ByDomain()(*pot(domains=3), 2, rng()), "2 clients cannot cover 3 domains"),
        (lambda: Classes(6)(*pot(), 4, rng()), "6 classes per client, but there are only 5"),
        (lambda: Classes(5)(*pot(20), 10, rng()), "has 4 rows for the 10 clients"),
        (lambda: Classes(0), "k 0 is no number of classes"),
        (lambda: Dirichlet(0), "alpha 0 is outside"),
        (lambda: Dirichlet(float("nan")), "alpha nan is outside"),
        (lambda: Dirichlet(min_rows=0), "min_rows 0 would leave clients without data"),
        (lambda: Dirichlet()(*pot(), 13, rng()), "120 rows cannot give 13 clients at least 10"),
        (lambda: split_validation(np.arange(3), 1.0), "val_ratio 1.0 is outside"),
        (lambda: hold_out(np.arange(3), 0.0, rng()), "test_ratio 0.0 is outside"),
        (lambda: parse_partition("domian"), "did you mean 'domain'"),
        (lambda: parse_partition({"name": "classes", "kk": 2}), "did you mean 'k'"),
        (
            lambda: parse_partition({"name": "dirichlet", "alpha": "much"}),
            "does not take these settings, {'alpha': 'much'}",
        ),
        (lambda: parse_partition(3), "3 is not a partition"),
    ],
)
def test_mistakes_get_one_sentence(make, sentence):
    with pytest.raises(UserError) as caught:
        make()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 40), st.integers(0, 60))
def test_even_shares_in_one_array_are_those_that_numpy_makes(clients, more):
    rows = np.arange(clients + more)[::-1]
    shares = Shares.even(rows, clients)
    assert [share.tolist() for share in shares] == [share.tolist() for share in np.array_split(rows, clients)]
    assert shares[-1].tolist() == shares[clients - 1].tolist()
