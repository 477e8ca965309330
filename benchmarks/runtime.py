"""A model at run time: what turning the dial costs, what running bases side by side gains, and each width's price.

python benchmarks/runtime.py    writes results/runtime.json and results/runtime.md (about a minute on one core)

All on one thread, in turns. Times are the processor's, so that other programs on the machine do not count; weights are
random, which changes no time.
"""

import json
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
import torch

from splitmix.core.files import write_atomically
from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.runtime.model import Model
from splitmix.runtime.probe import memory_mb

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from helpers.bundles import random_bundle  # noqa: E402

ROBUST = 0.3
TURNS = 25
TABLE = ("digit", "preresnet18", "alexnet")
opened: list[str] = []  # files that were opened while the dial was turned
listening = False


def turn(model: Model, width: Width, robust: float) -> None:
    model.set(width=width, robust=robust)
    model.mix()


def turning(path: Path) -> dict[str, Any]:
    """The worst first use of each dial: `set`, and whatever must be made before the net can run at it."""
    global listening
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if listening and event == "open" else None)
    dials = [(width, robust) for width in Model.load(path).widths for robust in (0.0, 0.1, 0.3, 0.7, 1.0)]
    firsts: list[float] = []
    again: list[float] = []
    for _ in range(5):
        model = Model.load(path)
        model(np.zeros((1, *model.image), np.uint8), model.widths[0])  # the library warms up
        listening = True
        for times in (firsts, again):
            for width, robust in dials:
                times.append(timed(partial(turn, model, width, robust)))
        listening = False
    return {
        "first_use_ms": {"median": median(firsts), "worst": max(firsts)},
        "used_before_ms": {"median": median(again), "worst": max(again)},
        "files_opened": len(opened),
    }


def stacking(path: Path) -> dict[str, Any]:
    """Width 1 of the Digit net for one image: eight bases side by side, one after the other, and the single net."""
    model = Model.load(path)
    x = torch.rand(1, 28, 28, 3).permute(0, 3, 1, 2)
    held = model._held
    mix, folded = held.mix(0, 8), [held.mix(base, base + 1) for base in range(8)]
    plain = [NETS["digit"](Width(1, 8), dual=True).eval() for _ in range(8)]
    wide = NETS["digit"](Width(1), dual=True).eval()
    ways: dict[str, Callable[[], object]] = {
        "side by side": lambda: mix(x, ROBUST).mean(0),
        "eight forwards": lambda: torch.stack([net(x, ROBUST) for net in plain]).mean(0),
        "eight forwards, norms folded": lambda: torch.stack([base(x, ROBUST)[0] for base in folded]).mean(0),
        "one net of width 1": lambda: wide(x, ROBUST),
    }
    with torch.no_grad():
        found = in_turns(ways, 4 * TURNS)
    return {"ms": found, "times_as_fast": {name: ms / found["side by side"] for name, ms in found.items()}}


def widths(net: str, path: Path) -> list[dict[str, Any]]:
    """Each width of a bundle: milliseconds of one image, megabytes on disk and in memory."""
    model = Model.load(path)
    image = np.random.default_rng(0).integers(0, 256, (1, *model.image), dtype=np.uint8)
    times = in_turns({str(w): partial(model, image, w, ROBUST) for w in model.widths}, TURNS if net == "digit" else 10)
    rows = []
    for width in model.widths:
        priced = model.manifest.cost(width)
        rows.append(
            {
                "net": net,
                "width": str(width),
                "bases": priced.bases,
                "macs": priced.macs,
                "ms": times[str(width)],
                "mb_disk": priced.bytes / 1e6,
                "mb_memory": memory_mb(model, width),
            }
        )
    return rows


def in_turns(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The median time of each, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 2):
        for name, way in ways.items():
            spent = timed(way)
            if turn >= 2:  # the first only warm up
                times[name].append(spent)
    return {name: median(spent) for name, spent in times.items()}


def timed(call: Callable[[], object]) -> float:
    began = thread_time()
    call()
    return 1e3 * (thread_time() - began)


def page(results: dict[str, Any]) -> str:
    """The same numbers for people."""
    dial, stack = results["dial"], results["stacking"]
    lines = [
        "# A model at run time\n",
        "Made by `python benchmarks/runtime.py`: PyTorch, one thread, one image, processor time (the median of many",
        f"runs, all ways in turns), the dial at {ROBUST}.\n",
        "## Turning the dial\n",
        f"40 dials (8 widths, 5 strengths), each for the first time: {dial['first_use_ms']['median']:.3f} ms in the "
        f"middle, {dial['first_use_ms']['worst']:.3f} ms at worst;",
        f"a dial used before: {dial['used_before_ms']['median']:.3f} ms, {dial['used_before_ms']['worst']:.3f} ms at "
        f"worst. Files opened meanwhile: {dial['files_opened']}.\n",
        "## Eight bases of the Digit net at width 1\n",
        "| way | ms | side by side is so many times as fast |",
        "|---|---:|---:|",
    ]
    lines += [f"| {name} | {ms:.2f} | {stack['times_as_fast'][name]:.2f} |" for name, ms in stack["ms"].items()]
    lines += ["", "## Every width\n", "MB in memory: weights, and the most that lives at once while one image runs."]
    for net in dict.fromkeys(row["net"] for row in results["widths"]):
        lines += ["", f"### {net}\n", "| width | bases | MACs | ms | MB on disk | MB in memory |"]
        lines.append("|---:|---:|---:|---:|---:|---:|")
        lines += [
            f"| {r['width']} | {r['bases']} | {r['macs'] / 1e6:.2f}M | {r['ms']:.2f} | {r['mb_disk']:.2f} | "
            f"{r['mb_memory']:.2f} |"
            for r in results["widths"]
            if r["net"] == net
        ]
    lines += ["", f"{results['machine']['processor']}; torch {results['machine']['torch']}."]
    return "\n".join(lines) + "\n"


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = {net: random_bundle(Path(folder) / net, net=net).path for net in TABLE}
        results = {
            "machine": {"processor": processor(), "torch": torch.__version__},
            "dial": turning(paths["digit"]),
            "stacking": stacking(paths["digit"]),
            "widths": [row for net in TABLE for row in widths(net, paths[net])],
        }
    write_atomically(ROOT / "results" / "runtime.json", (json.dumps(results, indent=1) + "\n").encode())
    write_atomically(ROOT / "results" / "runtime.md", page(results).encode())
    print(page(results))


if __name__ == "__main__":
    main()
