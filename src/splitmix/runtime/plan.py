"""Which dial to set: the best one that keeps to limits on time, memory, work and accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer

from splitmix.core.errors import UserError, unknown
from splitmix.core.width import Width, is_number
from splitmix.runtime.model import Model
from splitmix.runtime.probe import Measured, probe

if TYPE_CHECKING:
    from splitmix.core.net import Build

PREFERENCES = ("clean", "robust", "latency")


@dataclass(frozen=True)
class Limits:
    """What a device can afford and a user expects; None is no limit."""

    max_ms: float | None = None  # of one image
    max_mb: float | None = None  # memory: weights, and what lives while one image runs
    max_macs: float | None = None  # of one image
    min_clean: float | None = None  # accuracy, from 0 to 1: the lower end of its interval
    min_robust: float | None = None  # the same under the bundle's attack

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            top = 1 if name.startswith("min_") else math.inf
            if not is_number(value) or not 0 <= value <= top or value == math.inf:
                allowed = "a share from 0 to 1" if top == 1 else "a number from 0 up"
                raise UserError(f"{name} {value!r} is no limit; give {allowed}")

    def given(self) -> dict[str, float]:
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


class DialOption(BaseModel):
    """A dial and what it promises: accuracies are the lower ends of what was measured."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    width: Annotated[Width, PlainSerializer(str, return_type=str)]
    robust: float
    bases: int
    clean: float
    attacked: float | None
    ms: float
    mb: float
    macs: int
    parameters: int

    def value(self, limit: str) -> float:
        """What a limit is compared with; an accuracy that nobody measured promises nothing."""
        known = {"ms": self.ms, "mb": self.mb, "macs": self.macs, "clean": self.clean, "robust": self.attacked or 0.0}
        return known[limit.partition("_")[2]]

    def excess(self, limit: str, bound: float) -> float:
        """By which share of it a limit is missed; 0 or less if it is kept."""
        over = self.value(limit) - bound if limit.startswith("max_") else bound - self.value(limit)
        return over / max(bound, 1e-9)


class DialPlan(BaseModel):
    """The dial to set. If nothing keeps all limits, the nearest to it, and what each limit would have to be."""

    model_config = ConfigDict(frozen=True)

    fits: bool
    option: DialOption
    binding: tuple[str, ...]  # limits that keep a better dial away, or that are missed
    relax: dict[str, float]  # limits that are missed, and what to set them to
    options: tuple[DialOption, ...]  # all that was looked at

    def __str__(self) -> str:
        """The dial, what it promises, and which limits decided."""
        chosen = self.option
        robust = "" if chosen.attacked is None else f", {chosen.attacked:.1%} under attack"
        said = (
            f"width {chosen.width}, robust {chosen.robust:g}: at least {chosen.clean:.1%} clean{robust}, "
            f"{chosen.ms:.2f} ms, {chosen.mb:.2f} MB, {chosen.macs / 1e6:.2f}M MACs"
        )
        if self.fits:
            why = f"; what binds is {' and '.join(map(flag, self.binding))}" if self.binding else "; no limit binds"
            return said + why
        asked = " and ".join(f"{flag(name)} {_shown(value)}" for name, value in self.relax.items())
        return f"nothing keeps to these limits; the nearest is {said}; to allow it, relax to {asked}"


def plan(
    model: Model, limits: Limits, *, prefer: str = "clean", measured: Sequence[Measured] | None = None
) -> DialPlan:
    """The best dial within the limits, from the bundle's measured table and from what this device needs for it."""
    if prefer not in PREFERENCES:
        raise unknown("preference", prefer, PREFERENCES)
    options = all_options(model, measured or probe(model))
    if (limits.min_robust is not None or prefer == "robust") and all(o.attacked is None for o in options):
        raise UserError(
            "this bundle was never measured under attack; measure the run with splitmix eval RUN --robust ... "
            "--attack ... and bundle it again"
        )
    bounds = limits.given()
    best = _best(options, bounds, prefer)
    if best is not None:
        binding = _binding(options, bounds, prefer, best)
        return DialPlan(fits=True, option=best, binding=binding, relax={}, options=options)
    nearest = min(options, key=lambda o: (_missed(o, bounds), _rank(o, prefer)))
    relax = {name: _rounded(name, nearest.value(name)) for name, b in bounds.items() if nearest.excess(name, b) > 0}
    return DialPlan(fits=False, option=nearest, binding=tuple(relax), relax=relax, options=options)


