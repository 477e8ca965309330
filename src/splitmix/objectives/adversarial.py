"""Adversarial training on dual norms (Algorithm 4), and its rival, once-for-all training with a drawn trade-off."""

from collections.abc import Sequence
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

    With `dials` each batch draws one of them, l, and is the adversarial training of weight l of the net that the dial l
    makes: so all that lies between the two norms is trained as well, and the weight is not asked for.
    """

    attack: Attack = field(default_factory=PGD)
    weight: float = 0.5
    loss: str = "plain"
    dual: bool = True
    dials: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float) or not 0 <= self.weight <= 1:
            raise UserError(f"adversarial weight {self.weight} is outside [0, 1]; 0 is plain training, 0.5 the paper's")
        if not isinstance(self.dual, bool):
            raise UserError(f"dual={self.dual!r} is neither true nor false; true trains two norms, false one")
        if not isinstance(self.loss, str) or self.loss not in LOSSES:
            raise unknown("loss", str(self.loss), LOSSES)
        if self.dials != ():
            object.__setattr__(self, "dials", _checked("dials", self.dials))
            if not self.dual or self.weight != 0.5:
                raise UserError("dials are drawn between two norms, and are weights: give no weight, and no dual=false")

    @property
    def needs(self) -> dict[str, bool]:
        return {"dual": True} if self.dual else {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """A round is judged as it is trained: by clean accuracy, and by that under the training attack."""
        if self.dials:
            return _both_ends(self.attack)
        robust = 1.0 if self.dual else 0.0
        trials = (Trial(1 - self.weight), Trial(self.weight, robust, self.attack))
        return tuple(trial for trial in trials if trial.share)

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        if self.dials:
            return _at_one_of(self.dials, self, forward, x, y, rng)
        if self.weight == 0:
            return self._clean(forward, x, y)
        if self.weight == 1:
            return self._adversarial(forward, x, y, rng)
        clean = self._clean(forward, x, y)
        return (1 - self.weight) * clean + self.weight * self._adversarial(forward, x, y, rng)

    def _clean(self, forward: Forward, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([self._loss(logits, y) for logits in forward(x)]).sum()

    def _adversarial(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        """Parts of one width are attacked and trained side by side, widths one after the other."""
        robust = 1.0 if self.dual else 0.0
        losses = []
        for place in range(len(forward.widths)):
            images = self.attack(forward.fixed(place, robust), x, y, rng)  # (base, batch, channel, height, width)
            losses.append(self._loss(forward(images, robust, only=[place])[0], y))
        return torch.stack(losses).sum()

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(LOSSES[self.loss](logits, y), y)


LOSSES = {"plain": lambda logits, y: logits, "masked": mask_absent}


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
        object.__setattr__(self, "lambdas", _checked("lambdas", self.lambdas))

    @property
    def needs(self) -> dict[str, bool]:
        return {"film": True}

    @property
    def trials(self) -> tuple[Trial, ...]:
        return _both_ends(self.attack)

    def __call__(self, forward: Forward, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        return _at_one_of(self.lambdas, self, forward, x, y, rng)


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


def _at_one_of(
    dials: Sequence[float],
    settings: Adversarial | OnceForAll,
    forward: Forward,
    x: Tensor,
    y: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """Draw a dial, and train the net that it makes: adversarial training of that weight."""
    drawn = dials[int(torch.randint(len(dials), (), generator=rng))]
    train = Adversarial(settings.attack, weight=drawn, loss=settings.loss, dual=False)
    return train(AtDial(forward, drawn), x, y, rng)


def _both_ends(attack: Attack) -> tuple[Trial, ...]:
    """A round is judged at both ends of the dial: by clean accuracy, and by that under the training attack."""
    return (Trial(0.5, 0.0), Trial(0.5, 1.0, attack))


def _checked(name: str, dials: object) -> tuple[float, ...]:
    if not isinstance(dials, Sequence) or isinstance(dials, str) or not dials:
        raise UserError(f"{name} {dials!r} is no list of robustness dials; give some, such as [0, 0.2, 0.5, 1]")
    return tuple(map(parse_dial, dials))
