"""What clients measure under a model is measured once, in this process and in workers; under another one anew."""

from dataclasses import replace

import pytest

from helpers.toys import LAYOUT, bases, to_bytes, toy_simulator, toy_weights
from splitmix.core.client import execute
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.types import Calibrate, Question, Score, Update

PARTS = bases(0, 1, 2, 3)
ASKED = Question("val", "client", batch=8)
JOBS = [
    *(Calibrate(client, PARTS, 8) for client in range(3)),
    *(Score(client, (PARTS, PARTS[:2]), ASKED) for client in range(3)),
    *(Score(client, (PARTS[::-1],), replace(ASKED, split="test")) for client in range(3)),  # in another order
]


def plain(answer):
    return to_bytes(answer.weights) if isinstance(answer, Update) else answer


def expected(engine, weights):
    """The answers of clients who measure whenever they are asked."""
    data = engine.clients.data
    return [
        plain(execute(job, engine.net, cut(engine.net, LAYOUT, weights, PARTS), data(job.client), None, {}))
        for job in JOBS
    ]


@pytest.fixture
def measured(monkeypatch):
    """How often a net was asked for the statistics of a batch."""
    batches, measure = [], Net.measure
    monkeypatch.setattr(Net, "measure", lambda *given: batches.append(1) or measure(*given))
    return batches


def test_a_client_measures_once_for_all_questions_about_a_model(measured):
    engine, weights = toy_simulator(), toy_weights()
    list(engine.run(weights, JOBS[:3]))
    once = len(measured)
    answers = [plain(answer) for answer in engine.run(weights, JOBS)]
    assert len(measured) == once
    assert answers == expected(engine, weights)


def test_under_another_model_it_measures_anew(measured):
    engine = toy_simulator()
    list(engine.run(toy_weights(), JOBS))
    once = len(measured)
    other = toy_weights(seed=1)
    assert [plain(answer) for answer in engine.run(other, JOBS)] == expected(engine, other)
    assert len(measured) > once


def test_another_batch_size_is_another_question(measured):
    engine, weights = toy_simulator(), toy_weights()
    list(engine.run(weights, JOBS[:1]))
    once = len(measured)
    list(engine.run(weights, [replace(JOBS[0], batch=4)]))
    assert len(measured) > once


def test_workers_hear_what_clients_measured():
    weights = toy_weights()
    with toy_simulator(workers=2) as engine:
        first, again = ([plain(answer) for answer in engine.run(weights, JOBS)] for _ in range(2))
        assert first == again == expected(engine, weights)
        assert engine._known.found.keys() == {0, 1, 2}


def test_training_keeps_nothing_and_memory_has_a_limit(monkeypatch):
    monkeypatch.setattr("splitmix.engines.known.MOST", 2)
    engine, weights = toy_simulator(), toy_weights()
    assert [plain(answer) for answer in engine.run(weights, JOBS)] == expected(engine, weights)
    assert engine._known.found.keys() == {0, 1}
