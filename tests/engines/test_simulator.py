"""The simulator: the same answers from any number of workers, and clear words when one of them ends."""

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from helpers.toys import (
    LAYOUT,
    PLAN,
    ToyClients,
    bases,
    to_bytes,
    toy_simulator,
    toy_weights,
)
from splitmix.core.errors import UserError
from splitmix.core.parts import cut
from splitmix.core.types import Calibrate, Question, Score, Train
from splitmix.engines import workers
from splitmix.engines.simulator import named_norms, split_norms
from splitmix.engines.stopwatch import Stopwatch
from splitmix.engines.workers import Arena, Workers

pytestmark = pytest.mark.skipif(not Workers.possible(), reason="worker processes need fork")
TEST_PROCESS = os.getpid()


def job(client, *numbers, round=0, **settings):
    return Train(round, client, bases(*numbers or (0,)), PLAN, seed=1, **settings)


JOBS = [job(3, 0, 1, 2, 3), job(0, 2), job(2, 1, 3), job(1, 0)]


def updates(engine, jobs, weights=None):
    return [to_bytes(update.weights) for update in engine.run(weights or toy_weights(), jobs)]


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@dataclass(frozen=True)
class Spoilt(ToyClients):
    """Client 1 makes trouble of one kind; all others behave."""

    trouble: str = ""

    def data(self, client):
        if client == 1:
            {"mistake": self.mistake, "failure": self.failure, "death": self.death, "delay": self.delay}[self.trouble]()
        return super().data(client)

    def mistake(self):
        raise UserError("client 1 has no images; give it some")

    def failure(self):
        raise KeyError("a bug")

    def death(self):
        if os.getpid() != TEST_PROCESS:
            os.kill(os.getpid(), signal.SIGKILL)

    def delay(self):
        time.sleep(0.05)


@pytest.fixture(scope="module")
def two_workers():
    with toy_simulator(workers=2) as engine:
        yield engine


@pytest.fixture
def pool(two_workers):
    """A simulator with two workers; its clients have kept nothing yet."""
    two_workers.own_norms.clear()
    return two_workers


def test_what_clients_keep_to_themselves_is_the_same_with_workers(pool):
    single = toy_simulator()
    for engine in (single, pool):
        for round in range(2):  # in the second, clients go on from what they kept
            updates(engine, [job(c, 0, 1, round=round, local_norms=True) for c in range(4)])
    kept, expected = ({c: to_bytes(named_norms(m)) for c, m in e.own_norms.items()} for e in (pool, single))
    assert kept == expected
    assert len(kept) == 4


def test_scores_with_local_norms_are_the_same_with_workers(pool):
    tallies = []
    for engine in (toy_simulator(), pool):
        updates(engine, [job(c, 0, 1, local_norms=True) for c in range(4)])
        scores = [Score(c, (bases(0), bases(0, 1)), Question(local_norms=True)) for c in range(4)]
        tallies.append(list(engine.run(toy_weights(), scores)))
    assert tallies[0] == tallies[1]


def test_own_norms_travel_without_holding_files_open(pool):
    updates(pool, [job(c, 0, 1, local_norms=True) for c in range(4)])
    before = open_files()
    list(pool.run(toy_weights(), [Score(c, (bases(0, 1),), Question(local_norms=True)) for c in range(4)]))
    assert open_files() == before


