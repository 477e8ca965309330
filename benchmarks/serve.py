"""Many clients at once: a crowd with random dials, what batches are worth, and a visitor while others attack.

python benchmarks/serve.py    writes rows and results/serve.md (about two minutes on two cores)

Every answer to the crowd is kept and compared with the one that the model gives offline, one picture at a time.
"""

import argparse
import asyncio
import json
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
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from evidence import publish
from siege import exchange, request

from splitmix.data.mini import mini_domains
from splitmix.runtime.bundle import packaged
from splitmix.runtime.model import Model

PICTURES = 40
Asked = tuple[int, str, float]  # picture, width, robust
Place = tuple[str, int]


@dataclass
class Seen:
    """What the clients saw."""

    times: list[float] = field(default_factory=list)
    answers: dict[Asked, list[dict[str, Any]]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--bundle", type=Path, default=packaged())
    given = parser.parse_args()
    images = np.concatenate([domain.x_test[: PICTURES // 4] for domain in mini_domains()])
    model = Model.load(given.bundle)
    with served(given.bundle, "--rate", "0") as (server, place):
        asyncio.run(crowd(Seen(), images, model, place, given.clients, 2.0))  # until everything has been used once
        seen, before = Seen(), memory(server.pid)
        seconds, memories = asyncio.run(watched(seen, images, model, place, given, server.pid))
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
        "batches": [batched(images, given.bundle, str(width)) for width in (model.widths[-1], model.widths[0])],
        "siege": besieged(images, given.bundle),
    }
    print(publish("serve", [result]))


@contextmanager
def served(bundle: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Place]]:
    """The packaged server, and where it is; it is told to stop at the end."""
    command = [sys.executable, "-m", "splitmix", "serve", str(bundle), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline())
            assert found is not None, "the server did not start"
            yield server, (found[1], int(found[2]))
        finally:
            server.terminate()
            server.wait(30)


# --- what batches are worth ---


def batched(images: np.ndarray, bundle: Path, width: str) -> dict[str, Any]:
    """Answers a second at one width: one client where each is answered alone, and 16 alone and in batches.

    The three take turns, five times, so that whatever else the machine does slows each alike.
    """
    pixels = [json.dumps(image.tolist()) for image in images]
    ways: dict[str, tuple[int, str]] = {"one": (1, "1"), "alone": (16, "1"), "together": (16, "32")}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    slow: list[float] = []
    with ExitStack() as stack:
        places = {
            batch: stack.enter_context(served(bundle, "--rate", "0", "--batch", batch))[1] for batch in ("1", "32")
        }
        for turn in range(6):
            for name, (clients, batch) in ways.items():
                seen = Seen()
                asyncio.run(same_dial(seen, clients, pixels, width, places[batch]))
                if turn:  # the first is until everything has been used once
                    rates[name].append(len(seen.times) / SLICE)
                    slow += seen.times if name == "together" else []
    found = {name: round(median(values), 1) for name, values in rates.items()}
    return {"width": width, **found, "times": round(found["together"] / found["one"], 2), **latencies(slow, 5 * SLICE)}


async def same_dial(seen: Seen, clients: int, pixels: list[str], width: str, place: Place) -> None:
    until = perf_counter() + SLICE
    await asyncio.gather(*(client(seed, seen, pixels, [width], place, until, dials=1) for seed in range(clients)))


SLICE = 2.0  # seconds


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
    seen: Seen, images: np.ndarray, model: Model, place: Place, given: argparse.Namespace, pid: int
) -> tuple[float, list[float]]:
    """The crowd, and the server's memory once a second while it is there."""
    memories: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(1)
            memories.append(memory(pid))

    watching, began = asyncio.create_task(watch()), perf_counter()
    await crowd(seen, images, model, place, given.clients, given.seconds)
    seconds = perf_counter() - began
    watching.cancel()
    return seconds, [*memories, memory(pid)]


async def crowd(seen: Seen, images: np.ndarray, model: Model, place: Place, clients: int, seconds: float) -> None:
    until = perf_counter() + seconds
    pixels = [json.dumps(image.tolist()) for image in images]
    widths = [str(width) for width in model.widths]
    await asyncio.gather(*(client(seed, seen, pixels, widths, place, until) for seed in range(clients)))


async def client(
    seed: int, seen: Seen, pixels: list[str], widths: list[str], place: Place, until: float, *, dials: int = 101
) -> None:
    """One connection that asks, waits for the answer, and asks again."""
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection(*place)
    while perf_counter() < until:
        asked = (rng.randrange(len(pixels)), rng.choice(widths), rng.randrange(dials) / 100)
        body = f'{{"pixels": {pixels[asked[0]]}, "width": "{asked[1]}", "robust": {asked[2]}}}'.encode()
        head = "POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        began = perf_counter()
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", lines)
            said = await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.errors[type(error).__name__] += 1
            return
        seen.times.append(perf_counter() - began)
        status = lines.split()[1]
        if status == "200":
            seen.answers.setdefault(asked, []).append(json.loads(said))
        else:
            seen.errors[status] += 1
    writer.close()


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
        for answer in answers:
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
