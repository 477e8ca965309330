"""Once-for-all adversarial training (OAT): one net, told by its dial which mean of two losses it is trained for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.objective import Attack, Forward, Objective, Trial
from splitmix.core.width import Width, parse_dial
from splitmix.objectives.adversarial import Adversarial


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


def _checked(lambdas: object) -> tuple[float, ...]:
    if not isinstance(lambdas, Sequence) or isinstance(lambdas, str) or not lambdas:
        raise UserError(f"lambdas {lambdas!r} is no list of robustness dials; give some, such as [0, 0.2, 0.5, 1]")
    return tuple(map(parse_dial, lambdas))
