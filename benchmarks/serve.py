"""Many clients at once: 64 connections on this machine, each with random pictures and dials, for 20 seconds.

python benchmarks/serve.py    writes rows and results/serve.md (about a minute on two cores)

Every answer is kept and compared with the one that the model gives offline, one picture at a time.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from evidence import publish

from splitmix.data.mini import mini_domains
from splitmix.runtime.bundle import packaged
from splitmix.runtime.model import Model

PICTURES = 40
Asked = tuple[int, str, float]  # picture, width, robust


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
    command = [sys.executable, "-m", "splitmix", "serve", str(given.bundle), "--port", "0", "--rate", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline())
            assert found is not None, "the server did not start"
            place = (found[1], int(found[2]))
            asyncio.run(crowd(Seen(), images, model, place, given.clients, 2.0))  # until everything has been used once
            seen, before = Seen(), memory(server.pid)
            seconds, memories = asyncio.run(watched(seen, images, model, place, given, server.pid))
        finally:
            server.terminate()
            server.wait(30)
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
    }
    print(publish("serve", [result]))


async def watched(
    seen: Seen, images: np.ndarray, model: Model, place: tuple[str, int], given: argparse.Namespace, pid: int
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


async def crowd(
    seen: Seen, images: np.ndarray, model: Model, place: tuple[str, int], clients: int, seconds: float
) -> None:
    until = perf_counter() + seconds
    pixels = [json.dumps(image.tolist()) for image in images]
    widths = [str(width) for width in model.widths]
    await asyncio.gather(*(client(seed, seen, pixels, widths, place, until) for seed in range(clients)))


async def client(
    seed: int, seen: Seen, pixels: list[str], widths: list[str], place: tuple[str, int], until: float
) -> None:
    """One connection that asks, waits for the answer, and asks again."""
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection(*place)
    while perf_counter() < until:
        asked = (rng.randrange(len(pixels)), rng.choice(widths), rng.randrange(101) / 100)
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
        "largest_difference": worst,
    }


if __name__ == "__main__":
    main()
