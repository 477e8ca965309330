"""A bundle at work: width and robustness are turned while it runs; nothing is loaded, nothing retrained."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from threading import Lock
from time import perf_counter

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splitmix.core.errors import UserError
from splitmix.core.types import Weights, Width, check_multiple, parse_width
from splitmix.runtime.bundle import Bundle, file_name
from splitmix.runtime.images import checked_images, to_net
from splitmix.runtime.manifest import Manifest
from splitmix.runtime.mix import Mix, Mixer

BATCH = 128  # images that run together: more would only take more memory
WidthLike = Width | str | float


@dataclass(frozen=True)
class Dial:
    """The user's two settings; no width means the widest there is."""

    width: Width | None = None
    robust: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """Answers for n images: classes (n,), probabilities (n, class), and how many bases spoke for each image (n,)."""

    classes: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    bases: NDArray[np.int64]
    milliseconds: float

    @property
    def mean_bases(self) -> float:
        return float(self.bases.mean()) if self.bases.size else 0.0


@dataclass(frozen=True)
class Held:
    """Bases in memory, with their norms folded; replaced as a whole, never changed."""

    mixer: Mixer
    weights: Weights
    folded: Weights
    mixes: dict[tuple[int, int], Mix] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return next(iter(self.weights.values())).shape[0]

    def mix(self, start: int, stop: int) -> Mix:
        """The bases of a range; each mix is made once, and shares the tensors of all others."""
        if (start, stop) not in self.mixes:
            self.mixes[start, stop] = self.mixer.mix({name: v[start:stop] for name, v in self.folded.items()})
        return self.mixes[start, stop]


_dials: ContextVar[Mapping[int, Dial]] = ContextVar("dials")  # by the id of a model that is alive


class Model:
    """A trained model whose width and robustness can be turned at any moment, by any thread."""

    def __init__(self, bundle: Bundle, bases: int) -> None:
        self.bundle = bundle
        self.default = Dial()
        self._mixer = Mixer(self.manifest.build(), self.atom)
        self._lock = Lock()
        self._held = self._hold(bundle.read(range(bases)))

    @classmethod
    def load(cls, path: str | Path, *, width: WidthLike | None = None) -> "Model":
        """The model of a bundle: all bases that have arrived, or only those that make up a width."""
        bundle = Bundle.open(path)
        there = bundle.arrived()
        if not there:
            raise UserError(f"'{bundle.path}' has no bases yet; fetch {file_name(0)} first")
        return cls(bundle, there if width is None else _bases(width, bundle.manifest.width, there))

    # --- what it is ---

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    @property
    def atom(self) -> Width:
        return self.manifest.width

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths that can be served now."""
        return tuple(self.atom * bases for bases in range(1, self._held.count + 1))

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.manifest.classes)

    @property
    def image(self) -> tuple[int, ...]:
        """Height, width and channels of the images it takes."""
        return tuple(self.manifest.image)

    @property
    def dual(self) -> bool:
        """Whether it has a robustness dial."""
        return self.manifest.net.dual

    def __repr__(self) -> str:
        return f"Model({self.manifest.net.name}, widths up to {self.widths[-1]}, {len(self.classes)} classes)"

    # --- the dial ---

    def set(self, *, width: WidthLike | None = None, robust: float | None = None) -> None:
        """Turn the dial for everyone who does not say otherwise; what is not given stays as it is."""
        with self._lock:
            self.default = self._turned(self.default, width, robust)

    @contextmanager
    def dial(self, *, width: WidthLike | None = None, robust: float | None = None) -> Iterator["Model"]:
        """Turn the dial for the calls inside the `with`, in this thread or task alone."""
        before = _dials.get({})
        token = _dials.set({**before, id(self): self._turned(self.current, width, robust)})
        try:
            yield self
        finally:
            _dials.reset(token)

    @property
    def current(self) -> Dial:
        """The dial as it stands here."""
        return _dials.get({}).get(id(self), self.default)

    # --- predictions ---

    def __call__(self, x: ArrayLike | Tensor, width: WidthLike | None = None, robust: float | None = None) -> Tensor:
        """Logits (n, class) of images (n, height, width, channels), uint8 or float in [0, 1]."""
        return self.logits_by_base(x, width, robust).mean(0)

    def logits_by_base(
        self, x: ArrayLike | Tensor, width: WidthLike | None = None, robust: float | None = None
    ) -> Tensor:
        """The votes of the single bases, (base, n, class)."""
        mix, strength = self._chosen(width, robust)
        return _run(mix, self._images(x), strength)

    def predict(
        self,
        x: ArrayLike | Tensor,
        *,
        width: WidthLike | None = None,
        robust: float | None = None,
        deadline_ms: float | None = None,
        confidence: float | None = None,
    ) -> Prediction:
        """Classes and probabilities."""
        began = perf_counter()
        logits = self(x, width, robust)
        mix, _ = self._chosen(width, robust)
        shares = logits.softmax(-1).numpy()
        bases = np.full(len(shares), mix.bases, np.int64)
        return Prediction(shares.argmax(-1), shares, bases, 1e3 * (perf_counter() - began))

    def mix(self, width: WidthLike | None = None) -> Mix:
        """The bases of a width as a module: images (n, channel, height, width) to logits (base, n, class)."""
        return self._chosen(width, None)[0]

    # --- inside ---

    def _hold(self, weights: Weights) -> Held:
        return Held(self._mixer, weights, self._mixer.fold(weights))

    def _turned(self, dial: Dial, width: WidthLike | None, robust: float | None) -> Dial:
        held = self._held.count
        chosen = dial.width if width is None else self.atom * _bases(width, self.atom, held)
        return Dial(chosen, dial.robust if robust is None else self._strength(robust))

    def _chosen(self, width: WidthLike | None, robust: float | None) -> tuple[Mix, float]:
        dial, held = self._turned(self.current, width, robust), self._held
        return held.mix(0, held.count if dial.width is None else int(dial.width / self.atom)), dial.robust

    def _strength(self, robust: float) -> float:
        if not isinstance(robust, Real) or isinstance(robust, bool) or not 0 <= robust <= 1:
            raise UserError(f"robust {robust!r} is not on the dial; give a number from 0 (clean) to 1 (robust)")
        if robust and not self.dual:
            raise UserError("this model has no robustness dial; train it with an adversarial objective, or give 0")
        return float(robust)

    def _images(self, x: ArrayLike | Tensor) -> Tensor:
        return to_net(checked_images(x, self.image))


def _run(mix: Mix, images: Tensor, robust: float) -> Tensor:
    with torch.inference_mode():
        return torch.cat([mix(batch, robust) for batch in images.split(BATCH)], 1)


def _bases(width: WidthLike, atom: Width, there: int) -> int:
    """How many bases make up a width, if they are there."""
    wanted = parse_width(width)
    check_multiple(wanted, atom)
    if wanted > atom * there:
        raise UserError(
            f"width {wanted} needs {int(wanted / atom)} bases but only {there} are here; widest: {atom * there}"
        )
    return int(wanted / atom)
