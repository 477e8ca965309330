"""Differential privacy of clients, for every method alike: bounded updates in, noise over what they change.

Two worlds are compared: in one a client trains, in the other it sends back what it was given. All bases that it trained
are one vector, so that it moves the sum of all updates by `clip` at most, over all bases together. The sum has noise of
`noise * clip` on each number that anybody was asked to train, and is then divided by how many were asked: a number that
follows from clients' budgets, never from their data or answers. So every base is covered by the same noise, and its
mean by the less the more clients were asked to train it.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from splitmix.core.errors import UserError, shown, unknown
from splitmix.core.method import Privacy
from splitmix.core.net import Net
from splitmix.core.parts import covering, merge, returned, times_held
from splitmix.core.reproducible import rng_for
from splitmix.core.types import Layout, Train, Update, Weights
from splitmix.core.width import is_number

KEY_BYTES = 16  # at least, of a key that nobody can guess
NEEDED: dict[str, tuple[object, str]] = {
    "statistics": ("client", "statistics of norms never leave the clients"),
    "order": ("natural", "bases are not chosen by clients' validation images"),
    "mix": ("equal", "mixes are not fitted on clients' validation images"),
    "clip": (0.0, "no bound may depend on other clients' updates: it has a clip of its own"),
    "aggregate": ("mean", "it must be known how far a client can move what is made of the updates"),
}


@dataclass(frozen=True)
class Gaussian:
    """Updates of length `clip` at most, a vote each, and normal noise of `noise` times that on their sum.

    Noise has an address: the same updates in the same round get the same, others get other noise. It follows from the
    seed, which clients know, or from a file that only the server has, its `key`.
    """

    clip: float = math.inf
    noise: float = 0.0
    delta: float = 1e-5
    key: str = ""

    def __post_init__(self) -> None:
        if not is_number(self.clip) or not self.clip > 0:
            raise UserError(f"clip {shown(self.clip)} of privacy is no length above 0; try 1.0")
        if not is_number(self.noise) or not 0 <= self.noise < math.inf:
            raise UserError(f"noise {shown(self.noise)} of privacy is no multiple of clip; give 0 for none, or try 1.0")
        if self.noise and math.isinf(self.clip):
            raise UserError("noise of privacy is a multiple of clip, which is not given; try clip = 1.0")
        if not is_number(self.delta) or not 0 < self.delta < 1:
            raise UserError(f"delta {shown(self.delta)} of privacy is outside (0, 1); try 1e-5")
        if not isinstance(self.key, str):
            raise UserError(f"key {shown(self.key)} of privacy is no path; give that of a file of random bytes")

    def merge(
        self, net: Net, layout: Layout, weights: Weights, jobs: Sequence[Train], updates: Iterable[Update], seed: int
    ) -> Weights:
        secret = self.secret()  # before anybody trains
        merged = merge(net, layout, weights, self.bounded(net, layout, weights, jobs, updates))
        if not jobs or not self.noise:
            return merged
        names = returned(net, layout, weights, jobs[0]).keys()
        for name, times in times_held(net, layout, names, (p for job in jobs for p in covering(job.parts))).items():
            mean = merged[name]
            told = hashlib.blake2b(mean.numpy().tobytes(), key=secret).digest()  # noise is never used for another sum
            rng = rng_for(seed, "noise", jobs[0].round, name, int.from_bytes(told))
            noise = self.noise * self.clip * torch.from_numpy(rng.standard_normal(mean.shape)) / times
            merged[name] = torch.where(times > 0, mean + noise.to(mean.dtype), mean)
        return merged

    def bounded(
        self, net: Net, layout: Layout, weights: Weights, jobs: Sequence[Train], updates: Iterable[Update]
    ) -> Iterator[Update]:
        """An update for each job, with one vote; of clients that gave none, what they were sent."""
        absent = {job.client: job for job in jobs}
        for update in updates:
            old = returned(net, layout, weights, absent.pop(update.client))
            yield replace(update, weights=shortened(update.weights, old, self.clip), samples=1, weight=1)
        for job in absent.values():
            yield Update(job.round, job.client, job.parts, returned(net, layout, weights, job), samples=1)

    def epsilon(self, times: int) -> float:
        """So many rounds with noise are as one with less (Gaussian differential privacy composes exactly).

        >>> Gaussian(clip=1.0).epsilon(1)
        inf
        """
        if not self.noise:
            return math.inf
        try:
            from dp_accounting import get_epsilon_gaussian
        except ImportError:
            raise UserError(
                'dp-accounting is not installed, which tells epsilon; pip install "splitmix[privacy]"'
            ) from None
        return float(get_epsilon_gaussian(self.noise / math.sqrt(times), self.delta)) if times else 0.0

    def secret(self) -> bytes:
        """What makes noise that nobody else can repeat; nothing, where it follows from the seed."""
        if not self.key:
            return b""
        try:
            found = Path(self.key).read_bytes()
        except OSError as error:
            raise UserError(f"the key of privacy, '{self.key}', cannot be read: {error.strerror}") from None
        if len(found) < KEY_BYTES:
            raise UserError(f"the key of privacy, '{self.key}', has {len(found)} bytes; give {KEY_BYTES} random ones")
        return hashlib.sha256(found).digest()


def find_privacy(value: Mapping[str, Any] | None) -> Privacy | None:
    """How updates are merged by {clip=..., noise=..., delta=..., key=...}; None where nothing is bounded."""
    for name in value or ():
        if name not in (known := [field.name for field in fields(Gaussian)]):
            raise unknown("setting of privacy", name, known)
    found = Gaussian(**(value or {}))
    return None if math.isinf(found.clip) else found


def check_private(chosen: Mapping[str, Any], *, tracked: bool) -> None:
    """Refuse settings by which the weights would tell more of clients than epsilon says."""
    if tracked:
        raise UserError(
            "with privacy no running statistics of norms may travel, as nothing bounds them; "
            "choose norm 'post' or 'batch', and with an attack in the objective norm 'local'"
        )
    for key, (value, reason) in NEEDED.items():
        if chosen[key] != value:
            raise UserError(f"with privacy {reason}, but {key} is {chosen[key]!r}; set {key} = {value!r}")


def shortened(weights: Weights, old: Weights, most: float) -> Weights:
    """The weights, no further from the old ones than `most`: one length over all entries of all bases."""
    change = {name: value.double() - old[name] for name, value in weights.items()}
    far = math.sqrt(sum(float(value.square().sum()) for value in change.values()))
    if far <= most:
        return weights
    return {name: (old[name] + value * (most / far)).to(old[name].dtype) for name, value in change.items()}
