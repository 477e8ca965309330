"""Rows outlive the folders of runs, verdicts know their noise, and what is stored is what the stored rows say."""

import json
import re
import shutil
from pathlib import Path

import pytest

from helpers.made_runs import fake_run
from splitmix.cli import main
from splitmix.runs.config import make_config, to_toml
from splitmix_paper.claims import FAILS, HOLDS, NOISE, UNKNOWN, UNTESTABLE, Cell, Place, alike, grows, higher, less
from splitmix_paper.exhibit import Evidence
from splitmix_paper.exhibits import EXHIBITS
from splitmix_paper.report import as_json, markdown, read_shown, write_report
from splitmix_paper.rows import FILE, Rows
from splitmix_paper.runs import Store, jobs_of
from splitmix_paper.shown import Shown

RESULTS = Path(__file__).parents[2] / "results" / "paper"
EXHIBIT = EXHIBITS["weighting-digits"]


def make(out, exhibit, *labels, accuracy=0.7):
    """Finished runs of an exhibit, made by hand."""
    for number, job in enumerate(jobs_of([exhibit], "cpu", Store(out))):
        if not labels or job.label in labels:
            shutil.rmtree(job.folder, ignore_errors=True)
            fake_run(job.folder, job.config.method, accuracy=accuracy + 0.01 * number)
            (job.folder / "config.toml").write_text(to_toml(job.config))
            (job.folder / "weights.safetensors").write_bytes(b"weights")


@pytest.fixture
def out(tmp_path):
    make(tmp_path / "out", EXHIBIT)
    return tmp_path / "out"


def told(out, exhibit=EXHIBIT):
    """What a report says of an exhibit."""
    store = Store(out)
    jobs_of([exhibit], "cpu", store)
    store.rows.write()
    shown = Shown(Evidence(exhibit, "cpu", store.rows))
    return shown.evidence.state, shown.cells, [mine for _, mine, _ in shown.verdicts]


def test_rows_tell_the_same_when_the_folders_are_gone(out):
    before = told(out)
    assert before[0] == "done"
    shutil.rmtree(out / "runs")
    assert told(out) == before


def test_a_run_made_again_counts_once_its_old_rows_are_taken_out(out):
    before = told(out)
    (out / FILE).unlink()
    make(out, EXHIBIT, "Split-Mix", accuracy=0.6)
    cells = {cell.place: cell.values for cell in told(out)[1]}
    assert cells[Place("Split-Mix", "1/8")] == {1: pytest.approx(60.0)}
    assert cells[Place("SHeteroFL", "1/8")] == before[1][4].values == {1: pytest.approx(71.0)}


def test_runs_are_made_again_where_single_clients_are_not_known(out):
    told(out)
    file = out / FILE
    file.write_text(re.sub(r'"clients":\[[^]]*\],?', "", file.read_text()).replace(",}", "}"))
    shutil.rmtree(out / "runs")
    assert [job.done for job in jobs_of([EXHIBIT], "cpu", Store(out))] == [False] * 3
    state, _, verdicts = told(out)
    assert state == "done"
    assert {verdict.word for verdict in verdicts} == {UNTESTABLE}
    assert all("no values of single clients" in verdict.why for verdict in verdicts)


def test_a_comparison_of_domains_takes_all_widths_that_are_known(tmp_path):
    exhibit = EXHIBITS["domains-digits"]
    make(tmp_path, exhibit, "Split-Mix", "SHeteroFL", "FedAvg 1/8")
    assert told(tmp_path, exhibit)[0] == "3 of 6 runs done"
    make(tmp_path, exhibit, "FedAvg 1", accuracy=0.9)
    state, cells, _ = told(tmp_path, exhibit)
    assert state == "4 of 6 runs done"
    worst = {cell.place: cell.mean for cell in cells if cell.place.key == "pen: worst"}
    assert worst[Place("Split-Mix", "pen: worst")] < -10


@pytest.mark.parametrize("text", ["x", "[]", '{"schema": 1}', "[" * 100_000])
def test_a_damaged_file_is_refused_in_a_sentence_and_left_alone(tmp_path, text, capsys):
    for file in (FILE, "report.json"):
        (tmp_path / file).write_text(text)
        with pytest.raises(SystemExit) as end:
            main(["paper", "report", "--out", str(tmp_path)])
        assert end.value.code == 2
        sentence = r"line 1 of .* move the file away|written by another version.*move it away"
        assert re.search(sentence, capsys.readouterr().err)
        assert (tmp_path / file).read_text() == text
        (tmp_path / file).unlink()


@pytest.mark.slow
def test_kept_rows_tell_the_same_and_are_not_copied_twice(out, tmp_path, capsys):
    before, to = told(out), tmp_path / "kept"
    for said in ("3 runs copied, 0 were there", "0 runs copied, 3 were there"):
        main(["paper", "keep", str(to), "--out", str(out)])
        assert said in capsys.readouterr().out
    assert [file.name for file in to.iterdir()] == [FILE]
    assert told(to) == before
    curve = Evidence(EXHIBIT, "cpu", Rows(to)).runs["Split-Mix"].first.curve("1/8")
    assert [(x, round(y, 3)) for x, y in curve] == [(5, 17.5), (10, 35), (15, 52.5), (20, 70)]
    with pytest.raises(SystemExit):
        main(["paper", "keep", str(out), "--out", str(out)])
    assert "are in" in capsys.readouterr().err


