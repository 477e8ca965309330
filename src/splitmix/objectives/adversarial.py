"""Adversarial training on dual norms (Algorithm 4), and its rival, once-for-all training with a drawn trade-off."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError, unknown
from splitmix.core.objective import Attack, Forward, Objective, Predict, Trial
from splitmix.core.width import Width, parse_dial
from splitmix.objectives.losses import cross_entropy, mask_absent


@dataclass(frozen=True)
class Adversarial(Objective):
    """(1 - weight) * clean loss + weight * adversarial loss, summed over the parts (Algorithm 4).

    The clean images train the clean norms, the adversarial ones the noisy norms. Each part has adversarial images of
    its own, made against its noisy norms in eval mode by the unmasked cross-entropy. With `dual=False` all images go
    through one set of norms, the clean batch first: plain adversarial training. Weight 0 makes no adversarial images,
    weight 1 uses no clean ones.

    With `dials="drawn"` the net learns between its two norms as well: each batch draws two dials, clean images are seen
    at the lower, adversarial ones made and seen at the higher. The nearer a dial is to an end, the more it sees of that
    end's images.
    """

    attack: Attack = field(default_factory=PGD)
    weight: float = 0.5
    loss: str = "plain"
    dual: bool = True
    dials: str = "ends"

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float) or not 0 <= self.weight <= 1:
            raise UserError(f"adversarial weight {self.weight} is outside [0, 1]; 0 is plain training, 0.5 the paper's")
        if not isinstance(self.dual, bool):
            raise UserError(f"dual={self.dual!r} is neither true nor false; true trains two norms, false one")
        if not isinstance(self.loss, str) or self.loss not in LOSSES:
            raise unknown("loss", str(self.loss), LOSSES)
        if not isinstance(self.dials, str) or self.dials not in DIALS:
            raise unknown("dials", str(self.dials), DIALS)
        if self.dials != "ends" and not self.dual:
            raise UserError(f"dials={self.dials!r} needs two norms, and dual=false leaves one; give one of both")

    @property
    def needs(self) -> dict[str, bool]:
        return {"dual": True} if self.dual else {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """A round is judged as it is trained: by clean accuracy, and by that under the training attack."""
        robust = 1.0 if self.dual else 0.0
        trials = (Trial(1 - self.weight), Trial(self.weight, robust, self.attack))
        return tuple(trial for trial in trials if trial.share)

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        low, high = DIALS[self.dials](rng) if self.dual else (0.0, 0.0)
        if self.weight == 0:
            return self._clean(forward, x, y, low)
        if self.weight == 1:
            return self._adversarial(forward, x, y, rng, high)
        clean = self._clean(forward, x, y, low)
        return (1 - self.weight) * clean + self.weight * self._adversarial(forward, x, y, rng, high)

    def _clean(self, forward: Forward, x: Tensor, y: Tensor, robust: float) -> Tensor:
        return torch.stack([self._loss(logits, y) for logits in forward(x, robust)]).sum()

    def _adversarial(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator, robust: float) -> Tensor:
        """Parts of one width are attacked and trained side by side, widths one after the other."""
        losses = []
        for place in range(len(forward.widths)):
            images = self.attack(forward.fixed(place, robust), x, y, rng)  # (base, batch, channel, height, width)
            losses.append(self._loss(forward(images, robust, only=[place])[0], y))
        return torch.stack(losses).sum()

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(LOSSES[self.loss](logits, y), y)


def drawn_dials(rng: torch.Generator) -> tuple[float, float]:
    """Two dials, the lower first: uniform from -1/2 to 3/2, so that every other one is cut to an end."""
    low, high = (2 * torch.rand(2, generator=rng) - 0.5).clamp_(0, 1).sort().values.tolist()
    return low, high


LOSSES = {"plain": lambda logits, y: logits, "masked": mask_absent}
DIALS: dict[str, Callable[[torch.Generator], tuple[float, float]]] = {  # of clean and of adversarial images
    "ends": lambda rng: (0.0, 1.0),
    "drawn": drawn_dials,
}


@dataclass(frozen=True)
class OnceForAll(Objective):
    """(1 - l) * clean loss + l * adversarial loss, both at dial l, which is drawn for each batch among `lambdas`.

    This is adversarial training of weight l on the net that the dial l makes (Wang et al., NeurIPS 2020): the attack is
    made on that net too, l = 0 makes no adversarial images, l = 1 uses no clean ones. A lambda that is listed twice is
    drawn twice as often. It needs nets whose dial can be trained anywhere (`film=True`).
    """

    attack: Attack = field(default_factory=PGD)
    lambdas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 1.0)  # the paper's
    loss: str = "plain"

    def __post_init__(self) -> None:
        Adversarial(self.attack, loss=self.loss)  # refuses an unknown loss
        object.__setattr__(self, "lambdas", _checked(self.lambdas))

    @property
    def needs(self) -> dict[str, bool]:
        return {"film": True}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """A round is judged at both ends of the dial: by clean accuracy, and by that under the training attack."""
        return (Trial(0.5, 0.0), Trial(0.5, 1.0, self.attack))

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        drawn = self.lambdas[int(torch.randint(len(self.lambdas), (), generator=rng))]
        train = Adversarial(self.attack, weight=drawn, loss=self.loss, dual=False)
        return train(AtDial(forward, drawn), x, y, rng)


@dataclass(frozen=True)
class AtDial:
    """A forward whose dial is set: to those who run it, it is a net without one."""

    forward: Forward
    robust: float

    @property
    def widths(self) -> Sequence[Width]:
        return self.forward.widths

    def __call__(
        self, x: Tensor, robust: float = 0.0, *, training: bool = True, only: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        return self.forward(x, self.robust, training=training, only=only)

    def fixed(self, place: int, robust: float = 0.0) -> Predict:
        return self.forward.fixed(place, self.robust)


def _checked(lambdas: object) -> tuple[float, ...]:
    if not isinstance(lambdas, Sequence) or isinstance(lambdas, str) or not lambdas:
        raise UserError(f"lambdas {lambdas!r} is no list of robustness dials; give some, such as [0, 0.2, 0.5, 1]")
    return tuple(map(parse_dial, lambdas))
