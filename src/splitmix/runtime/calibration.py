"""Norm statistics of a device's own images, measured without labels, for all bases at once."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError
from safetensors.torch import save
from torch import Tensor

from splitmix.attacks.pgd import PGD
from splitmix.core.batches import even_batches
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.net import Net, from_moments, to_moments
from splitmix.core.objective import Attack
from splitmix.core.reproducible import torch_rng_for
from splitmix.core.types import Weights
from splitmix.core.width import Width
from splitmix.runtime.bundle import check_numbers, parse_header, parse_tensors, read_regular
from splitmix.runtime.images import BATCH, to_net
from splitmix.runtime.manifest import HEADER_BYTES, ITEM, Manifest, ManifestRecord, TensorSpec, strict_json

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

    statistics: Weights
    images: int
    attack: str | None  # how the images for the noisy norms were made

    @property
    def bases(self) -> int:
        return next(iter(self.statistics.values())).shape[0]

    def applied(self, weights: Weights) -> Weights:
        """The weights with these statistics in as many bases as it knows; those that came later keep their own."""
        here = min(self.bases, next(iter(weights.values())).shape[0])
        return weights | {n: torch.cat([v[:here], weights[n][here:]]) for n, v in self.statistics.items()}


def measure_statistics(
    net: Net, atom: Width, weights: Weights, images: NDArray[Any], attack: Attack | None
) -> Calibration:
    """The mean of the moments of batches: clean norms on the images, noisy norms on what an attack makes of them.

    The labels that the attack leads away from are the answers of all bases together, at robust 1.
    """
    if len(images) < LEAST:
        raise UserError(f"{len(images)} images are too few to calibrate on; give {LEAST} or more, 100 are plenty")
    dual = any(".noisy." in name for name in net.statistic_names(atom))
    moments = _mean(to_moments(net.measure(atom, weights, x)) for x in _batches(images))
    chosen = (attack or PGD()) if dual else None
    if chosen is not None:
        rng = torch_rng_for(0, "calibrate")
        made = (_attacked(net, atom, weights, x, chosen, rng) for x in _batches(images))
        moments |= _mean(to_moments(net.measure(atom, weights, x, 1.0)) for x in made)
    found = {name: value.float() for name, value in from_moments(moments).items()}
    return Calibration(found, len(images), None if chosen is None else chosen.name)


def write_calibration(path: Path, calibration: Calibration, manifest: Manifest) -> None:
    """One file that says which bundle it belongs to."""
    tensors = {name: value.contiguous() for name, value in sorted(calibration.statistics.items())}
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


def _batches(images: NDArray[Any]) -> Iterator[Tensor]:
    for rows in even_batches(len(images), BATCH):
        yield to_net(images[rows.numpy()])


def _attacked(net: Net, atom: Width, weights: Weights, x: Tensor, attack: Attack, rng: torch.Generator) -> Tensor:
    """Images of their own for each base, (base, n, channel, height, width), as in training."""
    with torch.no_grad():
        answers = net.run(atom, weights, x, 1.0).mean(0).argmax(-1)
    return attack(lambda images: net.run(atom, weights, images, 1.0), x, answers, rng)


def _mean(found: Iterator[Weights]) -> Weights:
    mean: Weights = {}
    for count, moments in enumerate(found, start=1):
        for name, value in moments.items():
            mean[name] = torch.lerp(mean[name], value.double(), 1 / count) if name in mean else value.double()
    return mean


def _hash(tensors: Weights) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _about(said: Any) -> CalibrationRecord | None:
    try:
        return CalibrationRecord.model_validate(said)
    except ValidationError:
        return None
