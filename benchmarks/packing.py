"""Clients side by side in one net against one after another on a device: the same numbers, and how much faster.

python benchmarks/packing.py [--device cuda] [--net preresnet18] [--clients 32] [--samples 256] [--pack 32]
"""

import argparse
from dataclasses import replace
from functools import partial

import torch
from speed import SETTINGS
from timing import in_turns, ratio_text, timed

from splitmix.core.types import Part, Plan, Train, Update
from splitmix.core.width import Width
from splitmix.engines.packs import MOST
from splitmix.engines.simulator import Simulator
from splitmix.objectives.losses import Plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--net", default="digit", choices=SETTINGS)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--pack", type=int, default=MOST, help="bases side by side")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    setting = replace(SETTINGS[given.net], clients=given.clients, samples=given.samples)
    method, net, clients = setting.parts()
    clients = replace(clients, device=given.device)
    weights = net.init(method.layout, 0)
    plan = Plan(lr=0.01, batch=setting.batch)
    jobs = [Train(0, client, (Part(client % 8, Width(1, 8)),), plan, 0) for client in range(given.clients)]
    engines = [Simulator(net, method.layout, clients, Plain(), device=given.device, pack=n) for n in (1, given.pack)]

    def answers(engine: Simulator) -> list[Update]:
        return list(engine.run(weights, jobs))

    one, many = (answers(engine) for engine in engines)  # warms up too
    far = max(
        float((a.weights[n] - b.weights[n]).abs().max()) for a, b in zip(one, many, strict=True) for n in a.weights
    )
    ways = dict(zip(("apart", "together"), (partial(timed, partial(answers, e)) for e in engines), strict=True))
    turns = in_turns(ways, "together", least=given.turns)
    row = turns.row("apart", "together")
    print(f"{given.device}: {given.clients} clients of a base of {given.net}, {given.samples} images each")
    print(f"farthest numbers of two updates: {far:.1e}")
    for what in ("clock", "processor"):
        print(f"one after another over side by side, {what}: {ratio_text(row[what]['ratio'])}")
    print(row["verdict"])


if __name__ == "__main__":
    main()
