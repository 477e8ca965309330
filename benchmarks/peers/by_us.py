"""Splitmix: a process per core, with PyTorch's layers or with native kernels."""

import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from peers.work import Work, serve
from torch import Tensor

from splitmix.core.net import Net
from splitmix.core.rounds import Constant, Federation, federate
from splitmix.core.types import Plan
from splitmix.core.width import Width
from splitmix.data.budgets import parse_budgets
from splitmix.data.domain import Domain
from splitmix.data.partition import Rows
from splitmix.data.task import make_task
from splitmix.engines.clients import TaskClients
from splitmix.engines.simulator import Simulator, default_workers
from splitmix.engines.stopwatch import Stopwatch
from splitmix.methods.bases import SplitMix
from splitmix.methods.nested import FedAvg
from splitmix.nets import NETS
from splitmix.nets.native.library import library
from splitmix.nets.native.stages import NativeStages
from splitmix.objectives.losses import Plain

BUDGETS = "1/8 1/4 1/2 1"


def clients_of(work: Work) -> TaskClients:
    """The work's clients; every one has a few of the test images, which nobody asks for."""
    count, rows = len(work.rows), work.rows.numpy()
    whole = Domain("work", work.x.numpy(), work.y.numpy(), work.x.numpy()[:count], work.y.numpy()[:count])

    def deal(labels: Rows, domain: Rows, clients: int, rng: Generator) -> list[Rows]:
        return list(rows) if len(labels) > count else [np.array([i]) for i in range(count)]

    task = make_task("work", [whole], clients=count, partition=deal, val_ratio=0.0)
    return TaskClients(task, parse_budgets(BUDGETS if work.parts else "1", clients=count))


def main() -> None:
    work = Work.read(sys.argv[1])
    method = SplitMix() if work.parts else FedAvg(Width(work.width))
    build: Any = NETS[work.net] if work.net in NETS else lambda width: work.fresh()
    if "native" in sys.argv[2:]:
        library()
        build = partial(build, stages=NativeStages())
    net = Net(build)
    names = net.init(method.layout, 0)  # ours go by other names than a plain net's, in the same order
    starts = [list(base.values()) for base in work.start]
    weights = {name: torch.stack([start[i] for start in starts]) for i, name in enumerate(names)}
    plan = Plan(work.lr, batch=work.batch, momentum=work.momentum, weight_decay=work.weight_decay)
    cohort = len(work.cohorts[0])
    clients = clients_of(work)
    with Simulator(net, method.layout, clients, Plain(), default_workers()) as engine:

        def train(round: int) -> None:
            nonlocal weights
            how = Federation(round + 1, plan, Constant(), cohort)
            weights = federate(method, engine, net, weights, how, start=round)

        def shares() -> dict[str, float]:
            """Of a round that is watched, after those that were timed."""
            watch = Stopwatch()
            how = Federation(1, plan, Constant(), cohort)
            with Simulator(net, method.layout, clients, Plain(), default_workers(), stopwatch=watch) as watched:
                federate(method, watched, net, weights, how)
            return watch.shares()

        def predict(x: Tensor) -> Tensor:
            return net.run(method.layout.width, weights, x).mean(0)

        serve(train, lambda: work.accuracy(predict), shares)


if __name__ == "__main__":
    main()
