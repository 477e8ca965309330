"""Speed and memory, as ratios against a plain reference in the same run: machines differ and are noisy.

python benchmarks/speed.py            all of it (about five minutes on two cores); writes results/speed.md
python benchmarks/speed.py digit      only these, of: digit preresnet18 plain merge score memory
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from evidence import in_turns as seconds_in_turns
from evidence import publish, read_rows
from reference import plain_round
from stock_nets import digit_net, mobilenet, perceptron, preresnet18
from timing import Turns, forget_peak, in_turns, middle, peak_mb, timed

from splitmix.core.batches import as_images
from splitmix.core.net import Build, Net
from splitmix.core.parts import merge
from splitmix.core.reproducible import one_thread
from splitmix.core.rounds import Federation, federate
from splitmix.core.score import ask
from splitmix.core.types import Layout, Part, Plan, Question, Update, Weights
from splitmix.core.width import Width
from splitmix.data.budgets import parse_budgets
from splitmix.data.domain import Domain
from splitmix.data.task import make_task
from splitmix.engines.clients import TaskClients
from splitmix.engines.simulator import Simulator, default_workers
from splitmix.methods.bases import SplitMix
from splitmix.nets import NETS
from splitmix.nets.swap import side_by_side
from splitmix.objectives.losses import Plain

REPEATS, MANY = 5, 20  # turns, at least; at most, where they are short


@dataclass(frozen=True)
class Setting:
    """A federation to be timed."""

    net: str
    side: int
    clients: int
    samples: int
    batch: int
    plain: Callable[[float], torch.nn.Module]
    training_flops: float  # of one sample through one base: forward and backward

    def parts(self) -> tuple[SplitMix, Net, TaskClients]:
        rng = np.random.default_rng(0)
        rows = self.clients * self.samples
        images = rng.integers(0, 256, (rows, self.side, self.side, 3), dtype=np.uint8)
        labels = np.arange(rows) % 10
        domain = Domain("random", images, labels, images[: self.clients * 2], labels[: self.clients * 2])
        task = make_task("random", [domain], clients=self.clients, partition="iid", val_ratio=0.0, net=self.net)
        clients = TaskClients(task, parse_budgets("1/8 1/4 1/2 1", clients=self.clients))
        return SplitMix(), Net(NETS[self.net]), clients


SETTINGS = {
    "digit": Setting("digit", 28, 50, 111, 32, digit_net, 6 * 1_158_528),
    "preresnet18": Setting("preresnet18", 32, 8, 450, 128, preresnet18, 6 * 8_872_576),
}


def whole_round(name: str) -> dict[str, Any]:
    """Data, download, training and merge of a round, ours against the plain reference, taken in turns."""
    setting = SETTINGS[name]
    method, net, clients = setting.parts()
    weights = net.init(method.layout, 0)
    bases = [setting.plain(1 / 8) for _ in range(8)]
    task = clients.task
    arrays = [(task.train.images[s.train], task.train.labels[s.train]) for s in task.shards]
    plan = Plan(batch=setting.batch)
    rounds = {"ours": count(), "plain": count()}

    def ours() -> None:
        round = next(rounds["ours"])
        federate(method, engine, net, weights, Federation(round + 1, plan), start=round)

    def plain() -> None:
        assigned = method.assign(next(rounds["plain"]), clients.profiles(0))
        numbers = [[part.base for part in assigned[client]] for client in range(setting.clients)]
        plain_round(bases, arrays, numbers, batch=setting.batch, lr=0.1)

    with Simulator(net, method.layout, clients, Plain(), default_workers()) as engine:
        turns = warm_turns({"ours": ours, "plain": plain}, "ours")
    base_trainings = sum(len(parts) for parts in method.assign(0, clients.profiles(0)).values())
    flops = base_trainings * setting.samples * setting.training_flops
    seconds = {way: median(turns.seconds(way, "clock")) for way in turns.spent}
    row, peak = turns.row("plain", "ours"), max(turns.rates)
    return {
        "seconds": seconds["ours"],
        "plain_seconds": seconds["plain"],
        "ratio": row["clock"]["ratio"]["middle"],
        **{key: row[key] for key in ("clock", "processor", "verdict")},
        "share_of_matmul_peak": flops / seconds["ours"] / peak,
        "plain_share_of_matmul_peak": flops / seconds["plain"] / peak,
    }


PLAIN: dict[str, tuple[Build, tuple[int, ...], int]] = {  # and steps in a turn: processor time is told in hundredths
    "ResNet": (preresnet18, (32, 32, 3), 10),
    "MobileNet": (mobilenet, (32, 32, 3), 10),
    "perceptron": (perceptron, (64,), 500),
}


def plain_nets() -> dict[str, Any]:
    """Training steps of eight bases of plain nets on one thread, one after another over side by side, in turns."""
    atom, ratios = Width(1, 8), {}
    for name, (build, shape, many) in PLAIN.items():
        looped, stacked = Net(build), Net(side_by_side(build))
        weights = {entry: value.requires_grad_() for entry, value in looped.init(Layout(8, atom), 0).items()}
        x = as_images(torch.rand(32, *shape))
        steps = {
            way: partial(_steps, many, net, atom, weights, x) for way, net in (("loop", looped), ("stack", stacked))
        }
        with one_thread():
            ratios[name] = warm_turns(steps, "stack", MANY).row("loop", "stack")
    return {"looped_over_stacked": ratios}


def _steps(many: int, net: Net, width: Width, weights: Weights, x: torch.Tensor) -> None:
    for _ in range(many):
        net.run(width, weights, x, training=True).square().sum().backward()


def merging() -> dict[str, Any]:
    """Time of merging one client's update (the mean over budgets of a quarter each), one update in memory."""
    method, net = SplitMix(), Net(NETS["digit"])
    weights = net.init(method.layout, 0)
    updates = []
    for client in range(40):
        parts = tuple(Part(base, method.atom) for base in range((1, 2, 4, 8)[client % 4]))
        updates.append(Update(0, client, parts, {n: v[: len(parts)] + 0.01 for n, v in weights.items()}, 111))
    ways = {"merge": lambda: merge(net, method.layout, weights, iter(updates))}
    spent = seconds_in_turns(ways, perf_counter, MANY)["merge"]
    return {"milliseconds_per_client": middle([1e3 * each / len(updates) for each in spent])._asdict()}


