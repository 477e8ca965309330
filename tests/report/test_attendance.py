"""Who took part: rows of rounds become a sentence and a table, and nothing where nobody failed."""

import json

import pytest

from splitmix.report.run_page import SHOWN, failures, summary, turnout
from splitmix.runs.records import read_metrics


def row(round=0, *, missing=(), rejected=(), clipped=(), repeated=(), cohort=range(4)):
    """A row of `metrics.jsonl`, as it comes back from its file."""
    said = {
        "kind": "round",
        "round": round,
        "cohort": [*cohort],
        "clipped": [*clipped],
        "rejected": [{"client": client, "kind": kind, "reason": "some words"} for client, kind in rejected],
        "missing": [{"client": client, "reason": reason} for client, reason in missing],
        "repeated": [*repeated],
    }
    return json.loads(json.dumps(said))


def tried(**failed):
    """An earlier try of a round."""
    return {key: value for key, value in row(**failed).items() if key in ("cohort", "clipped", "rejected", "missing")}


SOME = [
    row(0, missing=[(3, "late")]),
    row(1, missing=[(3, "late"), (1, "died")], rejected=[(2, "finite")]),
    row(2, clipped=[2], repeated=[tried(missing=[(0, "late"), (1, "late")])]),
    row(3),
]


def test_a_run_in_which_all_took_part_says_nothing():
    assert summary([row(0), row(1)]) == ""
    assert failures([row(0), row(1)]) is None


def test_the_page_tells_how_many_took_part_and_the_bytes_each_way():
    moved = {"bytes_down": 150_000, "bytes_up": 140_000}
    seen = [row(0, missing=[(3, "late")]) | moved, row(1, rejected=[(3, "finite")], cohort=(1, 3)) | moved]
    told = (
        "In 2 rounds, 3 of the 4 clients that were asked took part. 300kB of tensors went to clients, 280kB came back."
    )
    assert turnout(seen) == told
    assert turnout([row(0)]) == ""


def test_rows_of_older_versions_say_nothing():
    assert summary([{"kind": "round", "round": 0, "loss": 1.0}, {"kind": "score", "round": 0}]) == ""


def test_all_that_failed_is_counted_in_a_sentence():
    expected = "5 answers did not come, 1 update was rejected, 1 update was shortened, 1 round was repeated"
    assert summary(SOME) == f"In 4 rounds, {expected}."


def test_the_table_tells_how_often_and_why_each_client_failed():
    table = failures(SOME)
    assert [column.key for column in table.columns] == ["client", "rounds", "missing", "rejected", "shortened", "why"]
    assert table.rows == [
        [1, 4, 2, 0, 0, "died, late"],
        [2, 4, 0, 1, 1, "finite, too far"],
        [3, 4, 2, 0, 0, "late (2)"],
        [0, 4, 1, 0, 0, "late"],
    ]


def test_of_many_clients_those_who_failed_most_are_shown():
    table = failures([row(cohort=range(99), missing=[(client, "late") for client in range(50)])])
    assert len(table.rows) == SHOWN
    assert "30 more clients" in table.caption


@pytest.mark.parametrize(
    "spoilt",
    [{"missing": 3}, {"rejected": [{"client": "x"}]}, {"cohort": [-1]}, {"clipped": None}, {"repeated": [[]]}],
)
def test_a_row_that_makes_no_sense_is_skipped(tmp_path, spoilt):
    rows = [row(0, missing=[(1, "late")]), row(1, missing=[(1, "late")]) | spoilt]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert summary(read_metrics(tmp_path)) == "In 1 round, 1 answer did not come."
