"""Evidence: every page in `results` is what its rows make of it, and rows say how to get each number again."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import evidence  # noqa: E402

STUDIES = ["digits", "peers", "rates", "recipes", "robustness"]


@pytest.mark.parametrize("name", evidence.page_names())
def test_a_page_is_what_its_rows_make_of_it(name):
    assert (ROOT / "results" / f"{name}.md").read_text() == evidence.page(name)


@pytest.mark.parametrize("name", STUDIES)
def test_a_row_of_a_study_says_how_to_get_its_number_again(name):
    for row in evidence.read_rows(name):
        assert {"task", "data", "method", "settings", "rounds", "lr", "seed", "config", "split", "norm"} <= row.keys()
        assert len(row["config"]) == 64


def test_results_hold_rows_and_what_is_made_of_them():
    others = [path for path in (ROOT / "results").rglob("*.*") if path.suffix not in (".jsonl", ".md", ".svg", ".png")]
    assert [path.relative_to(ROOT).as_posix() for path in others] == ["results/paper/report.json"]
    assert {path.stem for path in (ROOT / "results" / "rows").iterdir()} == set(evidence.page_names())


@pytest.mark.slow
def test_rows_of_a_finished_run_are_added_once(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    (tmp_path / "rows").mkdir()
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--add", "own", str(whole())])
    evidence.main()
    evidence.main()
    rows = evidence.read_rows("own")
    assert len(rows) == len({(row["norm"], row["width"]) for row in rows})
    assert {row["split"] for row in rows} == {"test"}
