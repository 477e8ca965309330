"""Norm statistics of a device's own images, measured without labels, for all bases at once."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError
from safetensors.numpy import save

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.runtime.bundle import check_numbers, parse_header, parse_tensors, read_regular
from splitmix.runtime.images import BATCH, to_net
from splitmix.runtime.manifest import HEADER_BYTES, ITEM, Manifest, TensorSpec
from splitmix.runtime.norms import Arrays
from splitmix.runtime.strict import ManifestRecord, strict_json

FILE = "calibration.safetensors"
LEAST = 16  # images: fewer say too little of a channel's variance


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it cannot be shown")
    return text


_Printed = Annotated[str, Field(max_length=499), AfterValidator(_printable)]
Positive = Annotated[int, Field(ge=1)]


class CalibrationRecord(ManifestRecord):
    """What the file of a calibration says of itself."""

    bundle: _Printed
    bases: Positive
    images: Positive
    attack: _Printed | None
    sha256: _Printed


@dataclass(frozen=True)
class Calibration:
    """Statistics (base, channel) of the first bases, and what they were measured on."""

    statistics: Arrays
    images: int
    attack: str | None  # how the images for the noisy norms were made

    @property
    def bases(self) -> int:
        return len(next(iter(self.statistics.values())))

    def applied(self, weights: Arrays) -> Arrays:
        """The weights with these statistics in as many bases as it knows; those that came later keep their own."""
        here = min(self.bases, len(next(iter(weights.values()))))
        return weights | {n: np.concatenate([v[:here], weights[n][here:]]) for n, v in self.statistics.items()}


def calibration_batches(images: NDArray[Any]) -> list[NDArray[Any]]:
    """Images as a net takes them, in batches of about the same size."""
    if len(images) < LEAST:
        raise UserError(f"{len(images)} images are too few to calibrate on; give {LEAST} or more, 100 are plenty")
    return [to_net(piece) for piece in np.array_split(images, -(-len(images) // BATCH))]


def mean_moments(found: Iterable[Arrays]) -> Arrays:
    """The mean of moments over batches, with one batch in memory at a time."""
    mean: Arrays = {}
    for count, moments in enumerate(found, start=1):
        for name, value in moments.items():
            mean[name] = mean[name] + (value - mean[name]) / count if name in mean else value
    return mean


def variances(moments: Arrays) -> Arrays:
    """Mean and variance of averaged moments, in single precision."""
    found = {}
    for name, value in moments.items():
        stem = name.removesuffix("running_var")
        square = np.square(moments[f"{stem}running_mean"]) if stem != name else 0.0
        found[name] = (np.maximum(value - square, 0) if stem != name else value).astype(np.float32)
    return found


def write_calibration(path: Path, calibration: Calibration, manifest: Manifest) -> None:
    """One file that says which bundle it belongs to."""
    tensors = {name: np.ascontiguousarray(value) for name, value in sorted(calibration.statistics.items())}
    about = CalibrationRecord(
        bundle=manifest.sha256,
        bases=calibration.bases,
        images=calibration.images,
        attack=calibration.attack,
        sha256=_hash(tensors),
    )
    write_atomically(path, save(tensors, {"calibration": json.dumps(about.model_dump())}))


def read_calibration(path: Path, manifest: Manifest) -> Calibration:
    """A calibration of this very bundle; all else is one sentence."""
    where = f"'{path}'"
    known = {n: shape for n, (shape, _) in manifest.entries().items() if n.endswith(("running_mean", "running_var"))}
    most = HEADER_BYTES + ITEM["F32"] * len(manifest.bases) * sum(map(math.prod, known.values()))
    data = read_regular(path, most)
    _, metadata = parse_header(data, where)
    about = _about(strict_json(metadata.get("calibration", "null"), where))
    if about is None or about.bases > len(manifest.bases):
        raise UserError(f"{where} is no calibration; make one with: splitmix calibrate")
    if about.bundle != manifest.sha256:
        raise UserError(f"{where} belongs to another bundle; calibrate this one with: splitmix calibrate")
    expected: dict[str, TensorSpec] = {name: ((about.bases, *shape), "F32") for name, shape in known.items()}
    tensors, _ = parse_tensors(data, where, expected)
    if _hash(tensors) != about.sha256:
        raise UserError(f"{where} is damaged: it does not match its own hash; calibrate again")
    check_numbers(tensors, where)
    return Calibration(tensors, about.images, about.attack)


def _hash(tensors: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def _about(said: Any) -> CalibrationRecord | None:
    try:
        return CalibrationRecord.model_validate(said)
    except ValidationError:
        return None
