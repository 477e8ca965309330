"""Answers as early as they are wanted: by a deadline, or as soon as an image is settled."""

import math

import numpy as np
import pytest
import torch

from helpers.bundles import ATOM, images, random_bundle
from splitmix.core.errors import UserError
from splitmix.runtime.anytime import Pace, gather, margins
from splitmix.runtime.model import Model


def test_a_prediction_says_classes_probabilities_and_bases(model):
    x = images(6)
    found = model.predict(x, width="3/16", robust=0.3)
    shares = model(x, "3/16", 0.3).softmax(-1).numpy()
    np.testing.assert_allclose(found.probabilities, shares, rtol=1e-6)
    assert found.classes.tolist() == shares.argmax(-1).tolist()
    assert found.bases.tolist() == [3] * 6
    assert found.milliseconds > 0


@pytest.mark.parametrize(("deadline_ms", "bases"), [(1e-6, 1), (3_600_000, 3)])
def test_a_deadline_that_has_passed_leaves_one_base_and_a_late_one_all_of_the_width(model, deadline_ms, bases):
    x = images(4)
    found = model.predict(x, width="3/16", deadline_ms=deadline_ms)
    assert found.bases.tolist() == [bases] * 4
    shares = model(x, ATOM * bases).softmax(-1).numpy()
    np.testing.assert_allclose(found.probabilities, shares, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A model whose second base counts three times at 1/8, and whose first counts for nothing at 1/4."""
    times = {"1/8": [1, 3], "1/4": [0, 1, 1, 2]}
    return Model.load(random_bundle(tmp_path_factory.mktemp("uneven") / "b", atom="1/16", bases=4, times=times).path)


@pytest.mark.parametrize(
    ("width", "shares"),
    [("1/16", [1.0]), ("1/8", [0.25, 0.75]), ("3/16", [1 / 3] * 3), ("1/4", [0.0, 0.25, 0.25, 0.5])],
)
def test_bases_have_their_shares_in_an_answer_however_early_it_is_wanted(uneven, width, shares):
    x, late = images(5), {"deadline_ms": 3_600_000}
    votes = uneven.logits_by_base(x, width, 0.3)
    mean = (votes * torch.tensor(shares)[:, None, None]).sum(0)
    torch.testing.assert_close(uneven(x, width, 0.3), mean)
    for wanted in ({}, late, {"confidence": 1.0}):
        found = uneven.predict(x, width=width, robust=0.3, **wanted)
        torch.testing.assert_close(torch.from_numpy(found.probabilities), mean.softmax(-1))


class Clock:
    """Time that passes only while bases run: a second to begin with, and a second for each base."""

    def __init__(self, monkeypatch):
        self.now, self.ran = 0.0, []
        monkeypatch.setattr("splitmix.runtime.anytime.perf_counter", lambda: self.now)

    def votes(self, start, stop, x):
        self.ran.append((start, stop))
        self.now += 1 + (stop - start)
        return np.zeros((stop - start, len(x), 2))

    def steps(self, pace, deadline):
        self.ran, self.now = [], 0.0
        gather(self.votes, 8, np.zeros((1, 3)), pace=pace, deadline=deadline)
        return self.ran


def test_more_bases_are_run_only_if_they_end_in_time(monkeypatch):
    clock, pace = Clock(monkeypatch), Pace()
    assert clock.steps(pace, deadline=1) == [(0, 1)]  # one base takes two seconds
    assert clock.steps(pace, deadline=9) == [(0, 3), (3, 6)]  # three are thought to take six, but take four
    assert clock.steps(pace, deadline=9) == [(0, 5), (5, 6)]  # so five take seven at most, and in fact six
    assert clock.now <= 9
    for _ in range(3):
        clock.steps(pace, deadline=12)
    assert clock.ran == [(0, 8)]  # side by side they take nine: found out by trying


def test_a_slow_moment_is_remembered_for_a_while():
    pace = Pace()
    pace.learn(1, 1, 0.001)
    pace.learn(1, 1, 0.101)
    assert pace.seconds(1, 1) == pytest.approx(0.031)
    for _ in range(20):
        pace.learn(1, 1, 0.001)
    assert pace.seconds(1, 1) == pytest.approx(0.001, rel=0.1)


def test_settled_images_get_no_more_bases(model):
    x = images(40)
    margin = float(np.median(margins(model(x, ATOM).numpy())))
    found = model.predict(x, confidence=margin)
    assert len(set(found.bases.tolist())) > 1
    assert found.mean_bases == found.bases.mean()
    for bases in set(found.bases.tolist()):
        rows = found.bases == bases
        shares = model(x[rows], ATOM * bases).softmax(-1).numpy()
        np.testing.assert_allclose(found.probabilities[rows], shares, rtol=1e-3, atol=1e-5)
        best = np.sort(shares, -1)
        settled = best[:, -1] - best[:, -2] >= margin - 1e-5
        assert settled.all() or bases == 4


def test_the_surest_and_the_least_sure(model):
    x = images(5)
    assert model.predict(x, confidence=0).bases.tolist() == [1] * 5
    assert model.predict(x, confidence=1).bases.tolist() == [4] * 5


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"deadline_ms": 0}, "deadline_ms 0 is no time"),
        ({"deadline_ms": math.nan}, "deadline_ms nan is no time"),
        ({"deadline_ms": "soon"}, "deadline_ms 'soon' is no time"),
        ({"confidence": math.nan}, "confidence nan is no margin"),
        ({"confidence": 2}, "confidence 2 is no margin"),
        ({"confidence": "sure"}, "confidence 'sure' is no margin"),
    ],
)
def test_deadlines_and_confidences_are_checked(model, setting, words):
    with pytest.raises(UserError, match=words):
        model.predict(images(1), **setting)
