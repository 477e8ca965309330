"""What a comparison tells: statistics, marks, tables and the page, from runs made by hand."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest

from helpers.made_runs import COSTS, WIDTHS, fake_run, make_entry
from helpers.pages import Tags, assert_whole
from splitmix.compare import figures as compare_figures
from splitmix.compare import maps as compare_maps
from splitmix.compare.coverage import read_costs
from splitmix.compare.page import comparison_headline as headline
from splitmix.compare.page import comparison_page, write_comparison
from splitmix.compare.standings import (
    asks_too_much,
    compared_widths,
    cost_table,
    overview_table,
    standings,
    summary_rows,
    winners,
)
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.methods import METHODS
from splitmix.report.drawing import NothingToDrawError

pytestmark = pytest.mark.slow  # draws every picture
EVIL = "<script>$x^_&\\"


@pytest.fixture
def entry(tmp_path):
    return partial(make_entry, tmp_path)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Split-Mix ahead of HeteroFL, and FedAvg of one width above both, for which it breaks the budgets."""
    make = partial(make_entry, tmp_path_factory.mktemp("three"), domains=("pen", EVIL))
    return [
        make("splitmix", 0.80, 0.81, 0.82),
        make("heterofl", 0.70, 0.71, 0.72),
        make("fedavg 1/4", 0.90, 0.91, 0.92, method={"name": "fedavg", "width": "1/4"}, widths=("1/4",)),
    ]


@pytest.fixture(scope="module")
def written(three, tmp_path_factory):
    """The files of a comparison, drawn once; a stranger named a domain, a method and the command."""
    fourth = make_entry(tmp_path_factory.mktemp("four"), "heterofl", 0.6, 0.61, 0.62, domains=("pen", EVIL))
    entries = [*three, replace(fourth, label=EVIL)]
    return entries, write_comparison(tmp_path_factory.mktemp("out"), entries, command=EVIL)


# --- who leads ----------------------------------------------------------------------------------------------------


def test_mean_and_spread_are_those_of_the_seeds(three):
    row = summary_rows(three)[0]
    assert (row["mean"], row["spread"]) == (pytest.approx(0.81), pytest.approx(0.01))
    assert row["seeds"] == {"1": 0.80, "2": 0.81, "3": 0.82}
    assert (row["width"], row["macs"], row["parameters"], row["download"]) == ("1/8", 10_000, 1000, 1000)


@pytest.mark.parametrize(
    ("others", "winner"),
    [
        ([(0.79, 0.81, 0.83)], None),  # nearer than the spread
        ([(0.59, 0.61, 0.63)], "splitmix"),
        ([(0.70, 0.71, 0.72), (0.40, 0.60, 0.90)], None),  # all others must be led clearly, not just the second
        ([], None),  # without a rival there is no winner
    ],
)
def test_a_winner_leads_every_other_by_more_than_the_spread(entry, others, winner):
    rivals = [replace(entry("heterofl", *values), label=f"rival {i}") for i, values in enumerate(others)]
    assert set(winners([entry("splitmix", 0.80, 0.82, 0.84), *rivals]).values()) == {winner}


def test_one_seed_names_no_winner(entry):
    entries = [entry("splitmix", 0.9), entry("heterofl", 0.1)]
    assert set(winners(entries).values()) == {None}
    assert headline(entries) == "One seed names no winner. Highest at full width: splitmix, 96.0 %."
    assert summary_rows(entries)[0]["spread"] is None


def test_a_method_beyond_the_budgets_is_grey_and_never_marked(three):
    best = standings(three, "1/4")
    assert [(s.label, s.over_budget, s.winner) for s in best] == [
        ("fedavg 1/4", True, False),
        ("splitmix", False, True),
        ("heterofl", False, False),
    ]
    assert overview_table(three).grey == [2]


CLIENTS = [{"client": i, "domain": "pen", "budget": width} for i, width in enumerate(WIDTHS)]


@pytest.mark.parametrize(
    ("method", "too_much"),
    [
        ({"name": "fedavg", "width": "1/8"}, False),  # all can afford it, so it is a rival like any other
        ({"name": "fedavg", "width": "1/4"}, True),
        ({"name": "fedavg", "width": "1/4", "mode": "strict"}, False),
        *((name, name == "fedavg") for name in METHODS),
    ],
)
def test_budgets_are_broken_by_what_is_handed_out(method, too_much):
    assert asks_too_much(method, "1/8", CLIENTS, seed=1) is too_much


def test_widths_worth_a_column_are_the_budgets_and_those_of_single_nets(entry):
    every = tuple(str(Width(i, 8)) for i in range(1, 9))
    entries = [entry("splitmix", 0.8, widths=every), entry("fedavg 3/8", 0.8, method="fedavg", widths=("3/8",))]
    assert compared_widths(entries) == ["1/8", "1/4", "3/8", "1/2", "1"]


def test_runs_that_measured_different_things_are_not_compared(tmp_path, entry):
    entries = [entry("splitmix", 0.8), entry("heterofl", 0.8, task="digits")]
    with pytest.raises(UserError, match="cannot be compared"):
        write_comparison(tmp_path / "out", entries)


# --- tables -------------------------------------------------------------------------------------------------------


