"""Exported files beside the model in PyTorch: milliseconds for one image and for a batch, and megabytes, at each width.

python benchmarks/export.py    writes results/export.json and results/export.md (about two minutes of one core)

All on one thread, in turns. Times are the processor's, so that other programs on the machine do not count; weights are
random, which changes no time.
"""

import json
import os
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
import onnxruntime
import torch

from splitmix.core.files import write_atomically
from splitmix.runtime.export import Exported, export_bases, export_mix
from splitmix.runtime.export.onnx_file import Onnx
from splitmix.runtime.model import Model

ROOT = Path(__file__).parent.parent
NETS = ("digit", "preresnet18")
BASES = (1, 2, 4, 8)
BATCHES = (1, 32)
ROBUST = 0.3
SECONDS = 0.1  # of each way in each turn
TURNS = 5
WAYS = {
    "torch": "PyTorch",
    "files": "k ONNX files",
    "fused": "fused ONNX",
    "files_fixed": "k files, fixed",
    "fused_fixed": "fused, fixed",
}


def main() -> None:
    torch.set_num_threads(1)
    rows = [row for net in NETS for row in benchmark(net)]
    machine = {"processor": processor(), "torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    machine["load"] = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    said = {"robust": ROBUST, "machine": machine, "rows": rows}
    write_atomically(ROOT / "results" / "export.json", (json.dumps(said, indent=1) + "\n").encode())
    write_atomically(ROOT / "results" / "export.md", page(rows, machine).encode())


def benchmark(net: str) -> list[dict[str, Any]]:
    """A row for each width and batch of a net."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.bundles import random_bundle

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = Model.load(random_bundle(place / "bundle", net=net, bases=max(BASES)).path)
        return [row for bases in BASES for row in at_width(net, model, bases, place)]


def at_width(net: str, model: Model, bases: int, place: Path) -> list[dict[str, Any]]:
    width = model.widths[bases - 1]
    made = {
        "files": export_bases(model, place, width=width),
        "fused": [export_mix(model, place, width=width)],
        "files_fixed": export_bases(model, place, width=width, robust=ROBUST),
        "fused_fixed": [export_mix(model, place, width=width, robust=ROBUST)],
    }
    sizes = {name: sum(file.bytes for file in files) / 1e6 for name, files in made.items()}
    sizes["torch"] = model.manifest.cost(width).bytes / 1e6
    ways: dict[str, Callable[[np.ndarray], object]] = {"torch": lambda x: model(x, width, ROBUST)}
    ways |= {name: together(files) for name, files in made.items()}
    rows = []
    for batch in BATCHES:
        x = np.random.default_rng(0).random((batch, *model.image), np.float32)
        times = milliseconds({name: partial(way, x) for name, way in ways.items()})
        about = {"net": net, "width": str(width), "bases": bases, "batch": batch}
        row = {**about, "milliseconds": times, "megabytes": sizes}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def together(files: list[Exported]) -> Callable[[np.ndarray], np.ndarray]:
    """The mean of the logits of all files: what a device has to compute."""
    runs = [Onnx().open(file.path.read_bytes()) for file in files]
    if len(runs) == 1:
        return lambda x: runs[0](x, ROBUST)
    return lambda x: np.mean([run(x, ROBUST) for run in runs], 0)


def milliseconds(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            way()  # warms up
            began = thread_time()
            while thread_time() - began < SECONDS:
                start = thread_time()
                way()
                times[name].append(thread_time() - start)
    return {name: 1e3 * median(taken) for name, taken in times.items()}


def page(rows: list[dict[str, Any]], machine: dict[str, str]) -> str:
    """The same numbers for people."""
    about = (
        "Milliseconds of processor time for a whole batch (the median, one thread, all ways in turns), and in brackets "
        "the time over PyTorch's. The dial is at 0.3: an input of the files, or fixed in them. PyTorch is `Model`, its "
        "bases side by side; its megabytes are those of the bundle."
    )
    lines = ["# Exported files beside PyTorch\n", "Made by `python benchmarks/export.py`.\n", about]
    for net in dict.fromkeys(row["net"] for row in rows):
        for batch in BATCHES:
            images = "one image" if batch == 1 else f"{batch} images"
            some = [row for row in rows if (row["net"], row["batch"]) == (net, batch)]
            lines += ["", f"## {net}, {images}", "", f"| width | k | {' | '.join(WAYS.values())} | fused / k files |"]
            lines.append("|---:" * (len(WAYS) + 3) + "|")
            lines += [f"| {row['width']} | {row['bases']} | {' | '.join(cells(row))} |" for row in some]
    lines += ["", "## Megabytes", "", f"| net | width | {' | '.join(WAYS.values())} |", "|---" + "|---:" * 6 + "|"]
    for row in rows:
        if row["batch"] == BATCHES[0]:
            sizes = " | ".join(f"{row['megabytes'][way]:.2f}" for way in WAYS)
            lines.append(f"| {row['net']} | {row['width']} | {sizes} |")
    runtimes = f"torch {machine['torch']}, onnxruntime {machine['onnxruntime']}"
    lines += ["", f"{machine['processor']}; {runtimes}; load at the end {machine['load']}."]
    return "\n".join(lines) + "\n"


def cells(row: dict[str, Any]) -> list[str]:
    times = row["milliseconds"]
    found = [f"{times['torch']:.2f}"]
    found += [f"{times[way]:.2f} ({times[way] / times['torch']:.2f})" for way in WAYS if way != "torch"]
    return [*found, f"{times['fused'] / times['files']:.2f}"]


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
