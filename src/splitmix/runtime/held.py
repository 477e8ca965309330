"""Bases in memory, on ONNX Runtime or on PyTorch; which of the two is a matter of what is installed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError, unknown
from splitmix.runtime.anytime import Pace
from splitmix.runtime.calibration import Calibration
from splitmix.runtime.manifest import Manifest
from splitmix.runtime.norms import Array, Arrays

BACKENDS = ("onnx", "torch")


class Bases(Protocol):
    """Bases in memory, on ONNX Runtime or on PyTorch; replaced as a whole, never changed."""

    @property
    def backend(self) -> str: ...

    @property
    def count(self) -> int: ...

    def votes(self, start: int, stop: int, x: NDArray[Any], robust: float) -> Array: ...

    def joined(self, rows: Iterable[Arrays]) -> "Bases": ...

    def calibrated(self, calibration: Calibration | None) -> "Bases": ...

    def bytes(self, bases: int) -> int: ...


@dataclass(frozen=True)
class Held:
    """What is in memory; a call sees one of these from end to end."""

    bases: Bases
    calibration: Calibration | None = None
    pace: Pace = field(default_factory=Pace)

    @classmethod
    def of(cls, bases: Bases, calibration: Calibration | None) -> "Held":
        return cls(bases.calibrated(calibration) if calibration else bases, calibration)

    def votes(self, start: int, stop: int, x: NDArray[Any], robust: float) -> Array:
        """Logits (base, n, class) of the bases of a range, all of them finite."""
        votes = self.bases.votes(start, stop, x, robust)
        if not all_finite(votes):
            raise UserError("the model's numbers overflow on these images; bundle another run")
        return votes


def all_finite(votes: Array) -> bool:
    """Whether there is no NaN and nothing infinite: the sum of their squares tells, unless that itself overflows."""
    return isfinite(np.vdot(votes, votes)) or bool(np.isfinite(votes).all())


def usual_backend(manifest: Manifest) -> str:
    """ONNX Runtime where it is installed and the bundle has a graph for it."""
    return "onnx" if manifest.graph is not None and find_spec("onnxruntime") is not None else "torch"


def open_bases(manifest: Manifest, rows: Iterable[Arrays], backend: str) -> Bases:
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if backend == "onnx":
        if manifest.graph is None:
            raise UserError("this bundle has no graph for ONNX Runtime; bundle the run again, or use backend='torch'")
        from splitmix.runtime.onnx_bases import OnnxBases

        return OnnxBases.of(manifest.graph, rows)
    manifest.build()  # first of all: it says what is missing
    from splitmix.runtime.torch_bases import TorchBases

    return TorchBases.of(manifest, rows)


def as_tensor(array: Array) -> Any:
    """A tensor of PyTorch with the same numbers, where that is installed."""
    return tensor_maker()(array)


@cache
def tensor_maker() -> Callable[[Array], Any]:
    """Looked for once: to small nets an import statement is a tenth of their time."""
    try:
        from torch import from_numpy
    except ImportError:
        return lambda array: array
    return from_numpy
