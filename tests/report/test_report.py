"""Reading a run's folder, its pictures and its page, from a small run made by hand."""

import errno
import json
import os
import re
import sys
import xml.etree.ElementTree as ET

import pytest

from helpers.pages import Tags
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.report import figures
from splitmix.report.run_page import run_headline as headline
from splitmix.report.run_page import write_report
from splitmix.runs.records import read_config, read_metrics, read_result

pytestmark = pytest.mark.slow  # draws every picture
WIDTHS = {"1/8": 1, "1/2": 4, "1": 8}


def make_result(domains=("pen", "sign"), norms=("client", "batch")):
    clients = [
        {"client": i, "domain": domains[i % len(domains)], "budget": budget, "train": 50, "val": 20, "test": 70}
        for i, budget in enumerate(["1/8", "1/8", "1/2", "1"])
    ]
    scores = [
        {
            "width": width,
            "bases": bases,
            "norm": norm,
            "split": "test",
            "accuracy": 0.85 + bases / 100,
            "pooled": 0.84 + bases / 100,
            "domains": {name: 0.8 + bases / 100 + i / 20 for i, name in enumerate(domains)},
            "clients": [0.8 + bases / 100, 0.9, 0.85, 1.0],
            "parameters": 224_194 * bases,
            "macs": 1_158_144 * bases,
            "ms": 0.9,
        }
        for norm in norms
        for width, bases in WIDTHS.items()
    ]
    return {
        "schema": 1,
        "task": "mini",
        "data": "digits made here",
        "method": "splitmix",
        "net": "digit",
        "atom": "1/8",
        "norm": "post",
        "norm_text": "fixed after training",
        "seed": 1,
        "rounds": 4,
        "best_round": 3,
        "order": "greedy",
        "bases": [3, 0, 1, 2, 4, 5, 6, 7],
        "weights_sha256": "ab" * 32,
        "seconds": 123.4,
        "workers": 2,
        "threads": 1,
        "versions": {"splitmix": "0.1.0", "torch": "2.13.0"},
        "command": "splitmix train mini",
        "domains": list(domains),
        "clients": clients,
        "scores": scores,
    }


def score_row(round, width, accuracy):
    return {"kind": "score", "round": round, "split": "val", "width": width, "bases": 1, "accuracy": accuracy}


def write_run(folder, result, rows=None):
    folder.mkdir(exist_ok=True)
    if rows is None:
        rows = [score_row(round, width, 0.6 + round / 10) for round in (1, 3) for width in WIDTHS]
    (folder / "config.toml").write_text('task = "mini"\n')
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", make_result())


# --- reading ------------------------------------------------------------------------------------------------------


def test_of_rows_written_twice_after_a_resume_the_last_counts(tmp_path):
    rows = [
        {"kind": "round", "round": 1, "loss": 2.0},
        score_row(2, "1", 0.3),
        {"kind": "round", "round": 3, "loss": 1.5},
        {"kind": "round", "round": 1, "loss": 2.1},
        score_row(2, "1", 0.4),
    ]
    found = read_metrics(write_run(tmp_path / "run", None, rows))
    assert [row["round"] for row in found] == [1, 2, 3]
    assert (found[0]["loss"], found[1]["accuracy"]) == (2.1, 0.4)


def test_lines_that_cannot_be_read_are_skipped(run):
    bad = [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"kind": "round"}', b'{"kind": "score", "round": 9, "width": "x"}']
    bad += [
        b'{"kind": "other", "round": 1}',
        b'{"kind": [], "round": 1}',
        b'{"kind": "round", "round": "1"}',
        b"[" * 9999,
    ]
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b"\n".join(bad) + b"\n" + whole + b'{"kind": "round", "rou')
    assert len(read_metrics(run)) == 6


def test_a_run_without_metrics_has_no_rows(run):
    (run / "metrics.jsonl").unlink()
    assert read_metrics(run) == []


@pytest.mark.parametrize("read", [read_metrics, read_result, write_report])
def test_a_folder_that_is_no_run_is_refused(read, tmp_path):
    with pytest.raises(UserError, match="not a run's folder"):
        read(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        read(tmp_path / "nowhere")


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    with pytest.raises(UserError, match=r"not finished.*--resume"):
        read_result(write_run(tmp_path / "run", None))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"schema": 2}', "schema 2"),
        ('{"schema": 1, "clients": []}', "at scores"),
        ('{"schema": 1, "clients": [], "scores": []}', "no scores"),
        ('{"schema": 1, "clients": [], "scores": [{"width": "9", "accuracy": 1}]}', r"scores\.0\.width"),
        ('{"schema": 1, "clients": 5, "scores": []}', "at clients"),
    ],
)
def test_a_damaged_result_is_one_sentence(run, text, words):
    (run / "result.json").write_text(text)
    with pytest.raises(UserError, match=words) as refusal:
        read_result(run)
    assert "\n" not in str(refusal.value)


def test_what_could_steer_a_terminal_is_replaced(tmp_path):
    run = write_run(tmp_path / "run", {**make_result(), "task": "a\x1b[2Jb\u202e\n"})
    (run / "config.toml").write_bytes(b"a\x1b\n\xff")
    assert read_result(run)["task"] == "a\ufffd[2Jb\ufffd "
    assert read_config(run) == "a\ufffd\n\ufffd"


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_headline_names_both_ends():
    assert headline(make_result()) == (
        "One training run, three widths: 86.0 % at 1/8 of the channels to 93.0 % at full width."
    )


