"""A bundle at work: width and robustness are turned while it runs; nothing is loaded, nothing retrained."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splitmix.core.errors import UserError
from splitmix.core.width import Width, check_multiple, parse_dial, parse_width
from splitmix.runtime.anytime import checked_confidence, checked_deadline, gather, probabilities
from splitmix.runtime.bundle import Bundle, file_name
from splitmix.runtime.calibration import FILE, Calibration, calibration_batches, read_calibration, write_calibration
from splitmix.runtime.held import Bases, Held, as_tensor, open_bases, usual_backend
from splitmix.runtime.images import checked_inputs, to_net
from splitmix.runtime.manifest import Manifest
from splitmix.runtime.norms import Arrays

if TYPE_CHECKING:
    from torch import Tensor

    from splitmix.core.objective import Attack
    from splitmix.runtime.mix import Mix
    from splitmix.runtime.torch_bases import TorchBases

WidthLike = Width | str | float


@dataclass(frozen=True)
class Dial:
    """The user's two settings; no width means the widest there is."""

    width: Width | None = None
    robust: float = 0.0


@dataclass(frozen=True, repr=False)
class Prediction:
    """Answers for n images: classes (n,), probabilities (n, class), and how many bases spoke for each image (n,)."""

    classes: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    bases: NDArray[np.int64]
    milliseconds: float

    @property
    def mean_bases(self) -> float:
        """Bases per image: what stopping early has saved."""
        return float(self.bases.mean()) if len(self.bases) else 0.0

    def __repr__(self) -> str:
        found = ", ".join(map(str, self.classes[:8])) + (", ..." if len(self.classes) > 8 else "")
        return f"Prediction(classes [{found}], {self.mean_bases:.3g} bases, {self.milliseconds:.1f} ms)"


_dials: ContextVar[Mapping[int, Dial]] = ContextVar("dials")  # by the id of a model that is alive


