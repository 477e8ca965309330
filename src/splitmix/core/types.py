"""The words of the system: widths, parts, layouts, profiles, plans, and what travels between server and client."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from splitmix.core.objective import Attack
from splitmix.core.width import Width, parse_width

Weights = dict[str, Tensor]  # name -> (base, ...): every entry of a net, stacked over bases


@dataclass(frozen=True, order=True)
class Part:
    """A runnable net inside the server's weights: a window of `width` of one base, `shift` channels from its start."""

    base: int
    width: Width
    shift: int = 0

    def __hash__(self) -> int:  # that of a fraction takes a power; parts are looked up all the time
        return hash((self.base, self.width.numerator, self.width.denominator, self.shift))


@dataclass(frozen=True)
class Layout:
    """How the server's weights are made up: `count` nets of one width, which may hold narrower nets to be served."""

    count: int
    width: Width
    nested: tuple[Width, ...] = ()  # the narrower ones are leading windows, with norm statistics of their own
    moving: bool = False  # in training windows begin anywhere, so each width has statistics for every channel


@dataclass(frozen=True)
class Profile:
    """What the server knows of a client."""

    client: int
    budget: Width
    samples: int


@dataclass(frozen=True)
class Setting:
    """What a method is made for: the width of a base, the budgets of the clients, the seed of its draws, the rounds."""

    atom: Width
    budgets: tuple[Width, ...]
    seed: int
    rounds: int = 0  # 0: not known, as where only the costs of a round are asked for


@dataclass(frozen=True)
class Plan:
    """Local training settings; `lr` is that of the first round."""

    lr: float = 0.1
    epochs: int = 1
    batch: int = 32
    momentum: float = 0.9
    weight_decay: float = 5e-4
    precision: str = "full"  # or "mixed": bfloat16 where it is safe
    norm_rate: float = 1.0  # learning rate of the norms' affines, as a multiple of `lr`
    optimizer: str = "sgd"  # or "adam", "adamw", which have `betas` in place of `momentum`
    betas: tuple[float, ...] = (0.9, 0.999)
    proximal: float = 0.0  # how much of its way a client is drawn back (FedProx)

    def computing_on(self, device: torch.device) -> AbstractContextManager[object]:
        """Within it, losses are computed in the plan's precision."""
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "mixed" else nullcontext()


@dataclass(frozen=True)
class Train:
    """Job: train these parts on the client's data."""

    round: int
    client: int
    parts: tuple[Part, ...]
    plan: Plan
    seed: int
    local_norms: bool = False  # nothing of the norms leaves the client
    run: str = ""  # which run this is; the answer must name it again


@dataclass(frozen=True)
class Update:
    """Answer to `Train`: the parts' covering weights after local training, and how many samples they saw."""

    round: int
    client: int
    parts: tuple[Part, ...]
    weights: Weights
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1  # how often its samples count in the mean: the server's decision, whatever the client says
    run: str = ""


@dataclass(frozen=True)
class Question:
    """How a model is scored: on which images, with which norm statistics, at which dial, under which attack."""

    split: str = "test"  # train, val or test
    norm: str = "stored"  # stored statistics if there are any, else the batch's own; or "client": calibrate first
    batch: int = 128
    robust: float = 0.0
    local_norms: bool = False
    attack: Attack | None = None  # white box: made against each mix at this very dial, unless there is a surrogate
    surrogate: tuple[tuple[Part, ...], float] | None = None  # black box: the mix and dial that the attack knows instead
    images: int | None = None  # at most so many of each client, drawn by the seed
    seed: int = 0
    noise: Attack | None = None  # makes the training images on which a client calibrates its noisy norms
    half: int = 0  # 1 or 2: only every second image, from the first or from the second on


@dataclass(frozen=True)
class Score:
    """Job: count the right answers of each mix (a tuple of parts whose logits are averaged; a part may come twice)."""

    client: int
    mixes: tuple[tuple[Part, ...], ...]
    question: Question = Question()


@dataclass(frozen=True)
class Tally:
    """Answer to `Score`: right answers per mix, out of `samples`."""

    client: int
    correct: tuple[int, ...]
    samples: int

    def accuracy(self, mix: int) -> float:
        """The share of right answers of the mix at a place."""
        return self.correct[mix] / self.samples


@dataclass(frozen=True)
class Calibrate:
    """Job: average the batch statistics of every norm over the client's training images."""

    client: int
    parts: tuple[Part, ...]
    batch: int = 128
    dials: tuple[float, ...] = (0.0,)  # each norm is measured at the first of them that touches it
    noise: Attack | None = None  # at dials above 0, on images that this makes of the client's


Job = Train | Score | Calibrate


@dataclass(frozen=True)
class Missing:
    """In place of an answer that did not come, to any job: the client was late, died, or could not do it."""

    client: int
    reason: str  # a few words, such as "late"


def at_width(width: Width, name: str) -> str:
    """Under which name weights keep an entry of a nested width, beside the same entry of the whole net.

    >>> at_width(Width(1, 8), "norm1.clean.running_mean")
    '1/8:norm1.clean.running_mean'
    """
    return f"{width}:{name}"


def nested_width(name: str) -> Width | None:
    """The nested width that an entry belongs to; None for those of the whole net."""
    width, colon, _ = name.partition(":")
    return parse_width(width) if colon else None


def plain_name(name: str) -> str:
    """The entry's name in the net itself, whatever width it belongs to."""
    return name.rpartition(":")[2]


def repeated(mix: tuple[Part, ...], times: tuple[int, ...]) -> tuple[Part, ...]:
    """A mix in which each part is named so many times: it then counts as often in the mean.

    >>> [part.base for part in repeated((Part(3, Width(1, 8)), Part(0, Width(1, 8))), (1, 2))]
    [3, 0, 0]
    """
    return tuple(part for part, count in zip(mix, times, strict=True) for _ in range(count))


def group_by_width(parts: Iterable[Part]) -> dict[tuple[Width, int], tuple[Part, ...]]:
    """Parts that can run stacked: same width, same shift."""
    groups: dict[tuple[Width, int], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.width, part.shift), []).append(part)
    return {key: tuple(group) for key, group in groups.items()}