def test_the_headline_of_one_width_is_short():
    result = make_result()
    assert headline({**result, "scores": result["scores"][2:3]}) == "One training run, one width: 93.0 % at full width."


def test_the_page_has_headline_table_pictures_and_origin(run):
    page = Tags(write_report(run).read_text())
    assert page.tags.count("svg") == 5
    for words in (headline(make_result()), "1.16M", "splitmix train mini", "ab" * 32, "2 min 3 s", 'task = "mini"'):
        assert words in page.text
    assert "mean over clients: each client counts the same" in page.text
    assert "fixed after training" in page.text
    assert "weights of round 4 were kept" in page.text


def test_the_page_needs_nothing_but_itself(run):
    page = write_report(run).read_text()
    assert not re.search(r"https?:|//|src=|<link|<script|@import|url\((?!#)", page)
    assert all(value.startswith("#") for name, value in Tags(page).attributes if name.endswith("href"))


def test_ids_are_unique_and_references_find_them(run):
    page = Tags(write_report(run).read_text())
    ids = [value for name, value in page.attributes if name == "id"]
    used = {value[1:] for name, value in page.attributes if name == "href"}
    used |= {name for _, value in page.attributes if value for name in re.findall(r"url\(#([^)]*)\)", value)}
    assert len(ids) == len(set(ids))
    assert used <= set(ids)


def test_the_same_files_give_the_same_page(run):
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_text_from_files_never_becomes_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    result = make_result(domains=(evil, '"><img onerror=x>', "$x^", "_y"))
    for key in ("task", "data", "method", "net", "norm", "norm_text", "order", "weights_sha256", "command"):
        result[key] = evil
    result["versions"] = {evil: evil}
    for score in result["scores"]:
        score["norm"] = evil
    run = write_run(tmp_path / "run", result)
    (run / "config.toml").write_text(f"task = '{evil}</pre>'")
    page = Tags(write_report(run).read_text())
    assert not {"script", "img"} & set(page.tags)
    assert evil in page.text


def test_a_run_that_recorded_little_still_has_a_page(tmp_path):
    result = {"schema": 1, "clients": [], "scores": [{"width": "1/2", "accuracy": 0.5}]}
    page = Tags(write_report(write_run(tmp_path / "run", result, rows=[])).read_text())
    assert "50.0 % at 1/2 of the channels" in page.text
    assert "svg" not in page.tags


# --- pictures -----------------------------------------------------------------------------------------------------


def pictures(result, rows):
    yield figures.convergence(rows, best_round=3)
    for draw in (figures.by_domain, figures.tradeoff, figures.budgets, figures.per_client):
        yield draw(result)


def test_each_picture_says_a_fact_from_the_numbers(run):
    titles = [picture.alt.split(";")[0] for picture in pictures(read_result(run), read_metrics(run))]
    assert titles == [
        "Full width reaches 90.0 % on validation images in round 4",
        "Hardest: pen, 81.0 % at width 1/8 to 88.0 % at full width",
        "8 times the work for +7.0 points of accuracy",
        "1 of 4 clients can afford the full net",
        "At full width clients range from 85.0 % to 100.0 %",
    ]


def test_pictures_are_whole_svg_with_readable_text(run):
    for picture in pictures(read_result(run), read_metrics(run)):
        svg = picture.svg()
        ET.fromstring(svg)
        assert picture.alt.split(";")[0] in " ".join(ET.fromstring(svg).itertext())


@pytest.mark.parametrize(("name", "head"), [("a.png", b"\x89PNG"), ("new/b.svg", b"<?xml")])
def test_a_picture_can_be_saved(run, tmp_path, name, head):
    figures.save(figures.budgets(read_result(run)), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(head)


def test_a_picture_of_another_kind_is_refused(run, tmp_path):
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        figures.save(figures.budgets(read_result(run)), tmp_path / "a.gif")


def test_names_that_no_font_knows_or_that_are_long_are_drawn(tmp_path):
    result = make_result(domains=("数字", "a very long name, one", "a very long name, two", "_"))
    write_report(write_run(tmp_path / "run", result))


def test_clients_without_test_images_are_left_out_of_the_picture(run):
    result = read_result(run)
    result["clients"].append({"client": 4, "domain": "pen", "budget": "1", "test": 0})
    assert "range from 85.0" in figures.per_client(result).alt


def test_a_single_point_can_be_drawn(tmp_path):
    result = make_result(domains=("pen",))
    result["scores"] = result["scores"][:1]
    run = write_run(tmp_path / "run", result, rows=[score_row(3, "1/8", 0.5)])
    assert len([*pictures(read_result(run), read_metrics(run))]) == 5


def test_without_matplotlib_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r'pip install "splitmix\[plots\]"'):
        write_report(run)


# --- writing ------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(run, monkeypatch):
    page = write_report(run)
    before = {file: file.read_bytes() for file in run.iterdir()}

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        write_atomically(page, b"new")
    assert {file: file.read_bytes() for file in run.iterdir()} == before


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "page", b"")
