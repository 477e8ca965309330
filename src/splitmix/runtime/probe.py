"""What each width takes on this very device: the time of one image, and memory; measured once and remembered."""

import hashlib
import json
import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from splitmix.core.errors import UserError
from splitmix.core.files import cache_folder, write_atomically
from splitmix.core.width import Width
from splitmix.runtime.model import Model

SECONDS = 2.0  # of measuring, for all widths together
ROUNDS = (5, 50)  # fewest and most


Reading = Annotated[float, Field(gt=0, lt=1e9)]


class Measured(BaseModel):
    """One image at one width: its time in the quick quarter and in the slow tenth of the runs, and the memory it needs.

    Whatever else the device does only adds to the time: the quick quarter is that of the model, the slow tenth shows
    how busy the device was.

    Memory is the weights of the bases and the most that lives at once while they run, without Python and the
    runtime themselves. A device that loads only the bases of this width needs no more.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    width: Annotated[Width, BeforeValidator(Width), PlainSerializer(str, return_type=str)]
    ms: Reading
    slow_ms: Reading
    mb: Reading


class ProbeFile(BaseModel):
    """What a device remembers of a bundle."""

    device: dict[str, str | int] = {}
    rows: list[Measured]


def probe(model: Model, *, fresh: bool = False) -> tuple[Measured, ...]:
    """Every width that can be served now, as remembered from this device, or measured."""
    place = cache_file(model)
    known = {} if fresh else _remembered(place)
    if any(width not in known for width in model.widths):
        known |= {found.width: found for found in measure_widths(model)}
        _remember(place, list(known.values()), model.backend)
    return tuple(known[width] for width in model.widths)


def measure_widths(model: Model) -> list[Measured]:
    """Measure every width, all of them in each round, so that whatever else the device does slows each alike."""
    image = blank_sample(model)
    robust = 0.5 if model.dual else 0.0  # a blend costs most
    times: dict[Width, list[float]] = {width: [] for width in model.widths}
    for width in model.widths:
        model(image, width, robust)  # the first time takes longer
    began = perf_counter()
    for done in range(ROUNDS[1]):
        if done >= ROUNDS[0] and perf_counter() - began > SECONDS:
            break
        for width in model.widths:
            start = perf_counter()
            model(image, width, robust)
            times[width].append(1e3 * (perf_counter() - start))
    found = []
    for width, spent in times.items():
        quick, slow = quantiles(spent, n=4)[0], quantiles(spent, n=10)[-1]
        found.append(Measured(width=width, ms=quick, slow_ms=slow, mb=memory_mb(model, width)))
    return found


def blank_sample(model: Model) -> NDArray[np.uint8]:
    """One sample that every model takes: zeros, be they pixels, numbers or tokens."""
    return np.zeros((1, *model.image), np.uint8)


def memory_mb(model: Model, width: Width) -> float:
    """Weights of a width's bases, and the most that lives at once while one image runs."""
    return model.bytes(width) / 1e6


def device(backend: str) -> dict[str, str | int]:
    """What decides how fast a model runs here, on ONNX Runtime ("onnx") or PyTorch ("torch")."""
    return {
        "machine": platform.machine(),
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "name": platform.node(),
        **_runtime(backend),
    }


def _runtime(backend: str) -> dict[str, str | int]:
    if backend == "onnx":
        return {"threads": 1, "onnxruntime": version("onnxruntime")}
    import torch

    return {"threads": torch.get_num_threads(), "torch": torch.__version__}


def cache_file(model: Model) -> Path:
    """Where this device remembers what it measured of this bundle: never in the bundle, which may be read-only."""
    here = hashlib.sha256(json.dumps(device(model.backend), sort_keys=True).encode()).hexdigest()
    return cache_folder("probe") / f"{model.manifest.sha256[:16]}-{here[:16]}.json"


def processor_name() -> str:
    """The name of the processor, which Python does not tell everywhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _remembered(place: Path) -> dict[Width, Measured]:
    """What was measured before; nothing, if it cannot be read."""
    try:
        return {row.width: row for row in ProbeFile.model_validate_json(place.read_bytes()).rows}
    except (OSError, ValueError, TypeError, ZeroDivisionError):
        return {}


def _remember(place: Path, rows: list[Measured], backend: str) -> None:
    kept = ProbeFile(device=device(backend), rows=rows).model_dump(mode="json")
    with suppress(UserError):  # a device without a disk measures anew each time
        write_atomically(place, json.dumps(kept, indent=1).encode())
