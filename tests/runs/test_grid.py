"""Grids of widths and dials: what they measure, how sure they are, how they are stored, shown and drawn."""

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from helpers.grids import STRONG, finished, toy_grid
from helpers.toys import ATOM
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.report import grid_page as grid_report
from splitmix.report.grid_page import by_dial, grid_notes, grid_table, order_note, ra_sa
from splitmix.runs.measure.grid import DIALS, Sweep, measure_grid, read_grid, stored_grids
from splitmix.runs.measure.intervals import interval
from splitmix.runs.progress import Countdown
from splitmix.runs.records import write_record

KEYS = {"schema", "split", "norm", "clients", "samples", "attack", "weak", "rows"}  # what other tools read
ROW = {"width", "robust", "clean", "clean_low", "clean_high", "attacked", "attacked_low", "attacked_high"}


# --- intervals ----------------------------------------------------------------------------------------------------


def test_an_interval_is_students_t_over_clients():
    values = [0.2, 0.4, 0.6, 0.4]
    half = 3.182 * np.std(values, ddof=1) / 2  # t of three degrees
    assert interval(values, ["a"] * 4) == (pytest.approx(0.4 - half, abs=1e-3), pytest.approx(0.4 + half, abs=1e-3))


def test_differences_between_domains_do_not_widen_an_interval():
    low, high = interval([0.1, 0.2, 0.8, 0.9], ["a", "a", "b", "b"])
    spread = np.sqrt((4 * 0.05**2) / 2)  # around the mean of each domain
    assert high - low == pytest.approx(2 * 4.303 * spread / 2, abs=1e-3)
    assert (low, high) != interval([0.1, 0.2, 0.8, 0.9], ["a"] * 4)


def test_domains_of_one_client_each_are_taken_as_one_and_a_single_client_tells_nothing():
    assert interval([0.2, 0.6], ["a", "b"]) == interval([0.2, 0.6], ["a", "a"])
    assert interval([0.5], ["a"]) == (0.0, 1.0)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abc")), min_size=1, max_size=12))
def test_an_interval_holds_the_mean_and_stays_in_range(clients):
    values, groups = zip(*clients, strict=True)
    low, high = interval(values, groups)
    assert 0 <= low <= np.mean(values) + 1e-12
    assert np.mean(values) - 1e-12 <= high <= 1


def test_an_interval_of_draws_holds_the_truth_nineteen_times_in_twenty():
    rng = np.random.default_rng(0)
    domains = np.repeat([0.3, 0.6, 0.9], 5)
    draws = rng.binomial(50, domains, size=(1000, 15)) / 50
    held = [low <= 0.6 <= high for low, high in (interval(list(draw), list(domains)) for draw in draws)]
    assert 0.93 < np.mean(held) < 0.97


# --- measuring ----------------------------------------------------------------------------------------------------


def test_a_grid_has_a_row_for_each_width_and_dial_with_what_other_tools_read():
    grid = toy_grid()
    assert grid.keys() >= KEYS
    assert all(row.keys() >= ROW for row in grid["rows"])
    assert [(row["width"], row["robust"]) for row in grid["rows"]] == [
        (width, dial) for width in ("1/4", "1") for dial in (0.0, 0.5, 1.0)
    ]
    assert (grid["attack"], grid["weak"], grid["clients"], grid["samples"]) == (STRONG.name, False, 2, 40)


def test_accuracies_are_means_over_clients():
    first = toy_grid()["rows"][0]
    assert (first["clean"], first["attacked"]) == (pytest.approx((17 + 16) / 40), pytest.approx((5 + 4) / 40))
    assert first["clean_clients"] == [17 / 20, 16 / 20]
    assert (first["clean_low"], first["clean_high"]) == interval([17 / 20, 16 / 20], ["a", "a"])


def test_without_an_attack_nothing_is_said_about_robustness():
    grid = toy_grid(attack=None)
    assert {row["attacked"] for row in grid["rows"]} == {None}
    assert (grid["attack"], grid["weak"]) == (None, False)
    assert grid_report.NOT_ATTACKED in grid_table(grid).caption


def test_a_run_with_a_dial_is_measured_at_the_papers_dials():
    assert {row["robust"] for row in toy_grid(dials=())["rows"]} == set(DIALS)
    assert {row["robust"] for row in measure_grid(finished(dial=False), Sweep(), workers=1)["rows"]} == {0.0}