def test_all_kinds_of_jobs_can_be_mixed(pool):
    jobs = [JOBS[0], Score(1, (bases(0), bases(1, 2))), Calibrate(2, bases(0, 1, 2, 3)), JOBS[3]]
    one, two = (list(engine.run(toy_weights(), jobs)) for engine in (toy_simulator(), pool))
    assert one[1] == two[1]
    assert [to_bytes(one[i].weights) for i in (0, 2, 3)] == [to_bytes(two[i].weights) for i in (0, 2, 3)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_gets_only_the_bases_that_its_job_names(workers):
    weights, wanted = toy_weights(), bases(3, 1)
    spoilt = {name: value.clone() for name, value in weights.items()}
    for value in spoilt.values():
        value[[0, 2]] = torch.nan  # it must not see these
    with toy_simulator(workers=workers) as engine:
        (expected,), (found,) = (updates(engine, [job(0, 3, 1)], some) for some in (weights, spoilt))
        (update,) = engine.run(weights, [job(0, 3, 1)])
    assert found == expected
    assert {name: v.shape for name, v in update.weights.items()} == {
        name: v.shape for name, v in cut(engine.net, LAYOUT, weights, wanted).items()
    }


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_come_in_the_order_of_the_jobs(workers):
    jobs = [job(client) for client in (1, 3, 0, 2, 0, 3, 2)]  # the first takes longest
    with toy_simulator(Spoilt(trouble="delay"), workers=workers) as engine:
        assert [update.client for update in engine.run(toy_weights(), jobs)] == [1, 3, 0, 2, 0, 3, 2]


def test_a_round_may_have_no_jobs(pool):
    assert updates(pool, []) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_of_the_user_arrives_as_such(workers):
    with (
        toy_simulator(Spoilt(trouble="mistake"), workers=workers) as engine,
        pytest.raises(UserError, match=r"^client 1 has no images; give it some$"),
    ):
        updates(engine, JOBS)


def test_a_bug_in_a_worker_arrives_with_its_traceback():
    with (
        toy_simulator(Spoilt(trouble="failure"), workers=2) as engine,
        pytest.raises(RuntimeError, match=r"(?s)a worker failed:.*in failure.*KeyError: 'a bug'"),
    ):
        updates(engine, JOBS)


def test_after_a_mistake_the_workers_go_on():
    with toy_simulator(Spoilt(trouble="mistake"), workers=2) as engine:
        with pytest.raises(UserError):
            updates(engine, JOBS)
        assert updates(engine, JOBS[:3]) == updates(toy_simulator(), JOBS[:3])


ENDED = r"^a worker process ended unexpectedly \(exit code -9\); if memory ran out, use fewer --workers; then continue"


def test_a_worker_killed_at_work_is_noticed():
    with (
        toy_simulator(Spoilt(trouble="death"), workers=3) as engine,
        pytest.raises(RuntimeError, match=ENDED),
    ):
        updates(engine, [*JOBS, *JOBS[:3]])


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_killed_between_rounds_is_noticed(worker):
    with toy_simulator(workers=2) as engine:
        updates(engine, JOBS)
        process = engine._pool.processes[worker]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with pytest.raises(RuntimeError, match=ENDED):
            updates(engine, JOBS)


def test_a_closed_simulator_leaves_no_process_and_can_be_used_again():
    engine = toy_simulator(workers=3)
    first, processes = updates(engine, JOBS), engine._pool.processes
    engine.close()
    engine.close()  # no harm
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert not set(processes) & set(multiprocessing.active_children())
    with engine:
        assert updates(engine, JOBS) == first


def test_the_reader_may_stop_early(pool):
    answers = pool.run(toy_weights(), JOBS)
    next(answers)
    answers.close()
    assert updates(pool, JOBS) == updates(toy_simulator(), JOBS)


def test_workers_see_the_weights_of_the_round(pool):
    for seed in range(2):
        weights = toy_weights(seed=seed)
        assert updates(pool, JOBS, weights) == updates(toy_simulator(), JOBS, weights)


def test_an_answer_stays_while_the_worker_goes_on(pool):
    jobs = [job(c, 0, 1, round=round) for round in range(3) for c in range(4)]
    kept = list(pool.run(toy_weights(), jobs))
    assert [to_bytes(update.weights) for update in kept] == updates(toy_simulator(), jobs)


def test_a_reader_of_many_answers_may_stop_early(pool):
    jobs = [job(c, 0, 1, round=round) for round in range(6) for c in range(4)]
    answers = pool.run(toy_weights(), jobs)
    next(answers)
    answers.close()
    assert updates(pool, jobs) == updates(toy_simulator(), jobs)


@pytest.mark.parametrize(
    ("small", "most", "given"), [(9, workers.MANY, 4), (5, workers.MANY, 3), (0, workers.MANY, 2), (9, 0, 2)]
)
def test_each_worker_is_given_a_second_task_if_it_is_small_and_many_are_left(monkeypatch, small, most, given):
    taken, seen = [], []
    monkeypatch.setattr(workers, "MANY", most)
    monkeypatch.setattr(
        Workers,
        "_answered",
        lambda self, busy, plain=Workers._answered: [seen.append(len(taken)), plain(self, busy)][1],
    )
    pair = Workers(lambda weights, task: (task, {"a": weights["a"] + task}), 1000, 2)
    try:
        tasks = (taken.append(task) or task for task in range(9))
        found = list(pair.run({"a": torch.ones(3)}, tasks, small))
    finally:
        pair.close()
    assert seen[0] == given
    assert [(task, tensors["a"].tolist()) for task, tensors in found] == [(task, [1.0 + task] * 3) for task in range(9)]


def test_the_main_process_gets_its_threads_back():
    torch.set_num_threads(2)
    try:
        updates(toy_simulator(), JOBS[:1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_shared_memory_gives_back_what_was_written():
    arena = Arena(1000)
    tensors = {"a": torch.arange(3.0), "b": torch.tensor([[1, 2]]), "c": torch.tensor(5.0), "d": torch.tensor([True])}
    found = arena.read(arena.write(tensors))
    assert to_bytes(found) == to_bytes(tensors)
    assert all(found[name].shape == value.shape and found[name].dtype == value.dtype for name, value in tensors.items())


def test_shared_memory_refuses_what_does_not_fit():
    with pytest.raises(MemoryError, match="4032 bytes of tensors do not fit the 1000 bytes that workers share"):
        Arena(1000).write({"a": torch.zeros(1000)})


def test_a_memory_and_an_upload_travel_as_one():
    memory = {0: {"norm.weight": torch.ones(2)}, 3: {"norm.weight": torch.zeros(2)}}
    upload = {"fc.weight": torch.arange(2.0)}
    found, rest = split_norms({**upload, **named_norms(memory)})
    assert {base: to_bytes(norms) for base, norms in found.items()} == {b: to_bytes(n) for b, n in memory.items()}
    assert to_bytes(rest) == to_bytes(upload)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopwatch_counts_every_step_and_changes_no_bits(workers):
    jobs, watch = [*JOBS, Score(1, (bases(0),))], Stopwatch()
    with toy_simulator(workers=workers) as plain, toy_simulator(workers=workers) as timed:
        timed.stopwatch = watch
        expected, found = (list(engine.run(toy_weights(), jobs)) for engine in (plain, timed))
    assert [to_bytes(update.weights) for update in found[:-1]] == [to_bytes(update.weights) for update in expected[:-1]]
    clients = {step: seconds for step, seconds in watch.seconds.items() if step not in ("merge", "waiting")}
    assert all(seconds > 0 for seconds in clients.values())
    assert sum(watch.shares().values()) == pytest.approx(1)


def test_what_the_receiver_of_updates_takes_for_them_counts_as_merge():
    engine = toy_simulator()
    engine.stopwatch = watch = Stopwatch()
    for _ in engine.run(toy_weights(), JOBS[:2]):
        time.sleep(0.02)
    assert watch.seconds["merge"] >= 0.04
