"""Widths and dials as strangers write them: exact, and never longer to read than a moment."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitmix.core.errors import UserError, shown
from splitmix.core.width import parse_dial, parse_number, parse_width

# what would take minutes, memory or a traceback if it were made a fraction as it stands
ENDLESS = ["1e20000000", "1e-300000", "0." + "0" * 10**6 + "1", "1/" + "9" * 10**5, 10**6000]
NO_NUMBER = [
    "",
    " ",
    "half",
    "1/0",
    "1/8/8",
    "1 / 8",
    "1_0/80",
    "\u0661/8",
    "\u00bd",
    "nan",
    "1e-1",
    "0x1",
    None,
    [],
    {},
]


@pytest.mark.parametrize("value", [*ENDLESS, *NO_NUMBER, float("nan"), float("inf"), Fraction(1, 3**400)], ids=shown)
def test_what_is_no_width_is_refused_in_a_short_sentence(value):
    with pytest.raises(UserError, match="is not a width; write a fraction such as 1/8") as refusal:
        parse_width(value)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("value", [0, -1, "-1/8", "9/8", 1.5])
def test_widths_lie_between_nothing_and_the_full_net(value):
    with pytest.raises(UserError, match=r"outside \(0, 1\]"):
        parse_width(value)


@pytest.mark.parametrize("value", ["1/99999999999", "0.30000000000000004", Fraction(10**10, 10**10 + 1)])
def test_widths_of_no_channel_and_those_that_take_long_to_write_are_refused(value):
    with pytest.raises(UserError, match="too narrow or too fine; give 1/1000 or more"):
        parse_width(value)


@pytest.mark.parametrize("value", [*ENDLESS, *NO_NUMBER, -0.1, 1.1, "2", float("inf"), float("nan")], ids=shown)
def test_what_is_no_dial_is_refused_in_a_short_sentence(value):
    with pytest.raises(UserError, match=r"outside \[0, 1\]|is not a robustness dial; give a plain number") as refusal:
        parse_dial(value)
    assert len(str(refusal.value)) < 200


@given(st.fractions(Fraction(1, 1000), 1, max_denominator=10**8))
def test_a_width_is_read_as_it_is_written(width):
    assert parse_width(str(width)) == parse_width(width) == width


@given(st.integers(1, 1000))
def test_a_number_is_read_in_its_shortest_decimals(number):
    assert parse_width(number / 1000) == Fraction(number, 1000)
    assert parse_dial(number / 1000) == number / 1000


def test_numbers_are_plain_fractions_and_decimals():
    assert [parse_number(text) for text in (" 8/255", ".5", "-2.", "+07")] == [Fraction(8, 255), 0.5, -2, 7]
