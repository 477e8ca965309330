"""Exported files beside the model in PyTorch: milliseconds for one image and for a batch, and megabytes, at each width.

python benchmarks/export.py    writes rows and results/export.md (about two minutes of one core)

All on one thread, in turns. Times are the processor's, so that other programs on the machine do not count; weights are
random, which changes no time.
"""

import json
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
from evidence import in_turns, publish

from splitmix.runtime.export import Exported, export_bases, export_mix
from splitmix.runtime.export.formats import Onnx
from splitmix.runtime.model import Model

ROOT = Path(__file__).parent.parent
NETS = ("digit", "preresnet18")
BASES = (1, 2, 4, 8)
BATCHES = (1, 32)
ROBUST = 0.3
TURNS = 60


def main() -> None:
    torch.set_num_threads(1)
    print(publish("export", [row for net in NETS for row in benchmark(net)]))


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
        times = in_turns({name: partial(way, x) for name, way in ways.items()}, thread_time, TURNS)
        spent = {name: 1e3 * median(seconds) for name, seconds in times.items()}
        about = {"net": net, "width": str(width), "bases": bases, "batch": batch, "robust": ROBUST}
        row = {**about, "milliseconds": spent, "megabytes": sizes}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def together(files: list[Exported]) -> Callable[[np.ndarray], np.ndarray]:
    """The mean of the logits of all files: what a device has to compute."""
    runs = [Onnx().open(file.path.read_bytes()) for file in files]
    if len(runs) == 1:
        return lambda x: runs[0](x, ROBUST)
    return lambda x: np.mean([run(x, ROBUST) for run in runs], 0)


if __name__ == "__main__":
    main()
