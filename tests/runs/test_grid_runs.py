"""Grids of whole runs: the same for any number of workers, in the report, and what a run cannot be asked."""

import json
from dataclasses import replace

import pytest

from helpers.grids import STRONG
from helpers.tiny_task import SETTINGS, stripes_folder
from helpers.toys import ATOM, FULL
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.report.run_page import write_report
from splitmix.runs.config import make_config
from splitmix.runs.evaluate import open_run
from splitmix.runs.grid import Sweep, measure_grid
from splitmix.runs.masking import check_masking
from splitmix.runs.records import write_record
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of finished runs: with and without a dial, and with norms that stay on the clients."""
    own = str(stripes_folder(tmp_path_factory.mktemp("data") / "own"))
    attack = {"name": "adversarial", "eps": 0.1, "step": 0.05, "steps": 2}
    variants = {
        "dual": {},
        "local": {"norm": "local"},
        "plain": {"objective": "plain"},
        "batch": {"objective": "plain", "norm": "batch"},
    }
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("runs") / name
            setup = set_up(make_config({"task": own, **SETTINGS, "objective": attack, "rounds": 3, **variants[name]}))
            run_in_folder(setup, made[name])
        return made[name]

    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dual", "local"])
def test_a_grid_of_a_run_is_the_same_for_any_number_of_workers(trained, name):
    wish = Sweep((ATOM, FULL), (0.0, 0.3, 1.0), STRONG, images=6)
    one, two = (measure_grid(open_run(trained(name), fixed=True), wish, workers=workers) for workers in (1, 2))
    assert one == two
    assert one["samples"] <= 6 * one["clients"]


@pytest.mark.slow
def test_clean_rows_are_what_a_plain_evaluation_finds(trained):
    run = open_run(trained("dual"))
    grid = measure_grid(run, Sweep(dials=(0.0,)), workers=1)
    stored = {row["width"]: row["accuracy"] for row in run.result["scores"]}
    assert {row["width"]: row["clean"] for row in grid["rows"]} == pytest.approx(stored)


@pytest.mark.slow
def test_a_report_shows_grids_and_checks(trained, tmp_path):
    folder = trained("dual")
    run = open_run(folder, fixed=True)
    write_record(folder / "grid.json", measure_grid(run, Sweep(images=4, attack=PGD()), workers=1))
    findings = check_masking(run, Sweep(widths=(ATOM,), dials=(1.0,), images=2), workers=1)
    (folder / "masking.json").write_text(json.dumps(findings))
    page = write_report(folder).read_text()
    for words in (
        PGD().name,
        "Only a weak attack was run",
        "Are gradients hidden?",
        "clean and under the training attack",
    ):
        assert words in page
    assert (folder / "ra-sa.png").exists()
    assert (folder / "by-dial.png").exists()


@pytest.mark.slow
def test_norms_of_the_batch_cannot_be_attacked(trained):
    assert open_run(trained("batch"), fixed=True).norm == "client"
    with pytest.raises(UserError, match="which no attack can use; choose --norm client or global"):
        open_run(trained("batch"), norm="batch", fixed=True)
    grid = measure_grid(open_run(trained("batch"), fixed=True), Sweep((FULL,), attack=PGD(), images=4), workers=1)
    assert grid["norm"] == "client"


@pytest.mark.slow
def test_a_plain_run_can_be_attacked_but_not_turned(trained):
    run = open_run(trained("plain"), fixed=True)
    assert measure_grid(run, Sweep((Width(1),), attack=PGD(), images=4), workers=1)["rows"][0]["robust"] == 0
    with pytest.raises(UserError, match="no robustness dial"):
        measure_grid(replace(run), Sweep(dials=(1.0,)), workers=1)