@pytest.mark.slow
def test_tables_and_pictures_name_the_data_that_stands_in_for_the_papers(tmp_path):
    make(tmp_path, EXHIBITS["table1-domainnet"])
    told(tmp_path, EXHIBITS["table1-domainnet"])
    shown = Shown(Evidence(EXHIBITS["table1-domainnet"], "cpu", Rows(tmp_path)))
    for text in (shown.pictures[0].alt, shown.table.caption.rstrip(".")):
        assert text.endswith("; Office-Caltech10 in place of DomainNet")


@pytest.mark.slow
def test_what_was_not_run_is_listed_as_such(tmp_path, monkeypatch):
    monkeypatch.delenv("SPLITMIX_DATA", raising=False)
    files = write_report("cpu", tmp_path)
    assert "The data is not at hand" in files.page.read_text()
    text = files.markdown.read_text()
    assert text.count("Not run yet. Run it with: `splitmix paper run ") >= len(EXHIBITS) - 3


A, B = Place("a", "1"), Place("b", "1")
SPREAD = [-9.0, -3.0, 3.0, 9.0] * 3


def cell(place, mean, *, seeds=(1,), away=(), clients=True, kind="measured"):
    each = {seed: [mean + gap for gap in away or SPREAD] for seed in seeds} if clients else {}
    return Cell(place, dict.fromkeys(seeds, mean), each, kind)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (cell(A, 80), cell(B, 79.9), HOLDS),  # small, but the same for every client
        (cell(A, 79.9), cell(B, 80), FAILS),
        (cell(A, 82), cell(B, 80, away=SPREAD[::-1]), NOISE),  # large, but clients differ by more
        (cell(A, 90, clients=False), cell(B, 10, clients=False), UNTESTABLE),
        (cell(A, 90, clients=False, seeds=(1, 2, 3)), cell(B, 10, clients=False, seeds=(1, 2, 3)), HOLDS),
        (cell(A, 80, seeds=(1, 2)), cell(B, 79, seeds=(2, 3)), HOLDS),  # by the seed that both have
        (cell(A, 80), cell(B, 60, kind="printed"), HOLDS),
        (cell(A, 80, kind="counted"), cell(B, 79.9, kind="counted"), HOLDS),
    ],
)
def test_a_difference_counts_if_it_is_more_than_the_noise_of_clients_and_seeds(ours, theirs, word):
    cells = {A: ours, B: theirs}
    assert higher("a above b", (A, B)).judge(cells).word == word
    assert less("b below a", B, A).judge(cells).word == word
    assert grows("from b to a", [B, A]).judge(cells).word == word
    same = {HOLDS: FAILS, FAILS: FAILS, NOISE: HOLDS, UNTESTABLE: UNTESTABLE}
    assert alike("a is b", (A, B)).judge(cells).word == same[word]
    assert higher("a above c", (A, Place("c", "1"))).judge(cells).word == UNKNOWN


def test_a_study_that_is_too_short_says_so_and_why():
    claim = higher("a above b", (A, B), too_short="a client takes 30 steps")
    verdict = claim.verdict({A: cell(A, 80), B: cell(B, 70)}, "cpu")
    assert (verdict.word, verdict.why) == (UNTESTABLE, "at this scale: a client takes 30 steps")
    assert verdict.evidence == "a 1 against b 1: +10.0"
    assert claim.verdict({A: cell(A, 80), B: cell(B, 70)}, "paper").word == HOLDS


def test_stored_rows_are_asked_for_and_name_the_settings_that_their_hash_is_of():
    asked = {job.digest for job in jobs_of(EXHIBITS.values(), "cpu", Store(RESULTS))}
    rows = [*Rows(RESULTS)]
    configs = {row.config: row for row in rows}
    assert set(configs) <= asked
    assert len(rows) > 500
    for digest, row in configs.items():
        assert make_config(row.settings).digest() == digest
        assert (row.settings["seed"], row.scale) == (row.seed, "cpu")
        assert row.substitutes


@pytest.mark.slow
def test_the_stored_report_is_what_the_stored_rows_say_and_has_the_pictures_that_it_names():
    shown, text = read_shown("cpu", Rows(RESULTS)), (RESULTS / "report.md").read_text()
    assert json.loads((RESULTS / "report.json").read_text()) == as_json("cpu", shown)
    for one in shown:
        one.__dict__["pictures"] = []  # which take long to draw
    assert re.sub(r"!\[.*\]\(.*\)\n\n", "", text) == markdown("cpu", shown)
    named = re.findall(r"!\[.+\]\((.+)\)", text)
    assert {RESULTS / name for name in named} == set((RESULTS / "figures").iterdir())
