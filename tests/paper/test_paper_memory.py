"""Evidence outlives the machine it was made on: runs are kept without weights, and reports remember their numbers."""

import json
import re
import shutil
from pathlib import Path

import pytest

from helpers.made_runs import fake_run
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.report.drawing import NothingToDrawError
from splitmix.runs.config import to_toml
from splitmix_paper.catalogue import ENTRIES
from splitmix_paper.found import Found
from splitmix_paper.needs import Change, Store
from splitmix_paper.pictures import pictures_of
from splitmix_paper.queue import jobs_of
from splitmix_paper.report import as_json, markdown, read_views, write_report
from splitmix_paper.views import View, entry_table

RESULTS = Path(__file__).parents[2] / "results"
ENTRY = ENTRIES["weighting-digits"]


@pytest.fixture
def out(tmp_path):
    """The runs of an entry, made by hand."""
    make(tmp_path / "out", ENTRY)
    return tmp_path / "out"


def make(out, entry, *labels, accuracy=0.7):
    for number, job in enumerate(jobs_of([entry], "cpu", Store(out))):
        if not labels or job.label in labels:
            fake_run(job.folder, job.config.method, accuracy=accuracy + 0.01 * number)
            (job.folder / "config.toml").write_text(to_toml(job.config))
            (job.folder / "checkpoints").mkdir()
            (job.folder / "checkpoints" / "round-20.safetensors").write_bytes(b"weights")


def told(out, entry=ENTRY):
    """What a report says of an entry, but for its folders and times."""
    view = View(Found(entry, "cpu", Store(out)))
    return view.state, view.rows, [mine for _, mine, _ in view.verdicts]


def forget(out, *labels, entry=ENTRY):
    """The folders of some runs are gone."""
    for job in jobs_of([entry], "cpu", Store(out)):
        if not labels or job.label in labels:
            shutil.rmtree(job.folder)


@pytest.mark.slow
@pytest.mark.parametrize("gone", [(), ("Split-Mix",), ("SHeteroFL", "SHeteroFL, released weights")])
def test_a_report_remembers_the_numbers_of_runs_whose_folders_are_gone(out, gone):
    before = told(out)
    write_report("cpu", out)
    forget(out, *gone)
    assert told(out) == before
    files = write_report("cpu", out)
    assert told(out) == before
    assert f"- Records: of {len(gone) or 3} of the 3 runs only these numbers" in files.markdown.read_text()


@pytest.mark.slow
def test_new_runs_are_added_to_remembered_ones(out):
    before = told(out)
    forget(out, "SHeteroFL")
    write_report("cpu", out)
    forget(out, "Split-Mix")
    make(out, ENTRY, "SHeteroFL")
    state, rows, verdicts = told(out)
    assert (state, verdicts) == (before[0], before[2])
    assert {(row.series, row.key): row for row in rows} == {(row.series, row.key): row for row in before[1]}


@pytest.mark.slow
def test_a_new_run_is_not_added_to_remembered_numbers_of_several_runs_at_once(tmp_path):
    entry = ENTRIES["domains-digits"]
    make(tmp_path, entry, "Split-Mix", "SHeteroFL", "FedAvg 1/8")
    before = told(tmp_path, entry)
    assert before[0] == "3 of 6 runs done"
    write_report("cpu", tmp_path)
    forget(tmp_path, "Split-Mix", entry=entry)
    make(tmp_path, entry, "FedAvg 1")
    assert told(tmp_path, entry) == before
    make(tmp_path, entry, "Split-Mix")
    assert told(tmp_path, entry)[0] == "4 of 6 runs done"


@pytest.mark.slow
def test_runs_that_are_here_count_and_not_what_was_said_of_them(out):
    files = write_report("cpu", out)
    files.rows.write_text(files.rows.read_text().replace('"1": 7', '"1": 1'))
    assert told(out)[1][0].values == {1: 70.0}