def test_a_dial_that_a_run_does_not_have_is_refused():
    with pytest.raises(UserError, match="has no robustness dial, so it can be served at --robust 0 alone"):
        measure_grid(finished(dial=False), Sweep(dials=(0.0, 0.5)), workers=1)


def test_no_images_are_no_grid():
    with pytest.raises(UserError, match="--images 0 leaves nothing to score"):
        Sweep(images=0)


def test_progress_counts_the_answers_that_take_time():
    seen = []
    measure_grid(
        finished(), Sweep((ATOM,), (0.0, 1.0), STRONG), workers=1, begin=seen.append, on_answer=lambda: seen.append(".")
    )
    assert seen == [4, *"...."]  # two clients at two dials, under attack


@pytest.mark.parametrize("terminal", [False, True])
def test_answers_are_counted_with_the_time_left(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with Countdown("answers", console) as left:
        left.begin(20)
        for _ in range(20):
            left.step()
    shown = console.file.getvalue()
    if terminal:
        assert "20/20" in shown
    else:
        assert [line.split()[1] for line in shown.splitlines()] == [f"{n}/20" for n in range(2, 21, 2)]


# --- showing ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_attacks_full_name_stands_with_its_numbers():
    grid = toy_grid()
    assert STRONG.name in grid_table(grid).caption
    assert STRONG.name in "".join(ra_sa(grid).figure.axes[0].get_xlabel().splitlines()).replace("(%)", "(%) ")
    assert grid_report.WEAK not in grid_table(grid).caption


def test_a_weak_attack_is_warned_of():
    grid = toy_grid(attack=PGD())
    assert grid["weak"]
    assert grid_report.WEAK in grid_table(grid).caption


def test_a_table_shows_per_cent_and_intervals():
    text = grid_table(toy_grid()).to_text()
    assert "under attack %" in text
    assert "  1/4     0     82.5" in text


@pytest.mark.slow
def test_a_curve_is_drawn_for_each_width_and_a_point_for_each_dial():
    axes = ra_sa(toy_grid()).figure.axes[0]
    assert axes.lines[0].get_xdata().tolist() == pytest.approx([22.5, 42.5, 62.5])
    assert [text.get_text() for text in axes.texts[:3]] == ["0", "0.5", "1"]
    assert len(by_dial(toy_grid()).figure.axes) == 2


def test_a_grid_in_order_says_so():
    assert "as it should be" in " ".join(order_note(toy_grid()))


def test_steps_in_the_wrong_direction_are_counted_and_named():
    grid = toy_grid()
    rows = [replace_row(row, 0.2) if (row["width"], row["robust"]) == ("1", 1.0) else row for row in grid["rows"]]
    told = " ".join(order_note({**grid, "rows": rows}))
    assert told.startswith("2 of 14 steps of dial or width go the wrong way")
    assert "attacked at width 1, dial 0.5 to 1" in told
    assert " ".join(grid_notes({**grid, "rows": rows[:1]})).count("steps of dial") == 0


def replace_row(row, attacked):
    return {**row, "attacked": attacked, "attacked_low": attacked, "attacked_high": attacked}


# --- files --------------------------------------------------------------------------------------------------------


def test_a_stored_grid_comes_back(tmp_path):
    write_record(tmp_path / "grid.json", grid := toy_grid())
    assert read_grid(tmp_path / "grid.json") == grid
    write_record(tmp_path / "grid-autoattack.json", {**grid, "attack": "AutoAttack"})
    assert [one["attack"] for one in stored_grids(tmp_path)] == [STRONG.name, "AutoAttack"]


ROWS = [{"clean": 7}, {"attacked": float("nan")}, {"robust": "nan"}, {"width": "9"}, {"attacked": None}]


@pytest.mark.parametrize("damage", [[], {"schema": 2}, {"clients": "many"}, {"rows": [{}]}, *ROWS], ids=str)
def test_a_damaged_grid_is_one_sentence(tmp_path, damage):
    grid = toy_grid()
    changed = {"rows": [{**grid["rows"][0], **damage}]} if damage in ROWS else damage
    (tmp_path / "grid.json").write_text(json.dumps({**grid, **changed} if isinstance(changed, dict) else changed))
    with pytest.raises(UserError, match=r"cannot be read \(.*\); measure it again") as caught:
        read_grid(tmp_path / "grid.json")
    assert "\n" not in str(caught.value)
