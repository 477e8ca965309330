"""Comparing methods: which runs are made, in which order and how often, by one small real comparison."""

import pytest

from helpers.made_runs import fake_run
from helpers.small_task import SETTINGS, small_folder
from splitmix.compare import compare as comparing
from splitmix.compare import page
from splitmix.compare.compare import compare, compared_runs, parse_contenders
from splitmix.compare.standings import summary_rows
from splitmix.compare.suite import Workshop
from splitmix.core.errors import UserError
from splitmix.runs.progress import Watcher

pytestmark = pytest.mark.slow  # whole runs and commands


class Quiet(Watcher):
    """Counts the runs that begin."""

    begun = 0

    def begin(self, setup, start):
        Quiet.begun += 1


def workshop(**more):
    Quiet.begun = 0
    return Workshop(command="splitmix compare", watch=lambda: [Quiet()], **more)


def test_a_comparison_runs_each_method_once_with_each_seed_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "comparison_page", lambda entries, command: "")  # pictures take their time
    monkeypatch.setattr(comparing, "write_report", lambda folder: (folder / "report.html").write_text("a page"))
    given = {**SETTINGS, "task": str(small_folder(tmp_path / "data")), "rounds": 2}
    told = []
    methods = parse_contenders(["splitmix", "heterofl"])
    compare(given, methods[:1], [1], tmp_path / "out", workshop())
    found, _ = compare(given, methods, [1, 2], tmp_path / "out", workshop(say=told.append))
    assert Quiet.begun == 3
    assert [text.split(" (")[0] for text in told] == [
        "run 2 of 4: heterofl, seed 1",
        "run 3 of 4: splitmix, seed 2",
        "run 4 of 4: heterofl, seed 2",
    ]
    assert all("all in about" in text for text in told)
    runs = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert runs == ["heterofl-s1", "heterofl-s2", "splitmix-s1", "splitmix-s2"]
    assert (tmp_path / "out" / "splitmix-s1" / "report.html").exists()
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    again, _ = compare(given, methods, [1, 2], tmp_path / "out", workshop())
    assert Quiet.begun == 0
    assert {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()} == before
    assert summary_rows(again) == summary_rows(found)
    assert found[0].runs[0].costs["coverage"]["domains"].keys() == {"north", "south"}


def test_a_method_that_cannot_run_is_told_before_anything_is_trained(tmp_path):
    given = {**SETTINGS, "task": str(small_folder(tmp_path / "data")), "budgets": "1/4 1/2"}
    with pytest.raises(UserError, match="no client can train width 1"):
        compare(given, parse_contenders(["splitmix", "fedavg:width=1,mode=strict"]), [1], tmp_path / "out", workshop())
    assert Quiet.begun == 0


def test_a_run_with_other_settings_is_in_the_way(tmp_path):
    fake_run(tmp_path / "splitmix-s1")
    with pytest.raises(UserError, match="begun with other settings"):
        compared_runs({"task": "mini", "rounds": 3}, parse_contenders(["splitmix"]), [1], tmp_path)
