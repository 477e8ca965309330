"""Bases on ONNX Runtime: a session for each, and norms that go in with the samples; nothing here needs PyTorch."""

import ctypes
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.runtime.calibration import Calibration, mean_moments, variances
from splitmix.runtime.graph.onnx_bytes import LOGITS, NORMS, onnx_bytes
from splitmix.runtime.graph.record import MOST_NUMBERS, SAMPLE, Graph
from splitmix.runtime.graph.wide import widened
from splitmix.runtime.images import BATCH, UNKNOWN_TOKEN
from splitmix.runtime.norms import Array, Arrays, Folded, fold
from splitmix.runtime.strict import readable

Session = Any  # of ONNX Runtime, which gives no types
TRIM: Any = None  # only the C library of GNU has it; looked up here, as reading a bundle loads no library
with suppress(AttributeError, OSError, TypeError):
    TRIM = ctypes.CDLL(None).malloc_trim


@dataclass(frozen=True)
class OnnxBases:
    """Each base is a session that holds its weights; all sessions are of one graph.

    So any bases can be run, in any order, and those that a width leaves out cost nothing. A dial or a calibration only
    changes the few numbers of the norms.
    """

    graph: Graph
    sessions: tuple[Session, ...]
    norms: Arrays  # entries of the norms, as the bundle has them
    folded: Folded

    backend = "onnx"

    @classmethod
    def of(cls, graph: Graph, rows: Iterable[Arrays]) -> "OnnxBases":
        """From the entries of each base in turn: the session that is made of them holds them from then on."""
        sessions, kept, names = [], [], sorted(graph.norm_entries())
        for row in rows:
            data = onnx_bytes(*widened(graph, row))
            kept.append([row[name].copy() for name in names])
            row.clear()  # before the session makes a copy of its own
            sessions.append(open_session(data))
            del data
        give_back()
        norms = {name: np.stack(values) for name, values in zip(names, zip(*kept, strict=True), strict=True)}
        return cls(graph, tuple(sessions), norms, fold(graph, norms, len(sessions)))

    @property
    def count(self) -> int:
        return len(self.sessions)

    def joined(self, rows: Iterable[Arrays]) -> "OnnxBases":
        """With more bases behind these."""
        more = OnnxBases.of(self.graph, rows)
        norms = {name: np.concatenate([value, more.norms[name]]) for name, value in self.norms.items()}
        sessions = self.sessions + more.sessions
        return OnnxBases(self.graph, sessions, norms, fold(self.graph, norms, len(sessions)))

    def calibrated(self, calibration: Calibration | None) -> "OnnxBases":
        """With other statistics, or with those of the bundle."""
        norms = calibration.applied(self.norms) if calibration else self.norms
        return OnnxBases(self.graph, self.sessions, self.norms, fold(self.graph, norms, self.count))

    def votes(self, start: int, stop: int, x: NDArray[Any], robust: float) -> Array:
        """Logits (base, n, class) of the bases of a range."""
        norms = self.folded.at(robust)
        if stop == start + 1 and 0 < len(x) <= self.at_once:  # one image on one base feels every array more
            return self._logits(start, x, norms)[None]
        votes = np.empty((stop - start, len(x), self.graph.classes), np.float32)
        for base in range(start, stop):
            for first in range(0, len(x), self.at_once):
                some = slice(first, first + self.at_once)
                votes[base - start, some] = self._logits(base, x[some], norms)
        return votes

    def _logits(self, base: int, x: NDArray[Any], norms: Array) -> Array:
        given = {SAMPLE: x, NORMS: norms[base]} if self.graph.norms else {SAMPLE: x}
        return run_session(self.sessions[base], [LOGITS], given)[0]

    @cached_property
    def at_once(self) -> int:
        """Samples that run together."""
        return max(1, min(BATCH, MOST_NUMBERS // self.graph.outline.largest))

    def bytes(self, bases: int) -> int:
        """Memory of so many bases: their weights, and the most that lives at once while a sample runs."""
        entries = sum(prod(shape) for shape in self.graph.entries.values())
        return 4 * (bases * entries + self.graph.outline.peak)


def measured(graph: Graph, rows: Iterable[Arrays], batches: list[NDArray[Any]]) -> Arrays:
    """Mean and variance of every clean norm, (base, channel): the mean of the moments of batches."""
    found = []
    for row in rows:
        session = open_session(onnx_bytes(graph, row, measuring=True))
        found.append(mean_moments(_moments(graph, row, session, x) for x in batches))
    return variances({name: np.stack([row[name] for row in found]) for name in found[0]})


def _moments(graph: Graph, row: Arrays, session: Session, x: NDArray[Any]) -> Arrays:
    """The first two moments of what flows into each norm of one base, as batch statistics are made of them."""
    affine = [row[f"{norm.clean}.{entry}"] for entry in ("weight", "bias") for norm in graph.norms]
    names = [f"{what} {place}" for what in ("mean", "var") for place in range(len(graph.norms))]
    values = run_session(session, names, {SAMPLE: x, NORMS: np.concatenate(affine)})
    sides = {step.takes[1]: graph.outline.shapes[step.takes[0]] for step in graph.steps if step.op == "Norm"}
    moments = {}
    for norm, mean, var in zip(graph.norms, values, values[len(graph.norms) :], strict=False):
        count = len(x) * prod(sides[f"{norm.clean}.weight"][2:])
        unbiased = var.astype(np.float64) * count / (count - 1)  # as PyTorch has it
        moments[f"{norm.clean}.running_mean"] = mean.astype(np.float64)
        moments[f"{norm.clean}.running_var"] = unbiased + np.square(mean.astype(np.float64))
    return moments


def give_back() -> None:
    """Let the system have what making sessions left free: the C library would keep it, some copies of a base."""
    if TRIM is not None:
        TRIM(0)


def open_session(data: bytes) -> Session:
    """ONNX Runtime on one thread, without memory that it would keep for later: small nets gain by neither."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError('this needs onnxruntime, which is not installed; run: pip install "splitmix[device]"') from None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.enable_cpu_mem_arena = settings.enable_mem_pattern = False
    settings.log_severity_level = 4  # errors are raised anyway
    try:
        session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"], enable_fallback=0)
        session._model_bytes = None  # it would keep the file beside what it has made of it
        return session
    except Exception as error:  # it has a dozen kinds of its own
        raise UserError(f"ONNX Runtime does not take the net ({readable(error)}); bundle the run again") from None


def run_session(session: Session, names: list[str], given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    try:
        found: list[NDArray[Any]] = session.run(names, given, usual_run())
    except Exception as error:  # it has a dozen kinds of its own
        if "element out of data bounds" in str(error):
            raise UserError(UNKNOWN_TOKEN) from None
        raise UserError(f"ONNX Runtime cannot run the net on these samples ({readable(error)})") from None
    return found


@cache
def usual_run() -> Any:
    """Settings of a run that sets nothing, made once: ONNX Runtime would make them anew for every run."""
    from onnxruntime import RunOptions

    return RunOptions()
