"""A model at run time: what turning the dial costs, each width's price on ONNX Runtime and on PyTorch, and memory.

python benchmarks/runtime.py    writes rows and results/runtime.md (about two minutes on one core)

All on one thread, in turns. Times are the processor's, so that other programs on the machine do not count; weights are
random, which changes no time. A width runs some images in a row in each turn, as it does on a device, where no other
backend has the caches in between; what an image takes right after the other backend is measured as well.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
import torch
from evidence import in_turns, publish

from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.runtime.held import BACKENDS
from splitmix.runtime.model import Model
from splitmix.runtime.onnx_bases import OnnxBases
from splitmix.runtime.probe import memory_mb

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from helpers.bundles import random_bundle  # noqa: E402

ROBUST = 0.3
TURNS = 25
ROW = 40  # images of one backend, before the other has its turn: the first five or so still find its caches
TABLE = ("digit", "preresnet18", "alexnet")
opened: list[str] = []  # files that were opened while the dial was turned
listening = False


MEMORY = """
import json, sys
sys.modules["torch"] = None
import numpy as np
from splitmix.runtime.held import BACKENDS
from splitmix.runtime.model import Model
from splitmix.runtime.onnx_bases import OnnxBases
def used():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
def loaded(path):
    model = Model.load(path)
    model.predict(np.zeros((1, *model.image), np.uint8), robust=0.3)
    return model
model = loaded(sys.argv[1])
print(json.dumps({"used": used(), "told": model.bytes()}))
"""


def turn(model: Model, width: Width, robust: float) -> None:
    model.set(width=width, robust=robust)
    held, _, strength = model._chosen(None, None)
    if isinstance(held.bases, OnnxBases):
        held.bases.folded.at(strength)
    else:
        model.mix()


def turning(path: Path, backend: str) -> list[dict[str, Any]]:
    """The worst first use of each dial: `set`, and whatever must be made before the net can run at it."""
    global listening
    opened.clear()
    dials = [(width, robust) for width in Model.load(path).widths for robust in (0.0, 0.1, 0.3, 0.7, 1.0)]
    firsts: list[float] = []
    again: list[float] = []
    for _ in range(5):
        model = Model.load(path, backend=backend)
        model(np.zeros((1, *model.image), np.uint8), model.widths[0])  # the library warms up
        listening = True
        for times in (firsts, again):
            for width, robust in dials:
                times.append(timed(partial(turn, model, width, robust)))
        listening = False
    found = {"first_use": firsts, "used_before": again}
    return [
        {
            "part": "dial",
            "backend": backend,
            "turn": turn,
            "median": median(times),
            "worst": max(times),
            "files_opened": len(opened),
        }
        for turn, times in found.items()
    ]


def stacking(path: Path) -> list[dict[str, Any]]:
    """Width 1 of the Digit net for one image: eight bases side by side, one after the other, and the single net."""
    model = Model.load(path, backend="torch")
    x = torch.rand(1, 28, 28, 3).permute(0, 3, 1, 2)
    held = model._in_torch(model._held)
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
        found = milliseconds(ways, 4 * TURNS)
    best = found["side by side"]
    return [{"part": "stacking", "way": way, "ms": ms, "times_as_fast": ms / best} for way, ms in found.items()]


def widths(net: str, path: Path) -> list[dict[str, Any]]:
    """Each width of a bundle: milliseconds of one image on both backends, in turns; megabytes on disk and in memory."""
    models = {backend: Model.load(path, backend=backend) for backend in BACKENDS}
    model = models["onnx"]
    image = np.random.default_rng(0).integers(0, 256, (1, *model.image), dtype=np.uint8)
    turns = TURNS if net == "digit" else 5
    rows = []
    for width in model.widths:
        ways: dict[Any, Callable[[], object]] = {b: partial(m, image, width, ROBUST) for b, m in models.items()}
        times, after = in_rows(ways, turns), milliseconds(ways, turns)
        priced, onnx, torch_ms = model.manifest.cost(width), times["onnx"], times["torch"]
        rows.append(
            {
                "part": "width",
                "net": net,
                "width": str(width),
                "bases": priced.bases,
                "macs": priced.macs,
                "ms": onnx,
                "torch_ms": torch_ms,
                "ms_after": after["onnx"],
                "torch_ms_after": after["torch"],
                "times_as_fast": torch_ms / onnx,
                "mb_disk": priced.bytes / 1e6,
                "mb_memory": memory_mb(model, width),
                "torch_mb_memory": memory_mb(models["torch"], width),
            }
        )
    return rows


def memory(net: str, path: Path, folder: Path) -> dict[str, Any]:
    """What a process without PyTorch has more if it loads and runs all bases than if these have next to no weights."""
    small = random_bundle(folder / f"small-{net}", net=net, atom="1/64", bases=8).path
    before, found = process(small), process(path)
    graph = Model.load(path).manifest.graph
    weights = 4 * 8 * sum(prod(shape) for shape in graph.entries.values()) if graph else 0
    grown = found["used"] - before["used"]
    return {
        "part": "memory",
        "net": net,
        "mb_before": before["used"] / 1e6,
        "mb_weights": weights / 1e6,
        "mb_grown": grown / 1e6,
        "times_the_weights": grown / weights,
        "mb_told": found["told"] / 1e6,
    }


def process(path: Path) -> dict[str, int]:
    """What a process of its own says that loads a bundle."""
    words, place = [sys.executable, "-c", MEMORY, str(path)], {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    said: dict[str, int] = json.loads(subprocess.run(words, capture_output=True, check=True, env=place).stdout)
    return said


def in_rows(ways: dict[Any, Callable[[], object]], turns: int) -> dict[Any, float]:
    """Milliseconds of each way when it runs several times in a row."""
    times: dict[Any, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            way()  # takes the caches
            times[name] += [timed(way) for _ in range(ROW)]
    return {name: median(spent) for name, spent in times.items()}


def milliseconds(ways: dict[Any, Callable[[], object]], turns: int) -> dict[Any, float]:
    return {name: 1e3 * median(spent) for name, spent in in_turns(ways, thread_time, turns).items()}


def timed(call: Callable[[], object]) -> float:
    began = thread_time()
    call()
    return 1e3 * (thread_time() - began)


def main() -> None:
    torch.set_num_threads(1)
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if listening and event == "open" else None)
    with tempfile.TemporaryDirectory() as folder:
        paths = {net: random_bundle(Path(folder) / net, net=net).path for net in TABLE}
        found = [row for backend in BACKENDS for row in turning(paths["digit"], backend)]
        found += stacking(paths["digit"])
        found += [row for net in TABLE for row in widths(net, paths[net])]
        found += [memory(net, paths[net], Path(folder)) for net in TABLE]
    print(publish("runtime", found))


if __name__ == "__main__":
    main()
