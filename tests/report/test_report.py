"""Reading a run's folder, its pictures and its page, from a small run made by hand."""

import errno
import json
import os
import sys
import xml.etree.ElementTree as ET

import pytest

from helpers.made_runs import fake_run
from helpers.pages import Tags, assert_whole
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.report import figures, run_page
from splitmix.report.drawing import save
from splitmix.report.run_page import run_headline, write_report
from splitmix.runs.records import config_text, domain_names, read_metrics, read_result

pytestmark = pytest.mark.slow  # draws every picture
EVIL = "<script>alert(1)</script>"
ORIGIN = {
    **{"data": "digits made here", "command": "splitmix train mini", "weights_sha256": "ab" * 32, "best_round": 3},
    **{
        "versions": {"torch": "2"},
        "order": "greedy",
        "bases": [1, 0],
        "seconds": 123.4,
        "norm_text": "fixed afterwards",
    },
}


def make_run(folder, **more):
    return fake_run(folder, accuracy=0.86, widths=("1/8", "1/2", "1"), **{**ORIGIN, **more})


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run and its page, drawn once; strangers named its domains, and wrote most of its texts."""
    texts = ("net", "norm", "order", "data")
    domains = (EVIL, '"><img onerror=x> a very long name, 数字 $x^_')
    run = make_run(tmp_path_factory.mktemp("made") / "run", domains=domains, **dict.fromkeys(texts, EVIL))
    (run / "config.toml").write_text(f"task = '{EVIL}</pre>'")
    return run, write_report(run).read_bytes()


# --- reading ------------------------------------------------------------------------------------------------------


def test_of_rows_written_twice_after_a_resume_the_last_counts(run):
    rows = [{"kind": "round", "round": round, "loss": loss} for round, loss in ((1, 2.0), (3, 1.5), (1, 2.1))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(row["round"], row["loss"]) for row in read_metrics(run)] == [(1, 2.1), (3, 1.5)]
    (run / "metrics.jsonl").unlink()
    assert read_metrics(run) == []


def test_lines_that_cannot_be_read_are_skipped(run):
    good = read_metrics(run)
    bad = [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"kind": "round"}', b'{"kind": "score", "round": 9, "width": "x"}']
    bad += [
        b'{"kind": "other", "round": 1}',
        b'{"kind": [], "round": 1}',
        b'{"kind": "round", "round": "1"}',
        b"[" * 9999,
    ]
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b"\n".join(bad) + b"\n" + whole + b'{"kind": "round", "rou')
    assert read_metrics(run) == good


@pytest.mark.parametrize("read", [read_metrics, read_result, write_report])
def test_a_folder_that_is_no_run_is_refused(read, tmp_path):
    with pytest.raises(UserError, match="not a run's folder"):
        read(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, r"not finished.*--resume"),
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"schema": 2}', "schema 2"),
        ('{"schema": 1, "clients": []}', "at scores"),
        ('{"schema": 1, "clients": [], "scores": []}', "no scores"),
        ('{"schema": 1, "clients": [], "scores": [{"width": "9", "accuracy": 1}]}', r"scores\.0\.width"),
        ('{"schema": 1, "clients": 5, "scores": []}', "at clients"),
    ],
)
def test_a_result_that_is_not_there_or_damaged_is_one_sentence(run, text, words):
    (run / "result.json").unlink() if text is None else (run / "result.json").write_text(text)
    with pytest.raises(UserError, match=words) as refusal:
        read_result(run)
    assert "\n" not in str(refusal.value)


def test_what_could_steer_a_terminal_is_replaced(tmp_path):
    run = make_run(tmp_path / "run", data="a\x1b[2Jb\u202e\n")
    (run / "config.toml").write_bytes(b"a\x1b\n\xff")
    assert read_result(run)["data"] == "a\ufffd[2Jb\ufffd "
    assert config_text(run) == "a\ufffd\n\ufffd"


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_headline_names_both_ends_or_the_only_one(run):
    result = read_result(run)
    ends = "86.0 % at 1/8 of the channels to 90.0 % at full width"
    assert run_headline(result) == f"One training run, three widths: {ends}."
    result["scores"] = result["scores"][2:]
    assert run_headline(result) == "One training run, one width: 90.0 % at full width."


def test_the_page_has_headline_table_pictures_and_origin(written):
    run, html = written
    page = Tags(html.decode())
    assert page.tags.count("svg") == 5
    for words in (run_headline(read_result(run)), "30.0k", "splitmix train mini", "ab" * 32, "2 min 3 s", "task = "):
        assert words in page.text
    assert "mean over clients: each client counts the same" in page.text
    assert "fixed afterwards" in page.text
    assert "weights of round 4 were kept" in page.text
    assert {"report.html", "convergence.png", "by-domain.png"} <= {file.name for file in run.iterdir()}


def test_the_page_needs_nothing_but_itself_and_text_from_files_never_becomes_markup(written):
    assert_whole(written[1].decode())
    page = Tags(written[1].decode())
    assert not {"script", "img"} & set(page.tags)
    assert page.text.count(EVIL) > 5


def test_the_same_files_give_the_same_page(written, monkeypatch):
    run, html = written
    monkeypatch.setattr(run_page, "save", lambda picture, path: None)
    assert write_report(run).read_bytes() == html


def test_a_run_that_recorded_little_still_has_a_page(run):
    (run / "metrics.jsonl").unlink()
    (run / "result.json").write_text('{"schema": 1, "clients": [], "scores": [{"width": "1/2", "accuracy": 0.5}]}')
    page = Tags(write_report(run).read_text())
    assert "50.0 % at 1/2 of the channels" in page.text
    assert "svg" not in page.tags
    assert "took part" not in page.text


def test_the_page_tells_who_took_part_and_who_did_not(run, monkeypatch):
    monkeypatch.setattr(run_page, "drawn_pictures", lambda draws: [])
    row = {"kind": "round", "round": 30, "cohort": [0, 1], "clipped": [], "rejected": [], "repeated": []}
    row |= {"missing": [{"client": 1, "reason": EVIL}], "bytes_down": 1, "bytes_up": 1}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    page = Tags(write_report(run).read_text())
    assert all(words in page.text for words in ("Who took part", "Who did not take part, and why", EVIL))


# --- pictures -----------------------------------------------------------------------------------------------------


def pictures(result, rows):
    yield figures.convergence(rows, best_round=3)
    yield from (draw(result) for draw in (figures.by_domain, figures.tradeoff))
    yield figures.budgets(result["clients"], domain_names(result))
    yield figures.per_client(result)


def test_each_picture_says_a_fact_from_the_numbers(run):
    drawn = [*pictures(read_result(run), read_metrics(run))]
    titles = [picture.alt.split(";")[0] for picture in drawn]
    assert titles == [
        "Full width reaches 90.0 % on validation images in round 20",
        "Hardest: sign, 85.0 % at width 1/8 to 89.0 % at full width",
        "3 times the work for +4.0 points of accuracy",
        "1 of 4 clients can afford the full net",
        "At full width clients range from 88.0 % to 92.0 %",
    ]
    assert titles[3] in " ".join(ET.fromstring(drawn[3].svg()).itertext())  # whole, and its text stays text


def test_a_picture_can_be_saved_as_png_svg_or_pdf(run, tmp_path):
    result = read_result(run)
    picture = figures.budgets(result["clients"], domain_names(result))
    for name, head in (("a.png", b"\x89PNG"), ("new/b.svg", b"<?xml"), ("c.pdf", b"%PDF")):
        save(picture, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(head)
    with pytest.raises(UserError, match=r"\.png, \.svg or \.pdf"):
        save(picture, tmp_path / "a.gif")


def test_the_round_that_was_kept_is_marked_as_people_count(run):
    picture = figures.convergence(read_metrics(run), best_round=9)
    assert "round 10 was kept" in " ".join(ET.fromstring(picture.svg()).itertext())


def test_clients_without_test_images_are_left_out_of_the_picture(run):
    result = read_result(run)
    result["clients"].append({"client": 4, "domain": "pen", "budget": "1", "test": 0})
    assert "range from 88.0" in figures.per_client(result).alt


def test_a_single_point_can_be_drawn(tmp_path):
    run = fake_run(tmp_path / "run", widths=("1/8",))
    rows = [row for row in read_metrics(run) if row["kind"] == "score"]
    assert len([*pictures(read_result(run), rows[:1])]) == 5


def test_without_matplotlib_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r'pip install "splitmix\[plots\]"'):
        write_report(run)


# --- writing ------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "page", b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        write_atomically(tmp_path / "page", b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("page", b"old")]
