"""Files of a model for other runtimes: checked against the model before they are left on disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from splitmix import __version__
from splitmix.core.errors import UserError, unknown
from splitmix.core.files import write_atomically
from splitmix.core.width import Width, parse_dial
from splitmix.nets import NETS
from splitmix.runtime.export.formats import Onnx, Pte
from splitmix.runtime.export.own import write_graph
from splitmix.runtime.export.plain import Array, RunFile, plain_graph
from splitmix.runtime.manifest import Manifest
from splitmix.runtime.model import Model, WidthLike, bases_of

CHECKED_DIALS = (0.0, 0.2, 0.5, 0.8, 1.0)  # where a file with a dial is checked
CHECKED_BATCHES = (1, 7)
MOST = 1e-5  # that logits may differ from the model's; of the largest of them, where that is above 1


class Format(Protocol):
    """A kind of file, and how to run one here; `extra` names what must be installed for it."""

    suffix: str
    extra: str

    def write(self, graph: fx.GraphModule, image: Sequence[int], about: Mapping[str, str]) -> bytes: ...

    def open(self, data: bytes) -> RunFile: ...


FilePart = tuple[str, slice]  # the name of a file, and which bases are in it
FORMATS: dict[str, Format] = {"onnx": Onnx(), "pte": Pte()}


@dataclass(frozen=True)
class Exported:
    """A file that was written, and by how much its logits differ at most from those of the model."""

    path: Path
    bytes: int
    difference: float


def export_mix(
    model: Model, folder: Path, *, width: WidthLike | None = None, robust: float | None = None, format: str = "onnx"
) -> Exported:
    """One file for a width, all its bases side by side and their mean inside: the fastest.

    The dial is an input of it, unless `robust` fixes it or the model has none.
    """
    widths = _widths(model, width)
    bases = len(widths)
    (made,) = _export(model, Path(folder), [(f"mix-{bases}", slice(bases))], widths[-1:], robust, format)
    return made


def export_bases(
    model: Model, folder: Path, *, width: WidthLike | None = None, robust: float | None = None, format: str = "onnx"
) -> list[Exported]:
    """One file for each base of a width; the mean of the logits of the first k is what the model says at k bases.

    Where they do not count alike in it, each file says how many times they do, by width.
    """
    widths = _widths(model, width)
    parts = [(f"base-{base}", slice(base, base + 1)) for base in range(len(widths))]
    return _export(model, Path(folder), parts, widths, robust, format)


def _widths(model: Model, widest: WidthLike | None) -> tuple[Width, ...]:
    """The widths up to one."""
    return model.widths[: None if widest is None else bases_of(widest, model.atom, len(model.widths))]


def _export(
    model: Model, folder: Path, parts: Sequence[FilePart], widths: Sequence[Width], robust: float | None, format: str
) -> list[Exported]:
    """A file for each part, if the means over the first of them are what the model says at these widths."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    kind, fixed = FORMATS[format], None if robust is None else parse_dial(robust)
    bases = range(int(widths[-1] / model.atom))
    suffix = f".{kind.suffix}" if fixed is None else f"-robust-{fixed:g}.{kind.suffix}"
    try:
        write = _writer(model, format, widths[-1], fixed)
        files = {folder / f"{name}{suffix}": write(bases[rows]) for name, rows in parts}
        runs = [kind.open(data) for data in files.values()]
    except ImportError as missing:
        raise UserError(
            f"exporting to {format} needs {missing.name}, which is not installed; "
            f'run: pip install "splitmix[{kind.extra}]"'
        ) from missing
    dials = (fixed,) if fixed is not None else CHECKED_DIALS if model.dual else (0.0,)
    worst = max(check(model, runs, widths, dial) for dial in dials)
    for path, data in files.items():
        write_atomically(path, data)
    return [Exported(path, len(data), worst) for path, data in files.items()]


