"""What a federation on Flower costs over our simulator: seconds of a round, and bytes on the wire.

python benchmarks/flower.py        writes results/flower.json and results/flower.md (a few minutes on two quiet cores)

Four clients with budgets 1/8, 1/4, 1/2 and 1 train the digit net on the task `mini`, on the simulator, on Flower's
simulation (Ray), and on a federation of processes over loopback. Between each node and the SuperLink stands a proxy
that counts bytes. All runs must end with the same weights.
"""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import torch

from splitmix.core.files import write_atomically
from splitmix.engines.flower.local import SERVER, Node, Site, launch, launch_forked, program, start_link, stop
from splitmix.experiments.config import make_config
from splitmix.experiments.costs import account_of, budget_costs
from splitmix.experiments.setup import set_up
from splitmix.nets.cost import FLOAT

RESULTS = Path(__file__).parent.parent / "results"
BUDGETS = ("1/8", "1/4", "1/2", "1")
ROUNDS = 6
ASKING = (b"/pull-messages", b"/send-node-heartbeat")  # what a node asks again and again, whether there is work or not
SETTINGS = {
    "task": "mini",
    "clients": 4,
    "budgets": {"name": "each", "widths": list(BUDGETS)},
    "rounds": ROUNDS,
    "norm": "tracked",
    "order": "natural",
    "eval_every": ROUNDS,
    "checkpoint_every": ROUNDS,
}


@dataclass
class Proxy:
    """Passes bytes on between a node and the SuperLink, and counts them; those of asking for work also apart."""

    target: tuple[str, int]
    moved: Counter[str] = field(default_factory=Counter)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.listener.getsockname())

    def serve(self) -> None:
        while True:
            try:
                node, _ = self.listener.accept()
                link = socket.create_connection(self.target)
            except OSError:  # the end
                return
            request: list[bytes] = [b""]  # the first line of the last one on this connection
            for source, sink, way in ((node, link, "up"), (link, node, "down")):
                threading.Thread(target=self._pump, args=(source, sink, way, request), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str, request: list[bytes]) -> None:
        try:
            while data := source.recv(1 << 16):
                if way == "up" and data.startswith(b"POST "):
                    request[0] = data.split(b"\r\n", 1)[0]
                self.moved[way] += len(data)
                if any(path in request[0] for path in ASKING):
                    self.moved[f"{way}, asking"] += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()


def main() -> None:
    began = perf_counter()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # nothing is to be hidden by running side by side
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        found = {
            "simulator": train("simulator", "--workers", "1"),
            "ray": train("ray", "--engine", "ray", "--workers", "1"),
        }
        with federation() as (site, proxies):
            found["flower"], moved = watched_train(site, proxies)
        with federation(warm=False) as (site, _):
            slow, _ = watched_train(site, [], rounds=2)
    hashes = {name: run["weights_sha256"] for name, run in found.items()}
    assert len(set(hashes.values())) == 1, f"the engines differ: {hashes}"
    result = {
        "settings": SETTINGS,
        "machine": {"cores": 1, "cpu": platform.processor() or platform.machine()},
        "versions": {"torch": torch.__version__.split("+")[0], "python": platform.python_version()},
        "weights_sha256": next(iter(hashes.values())),
        "engines": {
            name: timing(run, found["simulator"])
            for name, run in {**found, "flower, a process per message (2 rounds)": slow}.items()
        },
        "traffic": traffic(moved),
        "seconds": round(perf_counter() - began),
    }
    write_atomically(RESULTS / "flower.json", (json.dumps(result, indent=1) + "\n").encode())
    write_atomically(RESULTS / "flower.md", page(result).encode())
    print(page(result))