def scoring() -> dict[str, Any]:
    """All eight widths in one go against the widest alone: both are one pass over the bases."""
    method, net, clients = SETTINGS["digit"].parts()
    weights = net.init(method.layout, 0)
    numbers = tuple(range(len(clients.task.shards)))
    question = Question("train")
    with Simulator(net, method.layout, clients, Plain(), default_workers()) as engine:
        every = [method.compose(width) for width in method.widths]
        ways = {"all": every, "widest": every[-1:]}
        asked = {name: partial(ask, engine, weights, mixes, numbers, question) for name, mixes in ways.items()}
        return {"all_widths_over_widest_alone": warm_turns(asked, "widest", MANY).row("all", "widest")}


def warm_turns(ways: Mapping[str, Callable[[], object]], to: str, most: int = 12) -> Turns:
    """All ways in turns until sure, each called once before."""
    for call in ways.values():
        call()
    return in_turns({name: partial(timed, call) for name, call in ways.items()}, to, least=REPEATS, most=most)


def memory() -> dict[str, Any]:
    """Peak memory with 10,000 registered clients over that with 1,000: the same images, 100 clients a round."""
    peaks = {}
    for clients in (1_000, 10_000):
        command = [sys.executable, __file__, "--peak", str(clients)]
        peaks[clients] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ratio = {side: peaks[10_000][side] / peaks[1_000][side] for side in ("server", "worker")}
    return {"peak_mb_1000": peaks[1_000], "peak_mb_10000": peaks[10_000], "ratio": ratio}


def _peak(clients: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60_000, 28, 28, 3), dtype=np.uint8)
    domain = Domain("random", images, np.arange(60_000) % 10, images[:clients], np.arange(clients) % 10)
    task = make_task("random", [domain], clients=clients, partition="iid", val_ratio=0.0)
    del images, domain
    method, net = SplitMix(), Net(NETS["digit"])
    holders = TaskClients(task, parse_budgets("1/8 1/4 1/2 1", clients=clients))
    forget_peak()  # of making the data
    with Simulator(net, method.layout, holders, Plain(), default_workers()) as engine:
        federate(method, engine, net, net.init(method.layout, 0), Federation(3, cohort=100))
    server = peak_mb()
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"server": server, "worker": worker}


BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "digit": lambda: whole_round("digit"),
    "preresnet18": lambda: whole_round("preresnet18"),
    "plain": plain_nets,
    "merge": merging,
    "score": scoring,
    "memory": memory,
}


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        print(json.dumps(_peak(int(sys.argv[2]))))
        return
    kept = {row["part"]: row for row in read_rows("speed")} if sys.argv[1:] else {}
    for name in sys.argv[1:] or BENCHMARKS:
        kept[name] = {
            "part": name,
            "threads": torch.get_num_threads(),
            "workers": default_workers(),
            **BENCHMARKS[name](),
        }
        print(f"{name}: {json.dumps(kept[name], default=str)}", flush=True)
    print(publish("speed", kept.values()))


if __name__ == "__main__":
    main()
