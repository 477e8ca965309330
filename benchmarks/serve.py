"""Many clients at once: a crowd with random dials, what batches are worth, and a visitor while others attack.

python benchmarks/serve.py    writes rows and results/serve.md (about two minutes on two cores)

Every answer is kept and compared with the one that the model gives offline, one picture at a time. Clients share the
machine with the server: all of them are one process that writes prepared bytes and reads answers when it is over.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, cast

import numpy as np
import torch
from evidence import publish
from siege import exchange, request

from splitmix.data.mini import mini_domains
from splitmix.runtime.bundle import packaged
from splitmix.runtime.model import Model

PICTURES = 40
ROOT = Path(__file__).resolve().parent.parent
Asked = tuple[int, str, float]  # picture, width, robust
Place = tuple[str, int]


@dataclass
class Seen:
    """What the clients saw."""

    times: list[float] = field(default_factory=list)
    answers: dict[Asked, list[bytes]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--bundle", type=Path, default=packaged())
    given = parser.parse_args()
    images = np.concatenate([domain.x_test[: PICTURES // 4] for domain in mini_domains()])
    model = Model.load(given.bundle)
    widths = [str(width) for width in model.widths]
    with served(given.bundle, "--rate", "0") as (server, place):
        asyncio.run(crowd(Seen(), images, widths, place, given.clients, 2.0))  # until everything has been used once
        seen, before = Seen(), memory(server.pid)
        seconds, memories = asyncio.run(watched(seen, images, widths, place, given, server.pid))
    result = {
        "clients": given.clients,
        "seconds": round(seconds, 1),
        "requests": len(seen.times),
        "errors": dict(seen.errors),
        **latencies(seen.times, seconds),
        "memory_mb_before": before,
        "memory_mb_after": memories[-1],
        "memory_mb_each_second": memories,
        **compared(seen, images, model),
        "stopped_with": server.returncode,
        "batches": [batched(images, given.bundle, width) for width in (widths[-1], widths[0])],
        "siege": besieged(images, given.bundle),
    }
    print(publish("serve", [result]))


@contextmanager
def served(bundle: Path, *options: str, sources: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], Place]]:
    """The server, of other sources if there are any, and where it is; it is told to stop at the end."""
    command = [sys.executable, "-m", "splitmix", "serve", str(bundle), "--port", "0", *options]
    env = {**os.environ, "PYTHONPATH": str(sources)} if sources else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline())
            assert found is not None, "the server did not start"
            yield server, (found[1], int(found[2]))
        finally:
            server.terminate()
            server.wait(30)


# --- what batches are worth ---

OLD = "040fbfc"  # the last commit whose server answered every question alone
SLICE, TURNS = 2.0, 5  # seconds, and how many of them


def batched(images: np.ndarray, bundle: Path, width: str) -> dict[str, Any]:
    """Answers a second at one width: one client of the old server, and one and 16 of this one, alone and in batches.

    They take turns, so that whatever else the machine does slows each alike. Processor time is the server's own.
    """
    ways = {"old": (1, "old"), "one": (1, "32"), "alone": (16, "1"), "together": (16, "32")}
    model, every = Model.load(bundle), {name: Seen() for name in ways}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    spent = dict.fromkeys(ways, 0.0)
    with ExitStack() as stack:
        before = stack.enter_context(TemporaryDirectory())
        sources = subprocess.run(["git", "archive", OLD, "src"], capture_output=True, check=True, cwd=ROOT).stdout
        subprocess.run(["tar", "-x", "-C", before], input=sources, check=True)
        src = Path(before) / "src"
        same = src / "splitmix" / "models" / bundle.name if bundle == packaged() else bundle  # in a form that it reads
        servers = {
            "old": stack.enter_context(served(same, "--rate", "0", sources=src)),
            **{batch: stack.enter_context(served(bundle, "--rate", "0", "--batch", batch)) for batch in ("1", "32")},
        }
        for turn in range(TURNS + 1):
            for name, (clients, which) in ways.items():
                server, place = servers[which]
                seen = every[name] if turn else Seen()  # the first is until everything has been used once
                count, began = len(seen.times), processor_seconds(server.pid)
                asyncio.run(crowd(seen, images, [width], place, clients, SLICE, dials=1))
                if turn:
                    rates[name].append((len(seen.times) - count) / SLICE)
                    spent[name] += processor_seconds(server.pid) - began
    found = {name: round(median(values), 1) for name, values in rates.items()}
    return {
        "width": width,
        **found,
        "times": round(found["together"] / found["old"], 2),
        "cpu_ms": {name: round(1e3 * spent[name] / len(every[name].times), 2) for name in ways},
        **latencies(every["together"].times, TURNS * SLICE),
        **compared(every["together"], images, model),
    }


def processor_seconds(pid: int) -> float:
    """What a process has taken of the processor so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- a visitor while others attack ---