def test_the_overview_has_a_row_for_each_method_and_a_star_for_each_winner(three):
    lines = overview_table(three).to_text().splitlines()
    assert re.split(r"  +", lines[4].strip())[:3] == ["splitmix", "81.0 ± 1.0*", "83.0 ± 1.0*"]
    assert re.split(r"  +", lines[6].strip())[:4] == ["fedavg 1/4 (over budget)", "-", "91.0 ± 1.0", "-"]
    assert lines[4].index("81.0") == lines[5].index("71.0")  # the star pushes nothing out of line


def test_the_costs_stand_beside_the_accuracy_best_first(three):
    cells = cost_table(three).cells()
    assert [row[:2] for row in cells[:2]] == [["1/8", "splitmix"], ["1/8", "heterofl"]]
    assert cells[0][2:] == ["81.0 ± 1.0", "10.0k", "1.00k", "1.00k", "0.50"]


@pytest.mark.parametrize(("came", "download", "training"), [(4, 1000, 75), (2, 2000, 150)])
def test_what_clients_are_sent_and_train_is_the_mean_over_those_who_took_part(entry, came, download, training):
    lone = entry("splitmix", 0.8)
    (run,) = lone.runs
    rows = [{**row, "clients": came} if row["kind"] == "round" else row for row in run.metrics]
    found = replace(lone, runs=(replace(run, metrics=rows),))
    assert (found.download, found.training) == (download, training)


def test_markdown_has_bold_winners_and_italic_bounds(three):
    text = overview_table(three).to_markdown()
    assert "| splitmix | **81.0 ± 1.0** |" in text
    assert "| *fedavg 1/4 (over budget)* | *-* | *91.0 ± 1.0* |" in text


def test_latex_is_booktabs_with_bold_winners_and_grey_bounds(three):
    text = overview_table(three).to_latex()
    assert r"\begin{tabular}{lrrrrrrr}" in text
    assert r"splitmix & \textbf{81.0 $\pm$ 1.0} &" in text
    assert r"\textcolor{gray}{fedavg 1/4 (over budget)} &" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"two-sided, 5 \%"))
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {7}


# --- the page and the files beside it -----------------------------------------------------------------------------


def test_the_headline_says_who_leads_where(three, entry):
    assert headline(three[:2]) == "At 1/8, 1/4, 1/2 and full width splitmix leads."
    assert headline([three[0], entry("heterofl", 0.79, 0.81, 0.83)]) == "No method leads clearly at any width."


def test_the_page_holds_all_pictures_and_needs_nothing_but_itself(written):
    html = written[1].page.read_text()
    page = Tags(html)
    assert_whole(html)
    assert page.tags.count("svg") == 7
    assert "script" not in page.tags
    assert page.text.count(EVIL) > 5  # names are text


def test_all_files_tell_the_same_numbers(written):
    entries, files = written
    found = json.loads(files.rows.read_text())
    assert found["winners"] == dict.fromkeys(WIDTHS, "splitmix")
    assert found["rows"] == summary_rows(entries)
    assert files.markdown.read_text().startswith(overview_table(entries).to_markdown())
    assert cost_table(entries).to_latex() in files.latex.read_text()


def test_the_same_runs_give_the_same_page(written):
    entries, files = written
    assert comparison_page(entries, EVIL) == files.page.read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"down": "much"}'])
def test_costs_that_cannot_be_read_count_as_none(tmp_path, text):
    run = fake_run(tmp_path / "run")
    assert read_costs(run) == COSTS
    (run / "costs.json").write_text(text)
    assert read_costs(run) is None


def test_runs_without_costs_or_validation_have_a_smaller_page(entry, tmp_path):
    lone = entry("splitmix", 0.8, widths=("1",))
    (run,) = lone.runs
    bare = replace(lone, runs=(replace(run, metrics=[], costs=None),))
    page = Tags(write_comparison(tmp_path / "out", [bare]).page.read_text())
    assert page.tags.count("svg") == 3  # two prices and the clients


def test_pictures_say_a_fact_from_the_numbers(three):
    titles = [
        compare_figures.price_tradeoff(three).alt,
        compare_figures.learning_race(three).alt,
        compare_figures.learning_race(three, "seconds").alt,
        compare_maps.client_boxes(three).alt,
        compare_maps.domain_losses(three).alt,
        compare_maps.coverage_map(three).alt,
    ]
    assert [title.split(";")[0] for title in titles] == [
        "Unbeaten at its price in MACs: splitmix at 4 widths",
        "At full width splitmix reaches 77 % in round 20, heterofl in round 20",
        "At full width splitmix reaches 77 % after 40.0 s, heterofl after 40.0 s",
        "The worst-off client fares best under splitmix: 84.0 %",
        "Worst against FedAvg of the same width: heterofl on pen, width 1/4: -18.0",
        "Only 50 % of the net ever met the data of pen under splitmix",
    ]


def test_without_fedavg_there_is_no_map_of_losses(three):
    with pytest.raises(NothingToDrawError):
        compare_maps.domain_losses(three[:2])


def test_fedavg_of_several_widths_is_one_line(three, entry):
    other = entry("fedavg 1/2", 0.9, 0.9, 0.9, method={"name": "fedavg", "width": "1/2"}, widths=("1/2",))
    assert [*compare_figures.families([*three, other])] == ["splitmix", "heterofl", "fedavg"]