class Model:
    """A trained model whose width and robustness can be turned at any moment; threads may share it.

    Images are given as in training: (n, height, width, channels), uint8 or float from 0 to 1.

    Logits are tensors of PyTorch where that is installed, and numpy arrays where it is not; predictions are always
    numpy. Both are the same on either backend.
    """

    def __init__(self, bundle: Bundle, bases: int, calibration: Calibration | None = None, backend: str = "") -> None:
        self.bundle = bundle
        self.default = Dial()
        self._turning, self._changing = Lock(), Lock()
        self._twins: tuple[Held, Bases] | None = None
        manifest = bundle.manifest
        self._checked = partial(  # what it takes is looked up once: to small nets that is a tenth of their time
            checked_inputs, shape=self.image, kind=manifest.sample, scaling=manifest.scale()
        )
        self._held = Held.of(open_bases(bundle.manifest, map(bundle.read_base, range(bases)), backend), calibration)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        width: WidthLike | None = None,
        calibration: bool | str | Path = False,
        backend: str | None = None,
    ) -> "Model":
        """The model of a bundle: all bases that have arrived, or, to save memory, those of a width.

        With `calibration` it starts with statistics that `save_calibration` left beside the bundle, or in a file.
        It runs on the `backend` "onnx" (ONNX Runtime) where that is installed and the bundle has a graph, or else on
        "torch" (PyTorch).
        """
        bundle = Bundle.open(path)
        there = bundle.arrived()
        if not there:
            raise UserError(f"'{bundle.path}' has no bases yet; fetch {file_name(0)} first")
        bases = there if width is None else bases_of(width, bundle.manifest.width, there)
        chosen = usual_backend(bundle.manifest) if backend is None else backend
        if calibration is False:
            return cls(bundle, bases, None, chosen)
        file = bundle.path / FILE if calibration is True else Path(calibration)
        return cls(bundle, bases, read_calibration(file, bundle.manifest), chosen)

    def refresh(self) -> tuple[Width, ...]:
        """Take in the bases that have arrived since; the widths that can be served now."""
        with self._changing:
            held, there = self._held, self.bundle.arrived()
            if there > held.bases.count:
                new = map(self.bundle.read_base, range(held.bases.count, there))
                self._held = Held.of(held.bases.joined(new), held.calibration)
        return self.widths

    # --- what it is ---

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    @property
    def atom(self) -> Width:
        """The width of one base."""
        return self.manifest.width

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths that can be served now."""
        return self.manifest.widths[: self._held.bases.count]

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.manifest.classes)

    @property
    def image(self) -> tuple[int, ...]:
        """Height, width and channels of the images it takes, or the shape of other samples."""
        return tuple(self.manifest.image)

    @property
    def backend(self) -> str:
        """What it runs on: "onnx" or "torch"."""
        return self._held.bases.backend

    @property
    def dual(self) -> bool:
        """Whether it has a robustness dial."""
        return self.manifest.net.dual

    def __repr__(self) -> str:
        net, dials = self.manifest.net.name, "width and robustness" if self.dual else "width"
        return f"Model({net}, {len(self.classes)} classes, widths up to {self.widths[-1]}, dials: {dials})"

    # --- the dial ---

    def set(self, *, width: WidthLike | None = None, robust: float | None = None) -> None:
        """Turn the dial for all calls that do not say otherwise; what is not given stays as it is."""
        with self._turning:
            self.default = self._turned(self.default, width, robust)

    @contextmanager
    def dial(self, *, width: WidthLike | None = None, robust: float | None = None) -> Iterator["Model"]:
        """Turn the dial for the calls inside the `with`, of this thread or task alone."""
        outside = _dials.get({})
        token = _dials.set({**outside, id(self): self._turned(self.current, width, robust)})
        try:
            yield self
        finally:
            _dials.reset(token)

    @property
    def current(self) -> Dial:
        """The dial as it stands here."""
        return _dials.get({}).get(id(self), self.default)

    # --- predictions ---

    def __call__(
        self, x: "ArrayLike | Tensor", width: WidthLike | None = None, robust: float | None = None
    ) -> "Tensor":
        """Logits (n, class): the mean of those of the bases; a numpy array where PyTorch is not installed."""
        held, bases, strength = self._chosen(width, robust)
        return as_tensor(self.mean(held.votes(0, bases, self._samples(x), strength)))

    def mean(self, votes: Any) -> Any:
        """Logits (n, class) of the votes of the first bases, (base, n, class): their mean, by the bundle's shares."""
        if len(votes) == 1:
            return votes[0]
        shares = self.manifest.shares(len(votes))
        return sum(share * vote for share, vote in zip(shares, votes, strict=True)) if shares else votes.mean(0)

    def logits_by_base(
        self, x: "ArrayLike | Tensor", width: WidthLike | None = None, robust: float | None = None
    ) -> "Tensor":
        """The votes of the single bases, (base, n, class)."""
        held, bases, strength = self._chosen(width, robust)
        return as_tensor(held.votes(0, bases, self._samples(x), strength))

    def predict(
        self,
        x: "ArrayLike | Tensor",
        *,
        width: WidthLike | None = None,
        robust: float | None = None,
        deadline_ms: float | None = None,
        confidence: float | None = None,
    ) -> Prediction:
        """Classes and probabilities; `width` is the most that is used.

        With a deadline, bases are added in order while there is time; the first is always run. With a confidence,
        an image gets no more bases once its best class leads the second by that much probability.
        """
        began = perf_counter()
        held, bases, strength = self._chosen(width, robust)
        deadline = inf if deadline_ms is None else began + 1e-3 * checked_deadline(deadline_ms)
        margin = inf if confidence is None else checked_confidence(confidence)
        samples = self._samples(x)
        if deadline == margin == inf:
            logits, used = self.mean(held.votes(0, bases, samples, strength)), np.full(len(samples), bases)
        else:
            logits, used = gather(
                lambda start, stop, some: held.votes(start, stop, some, strength),
                bases,
                samples,
                mean=self.mean,
                pace=held.pace,
                deadline=deadline,
                confidence=margin,
            )
        shares = probabilities(logits)
        return Prediction(shares.argmax(-1), shares, used, 1e3 * (perf_counter() - began))

    def bytes(self, width: WidthLike | None = None) -> int:
        """Memory of a width: its weights, and the most that lives at once while one image runs."""
        held, bases, _ = self._chosen(width, None)
        return held.bases.bytes(bases)

    def mix(self, width: WidthLike | None = None) -> "Mix":
        """The bases of a width as a module: images (n, channel, height, width) in [0, 1] to logits (base, n, class).

        It needs PyTorch and a net of ours; gradients flow through it to the images.
        """
        held, bases, _ = self._chosen(width, None)
        return self._in_torch(held).mix(0, bases)

    # --- a device's own images ---

    @property
    def calibration(self) -> Calibration | None:
        """What it was calibrated on here, if it was."""
        return self._held.calibration

    def calibrate(self, x: "ArrayLike | Tensor", *, attack: "Attack | None" = None) -> None:
        """Adapt the norms of all bases, and so of all widths, to unlabelled images of this device.

        Noisy norms are measured on attacked images, by the attack of training (7-step PGD) if no other is given; that
        needs PyTorch and a net of ours. Calls of other threads go on with the old statistics until it is done.
        """
        samples = self._checked(x)
        batches, graph = calibration_batches(samples), self.manifest.graph
        with self._changing:
            held, said = self._held, None
            if graph is not None and not graph.norms:
                raise UserError("this model has no batch norms, so there is nothing to calibrate")
            if graph is not None and held.bases.backend == "onnx" and not self.dual:
                from splitmix.runtime.onnx_bases import measured

                statistics = measured(graph, map(self.bundle.read_base, range(held.bases.count)), batches)
            else:
                statistics, said = self._measured_in_torch(held, batches, attack)
            found = Calibration(statistics, len(samples), said)
            self._held = Held.of(held.bases, found)

    def uncalibrate(self) -> None:
        """Back to the statistics of the bundle."""
        with self._changing:
            self._held = Held(self._held.bases.calibrated(None))

    def save_calibration(self, path: str | Path | None = None) -> Path:
        """Keep the calibration beside the bundle, or elsewhere; `load` takes it up if asked to."""
        file, calibration = self.bundle.path / FILE if path is None else Path(path), self.calibration
        if calibration is None:
            raise UserError("the model has not been calibrated here; call calibrate(images) first")
        write_calibration(file, calibration, self.manifest)
        return file

    # --- inside ---

    def _turned(self, dial: Dial, width: WidthLike | None, robust: float | None) -> Dial:
        chosen = dial.width if width is None else self.atom * bases_of(width, self.atom, self._held.bases.count)
        return Dial(chosen, dial.robust if robust is None else self._strength(robust))

    def _chosen(self, width: WidthLike | None, robust: float | None) -> tuple[Held, int, float]:
        dial, held = self.current, self._held
        wanted, there = dial.width if width is None else width, held.bases.count
        bases = there if wanted is None else bases_of(wanted, self.atom, there)
        return held, bases, dial.robust if robust is None else self._strength(robust)

    def _strength(self, robust: float) -> float:
        return parse_dial(robust, there=self.dual)

    def _samples(self, x: "ArrayLike | Tensor") -> NDArray[Any]:
        return to_net(self._checked(x))

    def _in_torch(self, held: Held) -> "TorchBases":
        """The same bases on PyTorch; if they run elsewhere, they are read once more and kept."""
        if not self._twins or self._twins[0] is not held:
            bases = held.bases
            if bases.backend != "torch":
                bases = open_bases(self.manifest, map(self.bundle.read_base, range(bases.count)), "torch")
                bases = bases.calibrated(held.calibration) if held.calibration else bases
            self._twins = (held, bases)
        return self._twins[1]  # type: ignore[return-value]

    def _measured_in_torch(
        self, held: Held, batches: list[NDArray[Any]], attack: "Attack | None"
    ) -> tuple[Arrays, str | None]:
        weights = self._in_torch(held).weights
        from splitmix.core.net import Net
        from splitmix.runtime.torch_bases import measured

        return measured(Net(self.manifest.build()), self.atom, weights, batches, attack)


def bases_of(width: WidthLike, atom: Width, there: int) -> int:
    """How many bases make up a width, if so many are there."""
    wanted = width if isinstance(width, Fraction) else parse_width(width)
    bases, rest = divmod(wanted.numerator * atom.denominator, wanted.denominator * atom.numerator)
    if not rest and 0 < bases <= there:  # as nearly always, and fractions take long to compare
        return bases
    check_multiple(parse_width(wanted), atom)
    raise UserError(f"width {wanted} needs {bases} bases but only {there} are here; widest: {atom * there}")