def besieged(images: np.ndarray, bundle: Path, seconds: float = 15.0) -> dict[str, Any]:
    """How long a visitor waits, and the end takes, while another address does all at once that a server must stand."""
    question = request("/api/predict", json.dumps({"pixels": images[0].tolist()}).encode())
    with served(bundle) as (server, place):
        before = visits(place, question, seconds / 3)
        enemy = subprocess.Popen([sys.executable, str(Path(__file__).with_name("siege.py")), *map(str, place)])
        try:
            sleep(2)
            found = visits(place, question, seconds)
            began = perf_counter()
            server.terminate()
            server.wait(60)
            ended = perf_counter() - began
        finally:
            enemy.terminate()
            enemy.wait(30)
    return {**found, "before": before, "stopped_ms": round(1e3 * ended)}


def visits(place: Place, question: bytes, seconds: float) -> dict[str, Any]:
    """How long somebody waits who looks in and asks about a picture, ten times a second at most."""
    times: dict[str, list[float]] = {"health": [], "predict": []}
    said: Counter[str] = Counter()
    until = perf_counter() + seconds
    while perf_counter() < until:
        for name, asked in (("health", request("/health")), ("predict", question)):
            began = perf_counter()
            said[exchange(place, asked)[9:12].decode()] += 1
            times[name].append(perf_counter() - began)
        sleep(0.1)
    middle = {f"{name}_p50_ms": round(1e3 * median(each)) for name, each in times.items()}
    slowest = {f"{name}_slowest_ms": round(1e3 * max(each)) for name, each in times.items()}
    return {"visits": len(times["health"]), "said": dict(said), **middle, **slowest}


# --- the crowd ---


async def watched(
    seen: Seen, images: np.ndarray, widths: list[str], place: Place, given: argparse.Namespace, pid: int
) -> tuple[float, list[float]]:
    """The crowd, and the server's memory once a second while it is there."""
    memories: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(1)
            memories.append(memory(pid))

    watching, began = asyncio.create_task(watch()), perf_counter()
    await crowd(seen, images, widths, place, given.clients, given.seconds)
    seconds = perf_counter() - began
    watching.cancel()
    return seconds, [*memories, memory(pid)]


async def crowd(
    seen: Seen, images: np.ndarray, widths: list[str], place: Place, clients: int, seconds: float, *, dials: int = 101
) -> None:
    pixels = [json.dumps(image.tolist()).encode() for image in images]
    loop, until = asyncio.get_running_loop(), perf_counter() + seconds
    askers = [Asker(random.Random(seed), seen, pixels, widths, dials, until) for seed in range(clients)]
    waiting = iter(askers)
    for _ in askers:
        await loop.create_connection(waiting.__next__, *place)
    await asyncio.gather(*(asker.done for asker in askers))


class Asker(asyncio.Protocol):
    """One connection that asks, waits for the answer, and asks again."""

    def __init__(
        self, rng: random.Random, seen: Seen, pixels: list[bytes], widths: list[str], dials: int, until: float
    ) -> None:
        self.rng, self.seen, self.pixels, self.widths, self.dials, self.until = rng, seen, pixels, widths, dials, until
        self.done, self.heard = asyncio.get_running_loop().create_future(), b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.ask()

    def ask(self) -> None:
        rng = self.rng
        self.asked = rng.randrange(len(self.pixels)), rng.choice(self.widths), rng.randrange(self.dials) / 100
        picture, width, robust = self.asked
        settings = b', "width": "%s", "robust": %s}' % (width.encode(), str(robust).encode())
        body = b'{"pixels": ' + self.pixels[picture] + settings
        self.began = perf_counter()
        self.transport.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        head, _, body = self.heard.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if length is None or len(body) < int(length[1]):
            return
        self.seen.times.append(perf_counter() - self.began)
        if head.split()[1] == b"200":
            self.seen.answers.setdefault(self.asked, []).append(body)
        else:
            self.seen.errors[head.split()[1].decode()] += 1
        self.heard = b""
        if perf_counter() < self.until:
            self.ask()
        else:
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.seen.errors["hung up"] += 1
            self.done.set_result(None)


HEAD = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def memory(pid: int) -> float:
    """Resident memory of a process, in MB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


def latencies(times: list[float], seconds: float) -> dict[str, float]:
    ordered = sorted(times)
    at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in SHARES.items()}
    return {
        "requests_per_second": round(len(times) / seconds, 1),
        **{f"{name}_ms": round(1e3 * value, 1) for name, value in at.items()},
    }


SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def compared(seen: Seen, images: np.ndarray, model: Model) -> dict[str, Any]:
    """How far the answers are from those of the model offline, picture by picture."""
    torch.set_num_threads(1)
    worst, same, wrong, total = 0.0, 0, 0, 0
    for (picture, width, robust), answers in seen.answers.items():
        shares = model(images[picture : picture + 1], width, robust).softmax(-1)[0]
        label = model.classes[int(shares.argmax())]
        for answer in map(json.loads, answers):
            got = torch.tensor(answer["probabilities"])
            worst = max(worst, float((got - shares).abs().max()))
            same += int(torch.equal(got, shares))
            wrong += int(answer["label"] != label or answer["width"] != width or answer["robust"] != robust)
            total += 1
    return {
        "answers": total,
        "dials": len({(width, robust) for _, width, robust in seen.answers}),
        "other_answers": wrong,
        "same_to_the_bit": same,
        "largest_difference": f"{worst:.1e}",  # in words: rows are rounded to fewer digits
    }


if __name__ == "__main__":
    main()
