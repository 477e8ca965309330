"""What a server costs as a federation grows: registered clients, clients of a round, bases, parameters; and on Flower.

python benchmarks/scale.py [PART ...]    writes rows, results/scale.md and its picture (some minutes)

Clients here answer at once, with what they were sent: what is left is the server's own work in a round, by processor
time. Each point is a process of its own, so that its peak memory is its own too.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from charts import draw_growth
from evidence import RESULTS, publish, read_rows
from flwr.supercore.task_identity import TaskIdentity
from timing import forget_peak, matmul_rate, peak_mb, told

from splitmix.core.method import Method
from splitmix.core.net import Net
from splitmix.core.parts import covering
from splitmix.core.rounds import Federation, federate
from splitmix.core.types import Job, Profile, Train, Update, Weights
from splitmix.core.width import Width
from splitmix.data.budgets import parse_budgets
from splitmix.data.domain import Domain
from splitmix.data.task import make_task
from splitmix.engines.clients import TaskClients
from splitmix.flower.engine import FlowerEngine
from splitmix.flower.fleet import Fleet
from splitmix.flower.wire import Member, pack_answer, unpack_job
from splitmix.methods.bases import SplitMix
from splitmix.methods.nested import FedAvg
from splitmix.nets import NETS

NAME = "scale"
ROUNDS = 7  # the first two only warm up
EVEN = {"registered": 100_000, "cohort": 100, "bases": 8, "hidden": 64}  # what stays the same while one of them grows
GROWTH: Mapping[str, Sequence[int]] = {
    "registered": (1_000, 10_000, 100_000, 1_000_000),
    "cohort": (10, 100, 1_000, 10_000),
    "bases": (2, 8, 32, 128),
    "hidden": (8, 64, 512, 4096),  # of a perceptron: 1,000 to a million parameters and more
}
NODES = (4, 16, 64)
FEATURES = 4  # of a sample


@dataclass
class Echo:
    """An engine whose clients answer at once with what they were sent."""

    clients: TaskClients
    net: Net

    def profiles(self, round: int) -> Sequence[Profile]:
        return self.clients.profiles(round)

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Update]:
        sent: dict[int, Weights] = {}
        for job in jobs:
            assert isinstance(job, Train)
            count = len(covering(job.parts))
            if count not in sent:
                sent[count] = {name: value[:count].clone() for name, value in weights.items()}
            yield Update(job.round, job.client, job.parts, sent[count], 2, {"loss": 1.0})


def perceptron(hidden: int, width: Width) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))


def federation(registered: int, bases: int) -> TaskClients:
    """So many clients with two samples each; half of them can train one base, half all."""
    x, y = np.zeros((2 * registered, FEATURES), np.float32), np.arange(2 * registered) % 10
    domain = Domain("zeros", x, y, x[:registered], y[:registered])
    task = make_task("zeros", [domain], clients=registered, partition="iid", val_ratio=0.0)
    return TaskClients(task, parse_budgets(f"1/{bases} 1", clients=registered))


def point(registered: int, cohort: int, bases: int, hidden: int) -> dict[str, Any]:
    """Processor milliseconds of a round's server, seconds to set up, and peak memory, of one federation."""
    torch.set_num_threads(1)
    began = process_time()
    clients = federation(registered, bases)
    clients.profiles(0)[0]
    set_up = process_time() - began
    forget_peak()  # of dealing rows
    if hidden:
        method: Method = SplitMix(Width(1, bases), bases)
        net = Net(lambda width: perceptron(hidden, width))
    else:  # the Digit net of width 1/8
        method, net = FedAvg(Width(1, 8)), Net(NETS["digit"])
    weights = net.init(method.layout, 0)
    engine, spent = Echo(clients, net), []
    for round in range(ROUNDS):
        began = process_time()
        weights = federate(method, engine, net, weights, Federation(round + 1, cohort=cohort), start=round)
        spent.append(1e3 * (process_time() - began))
    parameters = sum(value[0].numel() for value in weights.values())
    return {"server_ms": median(spent[2:]), "set_up_s": set_up, "peak_mb": peak_mb(), "parameters": parameters}


