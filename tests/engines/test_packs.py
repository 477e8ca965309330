"""Clients side by side: what they learn is what each learns by itself."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from splitmix.core import batches
from splitmix.core.batches import as_images
from splitmix.core.net import Net
from splitmix.core.objective import Objective
from splitmix.core.types import Part, Plan, Train
from splitmix.core.width import Width
from splitmix.data.budgets import parse_budgets
from splitmix.data.domain import Domain
from splitmix.data.task import make_task
from splitmix.engines import simulator
from splitmix.engines.clients import TaskClients
from splitmix.engines.packs import packs
from splitmix.engines.simulator import Simulator
from splitmix.methods.bases import SplitMix
from splitmix.nets.digit import Digit
from splitmix.objectives.losses import DrawnWidth, Masked, Mutual, Plain

ATOM, METHOD = Width(1, 8), SplitMix()
PLAN = Plan(lr=0.01, batch=6)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@dataclass(frozen=True)
class Greedy(Objective):
    """Asks its bases twice."""

    def __call__(self, forward, x, y, rng):
        forward(x, training=False)
        return Plain()(forward, x, y, rng)


class Dropping(Digit):
    """A net that forgets some pixels in training."""

    def forward(self, x, robust=0.0):
        return super().forward(F.dropout(x, 0.2, self.training), robust)


def a_simulator(pack, *, device="cpu", objective=None, augment=False, build=Digit):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (48, 28, 28, 3), dtype=np.uint8)
    domain = Domain("random", images, np.arange(48) % 10, images[:8], np.arange(8) % 10)
    task = make_task("random", [domain], clients=4, partition="iid", val_ratio=0.0, net="digit")
    clients = TaskClients(replace(task, augment=augment), parse_budgets("1/8", clients=4), device)
    net = Net(build)
    return Simulator(net, METHOD.layout, clients, objective or Plain(), device=device, pack=pack)


def a_job(client, *numbers, **settings):
    return Train(0, client, tuple(Part(number, ATOM) for number in numbers), PLAN, seed=1, **settings)


JOBS = [a_job(3, 0, 1, 2), a_job(0, 2), a_job(2, 1, 3), a_job(1, 0)]


def far(pack, jobs=JOBS, dtype=torch.float64, **settings):
    """How far updates of clients side by side are from those of one after another."""
    one, many = a_simulator(1, **settings), a_simulator(pack, **settings)
    tracked = any(job.local_norms for job in jobs)
    start = one.net.init(METHOD.layout, 0, tracked=tracked)
    weights = {name: value.to(dtype) for name, value in start.items()}
    pairs = list(zip(one.run(weights, jobs), many.run(weights, jobs), strict=True))
    assert [(mine.client, mine.parts, mine.samples) for mine, _ in pairs] == [
        (theirs.client, theirs.parts, theirs.samples) for _, theirs in pairs
    ]
    apart = [abs(mine.metrics["loss"] - theirs.metrics["loss"]) for mine, theirs in pairs]
    apart += [float((m.weights[n] - t.weights[n]).abs().max()) for m, t in pairs for n in m.weights]
    return max(apart)


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(batches, "as_images", lambda x: as_images(x).double())


@pytest.fixture
def watched(monkeypatch):
    """How many clients each net side by side had."""
    seen, train = [], simulator.train_side_by_side
    monkeypatch.setattr(
        simulator, "train_side_by_side", lambda jobs, *given: (train(jobs, *given), seen.append(len(jobs)))[0]
    )
    return seen


@pytest.mark.parametrize("device", DEVICES)
def test_clients_side_by_side_learn_what_each_learns_alone(device, double, watched):
    assert far(8, device=device) < 1e-10
    assert watched == [4]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_in_single_precision_they_differ_by_rounding_alone(device):
    assert far(8, device=device, dtype=torch.float32) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Masked(), Mutual(Plain(), 0.5)])
def test_masked_and_mutual_losses_are_those_of_each_client(objective, double, watched):
    assert far(8, objective=objective) < 1e-10
    assert watched == [4]


@pytest.mark.slow
def test_each_client_augments_by_its_own_draws(double, watched):
    assert far(8, augment=True) < 1e-10
    assert watched == [4]


@pytest.mark.slow
def test_norms_that_stay_on_clients_do(double, watched):
    assert far(8, [replace(job, local_norms=True) for job in JOBS]) < 1e-10
    assert watched == [4]


@pytest.mark.slow
def test_no_more_bases_than_there_is_room_for_are_side_by_side(double, watched):
    assert far(4) < 1e-10
    assert watched == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Greedy(), DrawnWidth()])
def test_objectives_that_ask_for_more_train_clients_one_after_another(objective, double, watched):
    assert far(8, objective=objective) == 0
    assert watched == []


@pytest.mark.slow
def test_nets_that_draw_in_training_train_clients_one_after_another(double, watched):
    assert far(8, build=Dropping) == 0
    assert watched == []


def test_only_clients_with_as_many_images_are_together():
    samples = {3: 10, 0: 10, 2: 12, 1: 12}
    assert [[job.client for job in pack] for pack in packs(JOBS, 8, samples.__getitem__)] == [[3, 0], [2, 1]]


def test_on_a_cpu_clients_follow_one_another(watched):
    list(a_simulator(None).run(Net(Digit).init(METHOD.layout, 0), JOBS))
    assert watched == []