def all_options(model: Model, measured: Sequence[Measured]) -> tuple[DialOption, ...]:
    """Every dial of the bundle's table whose bases are here."""
    times = {row.width: row for row in measured}
    options = []
    for row in model.manifest.table.rows:
        width = Width(row.width)
        if width not in times:
            continue
        priced, here = model.manifest.cost(width), times[width]
        options.append(
            DialOption(
                width=width,
                robust=row.robust,
                bases=priced.bases,
                clean=row.clean if row.clean_low is None else row.clean_low,
                attacked=row.attacked if row.attacked_low is None else row.attacked_low,
                ms=here.ms,
                mb=here.mb,
                macs=priced.macs,
                parameters=priced.parameters,
            )
        )
    if not options:
        raise UserError(
            "the bundle has no measured accuracy for the widths that are here; measure the run and bundle it"
        )
    return tuple(options)


def bases_that_fit(build: "Build", atom: Width, image: tuple[int, ...], *, max_mb: float, batch: int = 32) -> int:
    """How many bases a client can train at once in so much memory; see `training_bytes` for what is counted."""
    from splitmix.nets.cost import cost, training_bytes

    one = cost(build, atom, image)
    return min(int(1 / atom), int(1e6 * max_mb // training_bytes(one.parameters, one.activations, batch)))


def flag(limit: str) -> str:
    """A limit as it is given on the command line.

    >>> flag("max_ms")
    '--max-ms'
    """
    return f"--{limit.replace('_', '-')}"


def _best(options: Sequence[DialOption], bounds: dict[str, float], prefer: str) -> DialOption | None:
    fitting = [o for o in options if all(o.excess(name, bound) <= 0 for name, bound in bounds.items())]
    return min(fitting, key=lambda o: _rank(o, prefer), default=None)


def _binding(options: Sequence[DialOption], bounds: dict[str, float], prefer: str, best: DialOption) -> tuple[str, ...]:
    """Limits each of which alone keeps a better dial away; if it takes several of them to do so, those several."""
    without = {name: {key: bounds[key] for key in bounds if key != name} for name in bounds}
    alone = tuple(name for name, fewer in without.items() if _best(options, fewer, prefer) != best)
    free = _best(options, {}, prefer)
    return alone or tuple(name for name, bound in bounds.items() if free and free.excess(name, bound) > 0)


def _rank(option: DialOption, prefer: str) -> tuple[Any, ...]:
    """Smaller is better: what is preferred, then the other accuracy, then the time."""
    clean, robust = -option.clean, -(option.attacked or 0.0)
    orders = {
        "clean": (clean, robust, option.bases),
        "robust": (robust, clean, option.bases),
        "latency": (option.bases, clean, robust),
    }
    return (*orders[prefer], option.robust)


def _missed(option: DialOption, bounds: dict[str, float]) -> float:
    return sum(max(0.0, option.excess(name, bound)) for name, bound in bounds.items())


def _rounded(limit: str, value: float) -> float:
    """A limit that the value keeps, with three digits."""
    if not value:
        return 0.0
    scale = 10 ** (math.floor(math.log10(value)) - 2)
    towards = math.ceil if limit.startswith("max_") else math.floor
    return float(f"{towards(value / scale) * scale:.6g}")


def _shown(value: float) -> str:
    return f"{value:.3g}" if value < 1e6 else f"{value:.0f}"