def train(out: str, *more: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """A run by the command line; its rounds, its result, and how busy the machine was before."""
    given = {**SETTINGS, **dict.fromkeys(("rounds", "eval_every", "checkpoint_every"), rounds)}
    words = [word for key, value in given.items() if key != "task" for word in ("-o", f"{key}={inline(value)}")]
    command = [sys.executable, "-m", "splitmix", "train", "mini", *words, "--out", out, *more]
    began, load = perf_counter(), os.getloadavg()[0]
    subprocess.run(command, check=True, capture_output=True)
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((Path(out) / "result.json").read_text())
    found = {
        "rounds": [row["seconds"] for row in rows if row["kind"] == "round"],
        "whole": perf_counter() - began,
        "load": load,
    }
    return {**found, "weights_sha256": result["weights_sha256"]}


def watched_train(
    site: Site, proxies: list[Proxy], rounds: int = ROUNDS
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """A run on a federation, and what each node moved down and up in a round: counted from the end of the first one to
    the end of the last but one."""
    marks: dict[int, list[Counter[str]]] = {}
    done = threading.Event()
    file = Path("flower") / "metrics.jsonl"
    shutil.rmtree("flower", ignore_errors=True)

    def watch() -> None:
        while not done.is_set():
            done_by_now = file.read_bytes().count(b'"kind": "round"') if file.exists() else 0
            if done_by_now not in marks:
                marks[done_by_now] = [proxy.moved.copy() for proxy in proxies]
            sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = train("flower", "--engine", "flower", "--state", str(site.path), rounds=rounds)
    finally:
        done.set()
        watcher.join()
    first, last = marks.get(1, []), marks.get(ROUNDS - 1, [])
    between = [
        {key: (late[key] - early[key]) / (ROUNDS - 2) for key in late} for early, late in zip(first, last, strict=True)
    ]
    return found, between


@contextmanager
def federation(*, warm: bool = True) -> Iterator[tuple[Site, list[Proxy]]]:
    """A SuperLink and four nodes, each behind a proxy; they are warm, or Flower's own: a process for each message."""
    path = Path("site") if warm else Path("cold")
    try:
        site = start_link(path, tls=False)
        host, _, port = site.address.rpartition(":")
        proxies = [Proxy((host, int(port))) for _ in BUDGETS]
        for proxy in proxies:
            threading.Thread(target=proxy.serve, daemon=True).start()
        site = replace(site, nodes=tuple(Node(i, {"task": "mini", "budget": b}) for i, b in enumerate(BUDGETS)))
        site = launch_forked(site, [SERVER])
        for client, proxy in enumerate(proxies):
            if warm:
                behind = launch_forked(replace(site, address=proxy.address), [str(client)])
                site = replace(behind, address=site.address)
            else:
                about = f'partition-id={client} num-partitions=4 task="mini" budget="{BUDGETS[client]}"'
                words = ["--insecure", "--superlink", proxy.address, "--node-config", about]
                launch(site, f"node-{client}", [program("flower-supernode"), *words, "--port", str(9094 + client)])
        site.save()
        yield site, proxies
    finally:
        stop(path)
        for proxy in proxies:
            proxy.listener.close()


def timing(run: dict[str, Any], simulated: dict[str, Any]) -> dict[str, float]:
    """Seconds of a round (the median, without the first), and what each client of it costs over the simulator."""
    usual, plain = median(run["rounds"][1:]), median(simulated["rounds"][1:])
    return {
        "first_round": round(run["rounds"][0], 3),
        "round": round(usual, 3),
        "over_simulator_per_client": round((usual - plain) / len(BUDGETS), 3),
        "whole_run": round(run["whole"], 1),
        "load_before": round(run["load"], 1),
    }


def traffic(moved: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Bytes of each client in a round: as counted by the cost accounting, and as seen on the wire."""
    setup = set_up(make_config(SETTINGS))
    costs = budget_costs(account_of(setup), setup.budgets.at(0))
    rows: list[dict[str, Any]] = []
    for budget, seen in zip(setup.budgets.at(0), moved, strict=True):
        counted = {"down": FLOAT * costs[budget].down, "up": FLOAT * costs[budget].up}
        for way, bytes in counted.items():
            wire, asking = round(seen[way]), round(seen[f"{way}, asking"])
            rows.append({"budget": str(budget), "way": way, "counted": bytes, "wire": wire, "asking": asking})
    return [{**row, "over": round(row["wire"] / row["counted"] - 1, 5)} for row in rows]


def page(result: dict[str, Any]) -> str:
    lines = [
        "# What a federation on Flower costs",
        "",
        "Made by `python benchmarks/flower.py`: four clients with budgets 1/8, 1/4, 1/2 and 1 train the digit net on",
        f"`mini`, {ROUNDS} rounds, all processes on one core. All engines end with the same weights,",
        f"`{result['weights_sha256'][:16]}`.",
        "",
        "| engine | first round, s | a round, s | over the simulator, s per client and round | whole run, s |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in result["engines"].items():
        cells = (row["first_round"], row["round"], row["over_simulator_per_client"], row["whole_run"])
        lines.append(f"| {name} | {' | '.join(f'{cell:g}' for cell in cells)} |")
    lines += [
        "",
        f"At the beginning {max(row['load_before'] for row in result['engines'].values()):g} processes wanted the cores"
        " (load; the largest before any of the runs): above 1, all times are too long.",
        "",
        "A round is the median of all but the first. The simulator and `ray` (Flower's simulation) have one worker.",
        "`flower` is a SuperLink and four SuperNodes on this machine, over loopback; most of a round there is waiting,",
        "since a SuperNode asks for work every three seconds.",
        "",
        "## Bytes of one client in one training round",
        "",
        "| budget | way | counted for the parts | on the wire | more | of it asking for work |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in result["traffic"]:
        lines.append(
            f"| {row['budget']} | {row['way']} | {row['counted']:,} | {row['wire']:,} | {100 * row['over']:.2f} % "
            f"| {row['asking']:,} |"
        )
    lines += [
        "",
        "Counted: the numbers of the bases that a client trains, four bytes each. On the wire: all that passed between",
        "the node and the SuperLink, without encryption. A node asks for work every three seconds while it has none,",
        "and says every half minute that it is there: these bytes grow with the time of a round, not with the parts.",
        "",
    ]
    return "\n".join(lines)


def inline(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    main()
