"""The command line: what it prints, here and as a process of its own."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.commands import OPTIONS, TRAIN, process
from splitmix.cli import main
from splitmix.cli.flower import partition_needed
from splitmix.runs.config import Config
from splitmix.runs.records import read_result

pytestmark = pytest.mark.slow  # whole runs and commands


def told(capsys, *arguments):
    """What a command prints as JSON."""
    capsys.readouterr()
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words", [["tasks"], ["methods"], ["nets"], ["budgets"], ["settings"], ["data", "list"]], ids=" ".join
)
def test_lists_come_as_tables_and_as_json(capsys, words):
    main(words)
    table = capsys.readouterr().out
    rows = told(capsys, *words)
    assert rows
    assert all(str(next(iter(row.values()))) in table for row in rows)


def test_the_settings_are_all_listed(capsys):
    rows = told(capsys, "settings")
    assert [row["key"] for row in rows] == ["recipe", *Config.model_fields]
    assert all(row["about"] for row in rows)


def test_costs_come_as_json(capsys):
    rows = told(capsys, "cost", "digit", "--width", "1/8", "1")
    assert [(row["width"], row["bases"], row["parameters"]) for row in rows] == [("1/8", 1, 224194), ("1", 8, 1793552)]
    costs = {"macs": 1158528, "activations": 17898, "single_parameters": 224194, "single_macs": 1158528}
    assert rows[0] == {"width": "1/8", "bases": 1, "parameters": 224194, **costs}


def test_costs_of_ones_own_net_need_the_size_of_an_image(here, capsys):
    (row,) = told(capsys, "cost", "helpers.toys:plain_build", "--image", "6x6x1", "--width", "1/2")
    assert (row["bases"], row["parameters"]) == (4, 4 * (9 + 1 + 2 + 16 * 3 + 3))


def test_budgets_are_counted_and_drawn(here, capsys, tmp_path):
    (row,) = told(capsys, "budgets", "1/8 1", "--clients", "4", "--out", str(tmp_path / "b.svg"))
    assert row["clients"] == "2 x 1/8, 2 x 1"
    assert (tmp_path / "b.svg").read_text().lstrip().startswith("<?xml")


def test_data_is_shown_and_prepared(here, capsys, tmp_path):
    rows = told(capsys, "data", "show", "own", "--out", str(tmp_path / "own.png"))
    assert [(row["domain"], row["clients"]) for row in rows] == [("north", 4), ("south", 4)]
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    assert told(capsys, "data", "prepare", "own") == rows
    main(["data", "show", "own", "--out", str(tmp_path / "again.png")])
    assert f"Contact sheet: {tmp_path / 'again.png'}" in capsys.readouterr().out


def test_a_run_is_scored_again_at_any_width(here, capsys):
    result = read_result(Path("run"))
    rows = told(capsys, "eval", "run", "--width", "1/4", "3/4", "--workers", "1")
    known = {row["width"]: row["accuracy"] for row in result["scores"] if row["norm"] == "client"}
    assert {row["width"]: row["accuracy"] for row in rows} == {width: known[width] for width in ("1/4", "3/4")}
    main(["eval", "run", "--split", "val", "--norm", "batch", "--workers", "1"])
    printed = capsys.readouterr().out
    assert (
        "own val images; pooled: of all these images together. Norms use statistics of the test batch itself"
        in " ".join(printed.split())
    )
    assert "north" in printed


def test_a_run_is_attacked_and_the_grid_is_kept(here, capsys, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree("run", folder)
    asked = ("eval", str(folder), "--width", "1/4", "1", "--images", "3", "--workers", "1")
    main([*asked, "--attack", "fgsm"])
    printed, warned = capsys.readouterr()
    grid = json.loads((folder / "grid.json").read_text())
    assert (grid["attack"], grid["weak"], len(grid["rows"])) == ("L-inf FGSM, eps 8/255", True, 2)
    assert "L-inf FGSM, eps 8/255" in " ".join(printed.split())
    assert "warning: Only a weak attack was run" in warned
    assert "answers of clients: 4/4" in warned
    assert "L-inf FGSM, eps 8/255" in (folder / "report.html").read_text()
    assert told(capsys, *asked, "--robust", "0", "--out", str(folder / "grid-clean.json"))["attack"] is None


def test_a_finished_run_prints_its_result_again(here, capsys):
    before = read_result(Path("run"))
    assert told(capsys, *TRAIN, "--out", "run", "--resume") == before
    assert told(capsys, "report", "run") == before
    main(["report", "run"])
    printed = capsys.readouterr().out
    assert "accuracy %" in printed
    assert "run/report.html" in printed


def test_a_run_finds_its_own_place(here, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(here / "own", tmp_path / "[bold]own")
    result = told(capsys, "train", "[bold]own", *OPTIONS, "-o", "rounds=1", "--workers", "1")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("[bold]own-splitmix-s1-")
    assert read_result(folder)["weights_sha256"] == result["weights_sha256"]
    main(["eval", f"runs/{folder.name}", "--workers", "1"])
    assert f"Accuracy of runs/{folder.name}" in " ".join(capsys.readouterr().out.split())


def test_a_process_trains_to_the_same_bytes_and_says_so_plainly(here, tmp_path):
    ended = process(*TRAIN, "--out", str(tmp_path / "run"), "--workers", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["weights_sha256"] == read_result(Path("run"))["weights_sha256"]
    _, remark, *rounds = ended.stderr.splitlines()
    assert "its layer 'conv' has 2 channels" in remark
    assert [line.split("  ")[0] for line in rounds] == [f"round {n}/4" for n in (1, 2, 3, 4)]
    assert "\x1b" not in ended.stderr
    assert json.loads(ended.stdout)["command"].startswith("splitmix train own -o net=helpers.toys:Tiny")


@pytest.mark.parametrize(("nodes", "words"), [(3, " -o partition=iid"), (4, "")])
def test_a_federation_of_few_nodes_is_told_which_partition_a_run_needs(nodes, words):
    assert partition_needed("mini", nodes, None) == words
