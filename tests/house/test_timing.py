"""Ratios of benchmarks: in turns, until they are sure, or said not to be."""

import os
import sys
from itertools import cycle
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import timing
from timing import Spent, in_turns, middle, timed


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    monkeypatch.setattr(timing, "matmul_rate", lambda: 50e9)


def way(*seconds):
    taken = cycle(seconds)
    return lambda: Spent(second := next(taken), 2 * second)


def test_turns_end_when_every_ratio_is_sure():
    turns = in_turns({"ours": way(1.0), "theirs": way(3.0, 3.01)}, "ours", least=3, most=9)
    assert len(turns.spent["theirs"]) == 3
    assert turns.ratio("theirs", "ours", "clock").middle == pytest.approx(3.0)
    assert turns.verdict("ours").startswith("every ratio within 10%")


def test_turns_that_stay_unsure_are_said_to_be():
    turns = in_turns({"ours": way(1.0), "theirs": way(1.0, 2.0, 4.0)}, "ours", least=3, most=6)
    assert len(turns.spent["ours"]) == 6
    assert turns.verdict("ours").startswith("not every ratio within 10%: the turns differ by themselves")
    turns.rates.append(20e9)
    assert "the machine was too busy" in turns.verdict("ours")


def test_a_row_keeps_every_turn():
    row = in_turns({"ours": way(2.0), "theirs": way(4.0)}, "ours", least=2, most=2).row("theirs", "ours")
    assert row["clock"] == {"seconds": 4.0, "each": [4.0, 4.0], "ratio": {"middle": 2.0, "low": 2.0, "high": 2.0}}


def test_an_interval_holds_its_median():
    found = middle([1.0, 1.1, 5.0])
    assert found.low <= found.middle == 1.1 <= found.high


@pytest.mark.slow
def test_processor_time_counts_processes_below():
    def call():
        pid = os.fork()
        if not pid:
            end = os.times().user + 0.1
            while os.times().user < end:
                pass
            os._exit(0)
        os.waitpid(pid, 0)

    assert timed(call).processor >= 0.08