def _writer(model: Model, format: str, width: Width, robust: float | None) -> Callable[[range], bytes]:
    """What makes the file of some bases: of the module of a net of ours, or of the graph in the bundle of another."""
    said, kind = model.manifest, FORMATS[format]
    if said.net.name not in NETS and said.graph is not None:
        graph = said.graph
        if format != "onnx":
            raise UserError(
                f"'{said.net.name}' is a net of your own, and its bundle has a graph for ONNX alone; "
                f"{format} files are made of {', '.join(NETS)}: choose the format onnx"
            )
        return lambda bases: write_graph(model, graph, bases, robust, about(model, bases, robust))
    mix = model.mix(width)

    def write(bases: range) -> bytes:
        rows, shares = slice(bases.start, bases.stop), said.shares(len(bases))
        graph = plain_graph(mix, model.image, rows=rows, robust=robust, shares=shares)
        return kind.write(graph, model.image, about(model, bases, robust))

    return write


def check(model: Model, runs: Sequence[RunFile], widths: Sequence[Width], robust: float) -> float:
    """By how much runs differ at most from the model; a sentence if it is too much.

    The mean over the first k runs is compared at the k-th width, on a few made-up samples.
    """
    worst = 0.0
    for size in CHECKED_BATCHES:
        images = probes(model.manifest, size)
        votes = np.stack([run(images, robust) for run in runs])
        for k, width in enumerate(widths, start=1):
            mean = model.mean(torch.from_numpy(votes[:k])).numpy()
            found = difference(mean, model(images, width, robust).numpy())
            if not found <= MOST:  # so that NaN is too much
                raise UserError(
                    f"the exported graph does not compute what the model does: at width {width} and robust {robust:g} "
                    f"it differs by {found:.1e}, allowed is {MOST:g}; nothing was written, please report this"
                )
            worst = max(worst, found)
    return worst


def difference(logits: Array, expected: Array) -> float:
    """The largest difference of two logits, or between the best class and the one that is chosen in its place.

    In units of the largest logit where that is above 1, since float32 has seven digits.
    """
    chosen = np.take_along_axis(expected, logits.argmax(-1)[:, None], -1)
    lost = expected.max(-1, keepdims=True) - chosen  # 0 where both choose the same class
    return float(max(np.abs(logits - expected).max(), lost.max()) / max(1.0, np.abs(expected).max()))


def probes(said: Manifest, count: int) -> NDArray[Any]:
    """Samples to compare on: noise of rising contrast around grey, or around the mean; tokens that every net knows."""
    rng, scaling = np.random.default_rng(0), said.scale()
    if said.sample == "tokens":
        return rng.integers(0, 2, (count, *said.image))
    noise = rng.random((count, *said.image), np.float32) - 0.5
    contrast = np.linspace(1, 0.1, count, dtype=np.float32)
    around = noise * contrast.reshape(-1, *[1] * len(said.image))
    return 0.5 + around if scaling is None else (scaling.mean + 4 * around * scaling.deviation).astype(np.float32)


def about(model: Model, bases: range, robust: float | None) -> dict[str, str]:
    """What a file says of itself."""
    said = model.manifest
    dial = "input" if robust is None and model.dual else f"{robust or 0.0:g}"
    images = "float32 from 0 to 1 (uint8 divided by 255), as (batch, height, width, channel)"
    facts = {
        "version": __version__,
        "bundle": said.sha256,
        "net": said.net.name,
        "width": str(model.atom * len(bases)),
        "bases": " ".join(map(str, bases)),
        "classes": json.dumps(model.classes),
        "image": "x".join(map(str, model.image)),
        "pixels": images if said.sample == "image" else said.pixels,
        "robust": dial,
        "calibration": f"{model.calibration.images} images of a device" if model.calibration else "of the bundle",
    }
    if said.times:
        facts["times"] = json.dumps(said.times)
    return {f"splitmix.{key}": value for key, value in facts.items()}
