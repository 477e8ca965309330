"""What a federation on Flower costs over our simulator: processor time, waiting, and bytes on the wire.

python benchmarks/flower.py        writes rows and results/flower.md (a few minutes on two quiet cores)

Four clients with budgets 1/8, 1/4, 1/2 and 1 train the digit net on the task `mini`, on the simulator, on Flower's
simulation (Ray), and on a federation of processes over loopback. Between each node and the SuperLink stands a proxy
that counts bytes. All runs must end with the same weights. Processor time is that of all processes of an engine
together, whoever started them: it means the same on a busy machine.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from evidence import publish

from splitmix.compare.costs import account_of, budget_costs
from splitmix.flower.site import SERVER, NodeProcess, Site, launch_forked, start_link, stop
from splitmix.nets.cost import FLOAT
from splitmix.runs.config import make_config
from splitmix.runs.setup import set_up

HERE = Path(__file__).resolve().parent
BUDGETS = ("1/8", "1/4", "1/2", "1")
ROUNDS = 4
MARK = "SPLITMIX_BENCHMARK"  # a variable that all processes of an engine have
TICK = os.sysconf("SC_CLK_TCK")
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
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        found = {
            "simulator": train("simulator", "--workers", "1"),
            "ray": train("ray", "--engine", "ray", "--workers", "1"),
        }
        with federation() as (site, proxies):
            found["flower"] = train("flower", "--engine", "flower", "--state", str(site.path), proxies=proxies)
        os.chdir(HERE)
    hashes = {name: run["weights_sha256"] for name, run in found.items()}
    assert len(set(hashes.values())) == 1, f"the engines differ: {hashes}"
    shared = {"settings": SETTINGS, "weights": hashes["simulator"], "cores": len(os.sched_getaffinity(0))}
    engines = [{"part": "engine", "engine": name, **timing(run, found["simulator"])} for name, run in found.items()]
    moved = [{"part": "traffic", **row} for row in traffic(found["flower"]["moved"])]
    print(publish("flower", [{**row, **shared} for row in (*engines, *moved)]))


def train(out: str, *more: str, proxies: Sequence[Proxy] = ()) -> dict[str, Any]:
    """A run by the command line: its rounds, its result, how busy the machine was, and what a round costs: processor
    seconds, and bytes of each node; both from the end of the first round to the end of the last but one."""
    words = [word for key, value in SETTINGS.items() if key != "task" for word in ("-o", f"{key}={inline(value)}")]
    command = [sys.executable, "-m", "splitmix", "train", "mini", *words, "--out", out, *more]
    os.environ[MARK] = out
    began, load = perf_counter(), os.getloadavg()[0]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    marks: dict[int, tuple[float, list[Counter[str]]]] = {}
    file = Path(out) / "metrics.jsonl"
    while process.poll() is None:
        rounds = file.read_bytes().count(b'"kind": "round"') if file.exists() else 0
        if rounds not in marks:
            marks[rounds] = processor_seconds(out), [proxy.moved.copy() for proxy in proxies]
        sleep(0.01)
    assert process.returncode == 0, f"the run on {out} failed"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    (spent, moved), (spent_later, moved_later) = marks[1], marks[ROUNDS - 1]
    return {
        "rounds": [row["seconds"] for row in rows if row["kind"] == "round"],
        "processor": (spent_later - spent) / (ROUNDS - 2),
        "moved": [
            {key: (late[key] - early[key]) / (ROUNDS - 2) for key in late}
            for early, late in zip(moved, moved_later, strict=True)
        ],
        "whole": perf_counter() - began,
        "load": load,
        "weights_sha256": json.loads((Path(out) / "result.json").read_text())["weights_sha256"],
    }


def processor_seconds(mark: str) -> float:
    """Of all processes that have this mark, and of those of their children that have ended."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICK


@contextmanager
def federation() -> Iterator[tuple[Site, list[Proxy]]]:
    """A SuperLink and four nodes, each behind a proxy."""
    os.environ[MARK] = "flower"
    path, proxies = Path("site"), list[Proxy]()
    try:
        site = start_link(path, tls=False)
        host, _, port = site.address.rpartition(":")
        proxies += [Proxy((host, int(port))) for _ in BUDGETS]
        site = replace(site, nodes=tuple(NodeProcess(i, {"task": "mini", "budget": b}) for i, b in enumerate(BUDGETS)))
        site = launch_forked(site, [SERVER])
        for client, proxy in enumerate(proxies):
            threading.Thread(target=proxy.serve, daemon=True).start()
            behind = launch_forked(replace(site, address=proxy.address), [str(client)])
            site = replace(behind, address=site.address)
        site.save()
        yield site, proxies
    finally:
        stop(path)
        for proxy in proxies:
            proxy.listener.close()


def timing(run: dict[str, Any], simulated: dict[str, Any]) -> dict[str, float]:
    """Seconds of a round: of processors, what each client costs over the simulator, and by the clock (the median,
    without the first)."""
    return {
        "processor": round(run["processor"], 3),
        "over_simulator_per_client": round((run["processor"] - simulated["processor"]) / len(BUDGETS), 3),
        "clock": round(median(run["rounds"][1:]), 3),
        "first_round": round(run["rounds"][0], 3),
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
            shares = {"framing": (wire - asking) / bytes - 1, "over": wire / bytes - 1}
            row = {"budget": str(budget), "way": way, "counted": bytes, "wire": wire, "asking": asking}
            rows.append(row | {name: round(share, 5) for name, share in shares.items()})
    return rows


def inline(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    main()
