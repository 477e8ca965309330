"""Grids and checks of real runs: alike for any number of workers, shown in the report, refused where they must be."""

import shutil

import pytest

from helpers.toys import ATOM, FULL
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.report.run_page import write_report
from splitmix.runs.measure.evaluate import open_run
from splitmix.runs.measure.grid import Sweep, measure_grid
from splitmix.runs.measure.masking import check_masking
from splitmix.runs.records import write_record

pytestmark = pytest.mark.slow  # whole runs

QUICK = PGD(steps=2, restarts=2)


@pytest.mark.parametrize(
    ("variant", "dials"), [("dual", (0.0, 0.3, 1.0)), ("dual, post", (0.0, 0.3, 1.0)), ("local", ())]
)
def test_a_grid_of_a_run_is_the_same_for_any_number_of_workers(whole, variant, dials):
    sweep = Sweep((ATOM, FULL), dials, QUICK, images=6)
    one, two = (measure_grid(open_run(whole(variant), fixed=True), sweep, workers=workers) for workers in (1, 2))
    assert one == two
    assert one["samples"] <= 6 * one["clients"]


@pytest.mark.parametrize(("variant", "norm"), [("dual", "tracked"), ("dual, post", "client"), ("dual, post", "global")])
def test_clean_rows_are_what_a_plain_evaluation_finds(whole, variant, norm):
    run = open_run(whole(variant), norm=norm)
    grid = measure_grid(run, Sweep(dials=(0.0,)), workers=1)
    stored = {row["width"]: row["accuracy"] for row in run.result["scores"] if row["norm"] == norm}
    assert {row["width"]: row["clean"] for row in grid["rows"]} == pytest.approx(stored)


def test_a_report_shows_grids_and_checks(whole, tmp_path):
    folder = shutil.copytree(whole("dual"), tmp_path / "run")
    run = open_run(folder, fixed=True)
    sweep = Sweep((ATOM,), (0.0, 1.0), PGD(), images=2)
    write_record(folder / "grid.json", measure_grid(run, sweep, workers=1))
    write_record(folder / "masking.json", check_masking(run, Sweep((ATOM,), (1.0,), images=1), workers=1))
    page = write_report(folder).read_text()
    weak, judged = "Only a weak attack was run", "clean and under the training attack"
    assert [words for words in (PGD().name, weak, "Are gradients hidden?", judged) if words not in page] == []
    assert (folder / "ra-sa.png").exists()
    assert (folder / "by-dial.png").exists()


def test_norms_of_the_batch_cannot_be_attacked(whole):
    run = open_run(whole("batch"), fixed=True)
    assert run.norm == measure_grid(run, Sweep((FULL,), attack=QUICK, images=2), workers=1)["norm"] == "client"
    with pytest.raises(UserError, match="which no attack can use; choose --norm client or global"):
        open_run(whole("batch"), norm="batch", fixed=True)


def test_a_plain_run_can_be_attacked_but_not_turned(whole):
    run = open_run(whole(), fixed=True)
    assert measure_grid(run, Sweep((FULL,), attack=QUICK, images=2), workers=1)["rows"][0]["robust"] == 0
    with pytest.raises(UserError, match="no robustness dial"):
        measure_grid(run, Sweep(dials=(1.0,)), workers=1)
