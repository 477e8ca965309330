"""What numbers of several seeds and clients say, by cases that can be worked out by hand."""

import math

import pytest

from splitmix.compare.statistics import clear_lead, paired_bootstrap
from splitmix.core.errors import UserError

SEEDS = {1: [0.80, 0.70, 0.95, 0.60], 2: [0.82, 0.66, 0.90, 0.64], 3: [0.78, 0.72, 0.91, 0.61]}


def shifted(values, *by):
    """The values of each seed, moved client by client."""
    return {seed: [a + b for a, b in zip(own, by, strict=True)] for seed, own in values.items()}


@pytest.mark.parametrize(
    ("first", "second", "clear"),
    [
        ([0.5, 0.5], [0.4, 0.4], True),  # no spread at all
        ([0.5, 0.5], [0.5, 0.5], False),
        ([0.4, 0.4], [0.5, 0.5], False),
        ([0.50, 0.52, 0.54], [0.44, 0.46, 0.48], True),  # t = 3.7 at 4 degrees of freedom, where 2.8 is needed
        ([0.50, 0.52, 0.54], [0.46, 0.48, 0.50], False),  # t = 2.4
        ([0.50, 0.54], [0.40, 0.44], False),  # t = 3.5 at 2 degrees, where 4.3 is needed
    ],
)
def test_welchs_test_by_hand(first, second, clear):
    assert clear_lead(first, second) is clear


@pytest.mark.parametrize(
    ("shift", "verdict"),
    [
        ([0, 0, 0, 0], "not clear"),
        ([0.05, 0.05, 0.05, 0.05], "higher"),  # far less than clients differ: they are paired
        ([-0.05, -0.05, -0.05, -0.05], "lower"),
        ([0.2, -0.1, 0.1, -0.2], "not clear"),  # better for some, worse for others
        ([0.01, 0.03, 0.02, 0.04], "higher"),
    ],
)
@pytest.mark.parametrize("seeds", [3, 1])
def test_a_difference_is_clear_if_it_holds_for_other_clients_and_seeds(shift, verdict, seeds):
    values = {seed: SEEDS[seed] for seed in range(1, seeds + 1)}
    found = paired_bootstrap(shifted(values, *shift), values)
    assert ("higher" if found.low > 0 else "lower" if found.high < 0 else "not clear") == verdict
    assert found.difference == pytest.approx(sum(shift) / 4)
    assert found.low - 1e-12 <= found.difference <= found.high + 1e-12


def test_a_method_that_leads_with_one_seed_and_not_with_another_does_not_lead_clearly():
    one, two = ({1: [0.5 + lead] * 50, 2: [0.5 - lead / 2] * 50} for lead in (0.1, 0.0))
    found = paired_bootstrap(one, two)
    assert (found.low, found.high) == (pytest.approx(-0.05), pytest.approx(0.1))


def test_the_interval_is_as_wide_as_a_mean_of_clients_spreads():
    found = paired_bootstrap({1: [0.0, 1.0] * 50}, {1: [0.5] * 100})
    assert found.difference == 0
    assert found.high == pytest.approx(1.96 * 0.5 / math.sqrt(100), abs=0.01)


def test_the_same_values_give_the_same_interval_and_order_of_methods_only_turns_it():
    other = shifted(SEEDS, 0.1, -0.02, 0.05, 0.0)
    assert paired_bootstrap(SEEDS, other) == paired_bootstrap(SEEDS, other)
    assert paired_bootstrap(SEEDS, other).low == pytest.approx(-paired_bootstrap(other, SEEDS).high)


def test_a_single_client_with_one_seed_tells_nothing():
    assert paired_bootstrap({1: [0.9]}, {1: [0.1]})[1:] == (-math.inf, math.inf)


def test_clients_without_images_are_left_out():
    whole, without = ({1: [0.9, 0.8]}, {1: [0.7, 0.5]}), ({1: [0.9, None, 0.8]}, {1: [0.7, None, 0.5]})
    assert paired_bootstrap(*without) == paired_bootstrap(*whole)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({1: [0.5]}, {2: [0.5]}, "the seeds 1 and 2"),
        ({}, {}, "the seeds none and none"),
        ({1: [0.5, 0.6]}, {1: [0.5]}, "same clients"),
        ({1: [0.5, None]}, {1: [None, 0.5]}, "same clients"),
        ({1: [None]}, {1: [None]}, "nothing to pair"),
    ],
)
def test_what_cannot_be_paired_is_told(first, second, told):
    with pytest.raises(UserError, match=told):
        paired_bootstrap(first, second)


def test_of_four_seeds_three_are_drawn():
    """All three are the lowest in 1 of 64 draws, less than 2.5 %; two are, and one is the next, in 3 of 64."""
    none = {seed: [0.0, 0.0] for seed in range(4)}
    found = paired_bootstrap({seed: [seed / 10] * 2 for seed in range(4)}, none)
    assert (found.low, found.high) == pytest.approx((0.1 / 3, 0.8 / 3))