def grown(part: str) -> Iterator[dict[str, Any]]:
    """A row for each size of what grows."""
    for size in GROWTH[part]:
        setting = {**EVEN, part: size}
        yield {"part": part, "size": size, **setting, **alone("point", *setting.values())}


def alone(what: str, *sizes: int) -> dict[str, Any]:
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, f"--{what}", *map(str, sizes)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def million() -> Iterator[dict[str, Any]]:
    """A thousand and a million clients of the Digit net of width 1/8, 100 a round."""
    for size in (1_000, 1_000_000):
        found = alone("point", size, 100, 1, 0)
        yield {"part": "digit", "size": size, "cohort": 100, **found}


@dataclass
class Nodes:
    """A grid of nodes that answer at once with what they were sent; it counts what it is asked for."""

    count: int
    requests: int = 0
    elsewhere: float = 0.0  # seconds of what happens on nodes
    replies: dict[str, Any] = field(default_factory=dict)

    def get_node_ids(self) -> list[int]:
        self.requests += 1
        return list(range(self.count))

    def push_messages(self, messages: Sequence[Any]) -> list[str]:
        from flwr.app import Message

        self.requests += 1
        began, (message,) = process_time(), messages
        key = f"message-{self.requests}"
        message.metadata.__dict__["_message_id"] = key
        job, weights, _ = unpack_job(message.content)
        assert isinstance(job, Train)
        update = Update(job.round, job.client, job.parts, weights, 2, {"loss": 1.0})
        self.replies[key] = Message(pack_answer(job, update), reply_to=message)
        self.elsewhere += process_time() - began
        return [key]

    def pull_messages(self, keys: Sequence[str]) -> list[Any]:
        self.requests += 1
        return [self.replies.pop(key) for key in keys if key in self.replies]


def on_flower() -> Iterator[dict[str, Any]]:
    """What the server of a federation on Flower costs for each client of a round, and how many requests it makes."""
    for size in NODES:
        yield {"part": "flower", "size": size, **alone("nodes", size)}


def nodes(count: int) -> dict[str, Any]:
    """Processor milliseconds of the server for each client and round: packing, checking, merging; links not counted."""
    torch.set_num_threads(1)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    method, net = SplitMix(), Net(NETS["digit"])
    grid: Any = Nodes(count)
    budgets = parse_budgets("1/8 1/4 1/2 1", clients=count)
    members = {client: Member(client, 2, 2, 2, 10, (28, 28, 3), "digits") for client in range(count)}
    fleet: Any = Fleet(grid, "", count, method.atom, members=members, nodes={client: client for client in members})
    engine = FlowerEngine(fleet, net, method.layout, budgets, "")
    weights, spent, asked = net.init(method.layout, 0), [], []
    for round in range(ROUNDS):
        began, before, requests = process_time(), grid.elsewhere, grid.requests
        weights = federate(method, engine, net, weights, Federation(round + 1, clip=2.0), start=round)
        spent.append(1e3 * (process_time() - began - (grid.elsewhere - before)) / count)
        asked.append((grid.requests - requests) / count)
    return {"ms_per_client": median(spent[2:]), "requests_per_client": median(asked[2:]), "peak_mb": peak_mb()}


def main() -> None:
    if sys.argv[1:2] == ["--point"]:
        print(json.dumps(point(*map(int, sys.argv[2:]))))
        return
    if sys.argv[1:2] == ["--nodes"]:
        print(json.dumps(nodes(int(sys.argv[2]))))
        return
    parts = {name: lambda name=name: grown(name) for name in GROWTH} | {"digit": million, "flower": on_flower}
    wanted = sys.argv[1:] or list(parts)
    kept = [row for row in read_rows(NAME) if row["part"] not in wanted] if sys.argv[1:] else []
    for name in wanted:
        rate = matmul_rate()
        for row in parts[name]():
            kept.append({**row, "matmul_gflops": rate / 1e9})
            print(told(kept[-1]), flush=True)
    draw_growth([row for row in kept if row["part"] in GROWTH], RESULTS / "scale.svg")
    print(publish(NAME, kept))


if __name__ == "__main__":
    main()
