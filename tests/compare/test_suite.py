"""Many runs in one loop: which are made, what is told of them, and what happens to those that fail."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from splitmix.compare.suite import Suite, SuiteRun, Workshop
from splitmix.core.errors import UserError
from splitmix.runs.config import Config, make_config


@dataclass(frozen=True)
class Errand(SuiteRun):
    """A run that takes as long as it says, or fails."""

    label: str
    seconds: float | None = None
    expected: float = 0.0
    fails: BaseException | None = None
    folder: Path = Path()
    config: Config = field(default_factory=lambda: make_config({}))
    log: list = field(default_factory=list)

    @property
    def done(self):
        return bool(self.log)

    def perform(self, setups, workshop):
        if self.fails:
            raise self.fails
        self.log.append("made now")


def finished(label, seconds):
    return Errand(label, seconds, log=["made before"])


def left(*runs):
    return Suite(runs, Workshop()).seconds_left()


def test_what_is_done_is_passed_over_and_the_rest_is_handed_over_one_by_one():
    told, runs = [], [Errand("one"), finished("two", 5.0), Errand("three", 7.0)]
    suite = Suite(runs, Workshop(say=told.append), "trial")
    seen = [(run.label, len(suite.waiting)) for run in suite]
    assert seen == [("one", 1), ("three", 0)]
    assert [run.log for run in runs] == [["made now"], ["made before"], ["made now"]]
    assert [text.split(" (")[0] for text in told] == ["trial 1 of 3: one, seed 1", "trial 3 of 3: three, seed 1"]


def test_the_time_left_is_judged_by_runs_of_the_same_kind_or_else_by_all():
    assert left(Errand("a")) == 0
    assert left(finished("a", 100.0), Errand("a"), Errand("b"), Errand("b")) == 300
    assert left(finished("a", 100.0), finished("b", 10.0), Errand("a"), Errand("b"), Errand("c")) == 165
    told = []
    list(Suite([finished("a", 100.0), Errand("a"), Errand("b")], Workshop(say=told.append)))
    assert told[0].endswith("(all in about 3 min 20 s)")


def test_what_is_expected_is_measured_by_how_fast_it_goes_here(monkeypatch):
    clock = iter([0.0, 30.0])  # the first run begins and ends
    monkeypatch.setattr("splitmix.compare.suite.perf_counter", lambda: next(clock))
    suite = Suite([Errand("a", expected=10.0), Errand("b", expected=20.0)], Workshop())
    assert suite.seconds_left() == 30
    next(iter(suite))
    assert suite.seconds_left() == 60


def test_a_failure_ends_a_suite_unless_it_is_to_go_on(tmp_path):
    told, bad, good = [], Errand("bad", fails=UserError("no such thing")), Errand("good")
    with pytest.raises(UserError, match="no such thing"):
        list(Suite([bad, good], Workshop()))
    assert not good.log
    worse = Errand("worse", fails=ZeroDivisionError("1/0"), folder=tmp_path)
    with pytest.raises(UserError, match=r"bad, seed 1 \(and 2 more\) could not be done: no such thing"):
        list(Suite([bad, bad, worse, good], Workshop(say=told.append), keep_going=True))
    assert good.log
    assert "not done: no such thing" in told[1]
    assert "for the same reason" in told[3]
    assert "ZeroDivisionError, see" in told[5]
    assert "1/0" in (tmp_path / "failure.txt").read_text()


def test_whoever_stops_a_suite_stops_it():
    with pytest.raises(KeyboardInterrupt):
        list(Suite([Errand("a", fails=KeyboardInterrupt())], Workshop(), keep_going=True))
