"""Contenders: methods as they are named on the command line."""

import pytest

from splitmix.compare.compare import compared_runs, parse_contender, parse_contenders, with_rates
from splitmix.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "method", "label", "slug"),
    [
        ("fedavg", "fedavg", "fedavg", "fedavg"),
        ("fedavg:width=1/8", {"name": "fedavg", "width": "1/8"}, "fedavg 1/8", "fedavg-1of8"),
        ('{name="fedavg", width="1/8"}', {"name": "fedavg", "width": "1/8"}, "fedavg 1/8", "fedavg-1of8"),
        (
            "sheterofl:listed=1/8 1 1,released_weighting=true",
            {"name": "sheterofl", "listed": "1/8 1 1", "released_weighting": True},
            "sheterofl listed=1/8 1 1 released_weighting",
            "sheterofl-listed=1of8-1-1-released-weighting",
        ),
    ],
)
def test_a_method_is_named_with_its_own_settings(text, method, label, slug):
    contender = parse_contender(text)
    assert (contender.method, contender.label, contender.slug) == (method, label, slug)


@pytest.mark.parametrize("text", ["", ":width=1", "fedavg:width", "{name=", "{}", "splitmix:lr=much", "splitmix:lr=-1"])
def test_what_names_no_method_is_one_sentence(text):
    with pytest.raises(UserError) as refusal:
        parse_contender(text)
    assert "\n" not in str(refusal.value)


def test_each_method_gets_its_tuned_rate_and_an_own_one_stays():
    tuned = with_rates(parse_contenders(["splitmix", "fedavg:lr=0.5"]), {"splitmix": 0.03})
    assert [(contender.lr, contender.label) for contender in tuned] == [(0.03, "splitmix"), (0.5, "fedavg lr=0.5")]
    with pytest.raises(UserError, match="no rate for 'heterofl', only for splitmix"):
        with_rates(parse_contenders(["heterofl"]), {"splitmix": 0.03})


def test_the_same_method_under_two_names_is_refused(tmp_path):
    twice = parse_contenders(["splitmix", "splitmix:lr=0.1"])
    with pytest.raises(UserError, match="are the same"):
        compared_runs({"task": "mini"}, twice, [1], tmp_path)