@pytest.mark.slow
def test_a_run_made_again_counts_beside_others_that_are_only_remembered(out):
    write_report("cpu", out)
    forget(out, "Split-Mix", "SHeteroFL")
    make(out, ENTRY, "Split-Mix", accuracy=0.6)
    rows = {(row.series, row.key): row.values for row in told(out)[1]}
    assert rows["Split-Mix", "1/8"] == {1: pytest.approx(60.0)}
    assert rows["SHeteroFL", "1/8"] == {1: pytest.approx(71.0)}


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "change"), [("smoke", Change()), ("cpu", Change((5,))), ("cpu", Change(mixed=True))])
def test_numbers_that_are_left_alone_are_not_overwritten_by_a_report_without_them(out, scale, change):
    files = write_report("cpu", out)
    forget(out)
    kept = files.rows.read_bytes()
    with pytest.raises(UserError, match=r"weighting-digits that this report would not have .* move it"):
        write_report(scale, out, change=change)
    assert files.rows.read_bytes() == kept


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"schema": 2, "entries": []}', "[" * 100_000])
def test_a_damaged_report_is_refused_in_a_sentence(tmp_path, text, capsys):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["paper", "report", "--out", str(tmp_path)])
    assert end.value.code == 2
    assert "move it away" in capsys.readouterr().err
    assert (tmp_path / "report.json").read_text() == text


def test_tables_and_pictures_name_the_data_that_stands_in_for_the_papers(tmp_path):
    make(tmp_path, ENTRIES["table1-domainnet"])
    view = View(Found(ENTRIES["table1-domainnet"], "cpu", Store(tmp_path)))
    picture = next(pictures_of(view.found, view.rows, None))()
    for text in (picture.alt, entry_table(view).caption.rstrip(".")):
        assert text.endswith("; Office-Caltech10 in place of DomainNet")


@pytest.mark.slow
def test_curves_are_drawn_over_remembered_times_once_all_of_them_are_there(tmp_path):
    entry = ENTRIES["figure9-wall-clock"]
    make(tmp_path, entry)
    write_report("cpu", tmp_path)
    forget(tmp_path, *(f"time of {label}" for label in ("FedAvg 1/8", "Split-Mix", "SHeteroFL")), entry=entry)
    view = View(Found(entry, "cpu", Store(tmp_path)))
    (draw,) = pictures_of(view.found, view.rows, None)
    assert draw().alt.startswith("A round takes FedAvg 1/8 2 s, Split-Mix 2 s, SHeteroFL 2 s;")
    forget(tmp_path, "SHeteroFL", entry=entry)
    view = View(Found(entry, "cpu", Store(tmp_path)))
    (draw,) = pictures_of(view.found, view.rows, None)
    with pytest.raises(NothingToDrawError, match="have no curve"):
        draw()


def test_kept_runs_tell_the_same_without_weights(out, tmp_path, capsys):
    before, to = told(out), tmp_path / "kept"
    main(["paper", "keep", str(to), "--out", str(out)])
    assert "3 runs copied, 0 were there" in capsys.readouterr().out
    assert not list(to.rglob("*.safetensors"))
    forget(out)
    assert told(to) == before
    curve = [
        row["accuracy"] for row in View(Found(ENTRY, "cpu", Store(to))).found.runs["Split-Mix"].runs[0].metrics[-4:]
    ]
    assert curve == pytest.approx([0.7, 0.72, 0.74, 0.76])


def test_a_kept_run_is_not_copied_twice(out, tmp_path, capsys):
    for said in ("3 runs copied, 0 were there", "0 runs copied, 3 were there"):
        main(["paper", "keep", str(tmp_path / "kept"), "--out", str(out)])
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--scale", "smoke"], "mean nothing"), ([], "are in"), (["--scale", "gpu"], "unknown scale 'gpu'")],
)
def test_mistakes_in_keeping_are_one_sentence(words, sentence, out, capsys):
    with pytest.raises(SystemExit) as end:
        main(["paper", "keep", str(out), "--out", str(out), *words])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_stored_report_is_what_the_stored_runs_say():
    views, text = read_views("cpu", Store(RESULTS / "paper")), (RESULTS / "paper" / "report.md").read_text()
    assert json.loads((RESULTS / "paper" / "report.json").read_text()) == as_json("cpu", views)
    bare = "\n".join(markdown("cpu", views, {view.name: () for view in views})) + "\n"
    assert re.sub(r"!\[.*\]\(.*\)\n\n", "", text) == bare


def test_the_stored_report_has_the_pictures_that_it_names():
    folder = RESULTS / "paper"
    named = re.findall(r"!\[.+\]\((.+)\)", (folder / "report.md").read_text())
    assert named
    assert {folder / name for name in named} == set((folder / "figures").iterdir())
