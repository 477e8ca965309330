"""Adversarial training: half of the loss on the images as they are, half on images made to fool the net."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError, unknown
from splitmix.core.objective import Attack, Forward, Objective, Trial
from splitmix.objectives.losses import cross_entropy, mask_absent


@dataclass(frozen=True)
class Adversarial(Objective):
    """(1 - weight) * clean loss + weight * adversarial loss, summed over the parts (Algorithm 4).

    The clean images train the clean norms, the adversarial ones the noisy norms. Each part has adversarial images of
    its own, made against its noisy norms in eval mode by the unmasked cross-entropy. With `dual=False` all images go
    through one set of norms, the clean batch first: plain adversarial training. Weight 0 makes no adversarial images,
    weight 1 uses no clean ones.
    """

    attack: Attack = field(default_factory=PGD)
    weight: float = 0.5
    loss: str = "plain"
    dual: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float) or not 0 <= self.weight <= 1:
            raise UserError(f"adversarial weight {self.weight} is outside [0, 1]; 0 is plain training, 0.5 the paper's")
        if not isinstance(self.dual, bool):
            raise UserError(f"dual={self.dual!r} is neither true nor false; true trains two norms, false one")
        if not isinstance(self.loss, str) or self.loss not in LOSSES:
            raise unknown("loss", str(self.loss), LOSSES)

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

            def predict(images: Tensor, only: tuple[int, ...] = (place,)) -> Tensor:
                return forward(images, robust, training=False, only=only)[0]

            images = self.attack(predict, x, y, rng)  # (base, batch, channel, height, width)
            losses.append(self._loss(forward(images, robust, only=[place])[0], y))
        return torch.stack(losses).sum()

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(LOSSES[self.loss](logits, y), y)


LOSSES = {"plain": lambda logits, y: logits, "masked": mask_absent}
