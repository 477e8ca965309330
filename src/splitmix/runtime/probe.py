"""What each width takes on this very device: the time of one image, and memory; measured once and remembered."""

import hashlib
import json
import os
import platform
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from torch import Tensor
from torch.utils._pytree import tree_leaves

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.width import Width
from splitmix.nets.cost import OperatorWatcher
from splitmix.runtime.model import Model

SECONDS = 2.0  # of measuring, for all widths together
ROUNDS = (5, 50)  # fewest and most


Reading = Annotated[float, Field(gt=0, lt=1e9)]


class Measured(BaseModel):
    """One image at one width: its time in the quick quarter and in the slow tenth of the runs, and the memory it needs.

    Whatever else the device does only adds to the time: the quick quarter is that of the model, the slow tenth shows
    how busy the device was.

    Memory is the weights of the bases and the most that lives at once while they run, without Python and PyTorch
    themselves. A device that loads only the bases of this width needs no more.
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
        _remember(place, list(known.values()))
    return tuple(known[width] for width in model.widths)


def measure_widths(model: Model, *, seconds: float = SECONDS) -> list[Measured]:
    """Measure every width, all of them in each round, so that whatever else the device does slows each alike."""
    image = np.random.default_rng(0).integers(0, 256, (1, *model.image), dtype=np.uint8)
    robust = 0.5 if model.dual else 0.0  # a blend costs most
    times: dict[Width, list[float]] = {width: [] for width in model.widths}
    for width in model.widths:
        model(image, width, robust)  # the first time takes longer
    began = perf_counter()
    for done in range(ROUNDS[1]):
        if done >= ROUNDS[0] and perf_counter() - began > seconds:
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


def memory_mb(model: Model, width: Width) -> float:
    """Weights of a width's bases, and the most that lives at once while one image runs."""
    mix = model.mix(width)
    held = [*mix.parameters(), *mix.buffers()]
    height, across, channels = model.image
    with torch.no_grad(), Living(held) as living:
        mix(torch.zeros(1, channels, height, across), 0.5 if model.dual else 0.0)
    return (sum(value.numel() * value.element_size() for value in held) + living.most) / 1e6


class Living(OperatorWatcher):
    """Counts the bytes of tensors that live at the same time; `most` is their peak."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen = {value.untyped_storage()._cdata for value in known}  # weights: they live anyway

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor) and (storage := value.untyped_storage())._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)
        return made

    def _gone(self, storage: int, size: int) -> None:
        self._seen.discard(storage)
        self.now -= size


def device() -> dict[str, str | int]:
    """What decides how fast a model runs here."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "name": platform.node(),
    }


def cache_file(model: Model) -> Path:
    """Where this device remembers what it measured of this bundle: never in the bundle, which may be read-only."""
    homes = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  (never an error)
    home = os.environ.get("SPLITMIX_CACHE") or Path(homes) / "splitmix"
    here = hashlib.sha256(json.dumps(device(), sort_keys=True).encode()).hexdigest()
    return Path(home) / "probe" / f"{model.manifest.sha256[:16]}-{here[:16]}.json"


def _processor() -> str:
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


def _remember(place: Path, rows: list[Measured]) -> None:
    kept = ProbeFile(device=device(), rows=rows).model_dump(mode="json")
    with suppress(UserError):  # a device without a disk measures anew each time
        write_atomically(place, json.dumps(kept, indent=1).encode())
