"""AutoAttack: four strong attacks one after the other, each on what the others left (Croce and Hein, ICML 2020)."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splitmix.attacks.pgd import BALLS, check_eps, in_pixels
from splitmix.core.errors import UserError, unknown
from splitmix.core.objective import Predict, check_labels

FEW = ("apgd-ce", "fab", "square")  # below four classes, which targeted attacks (apgd-t, fab-t) need
NORMS = {"linf": "Linf", "l2": "L2"}


@dataclass(frozen=True)
class AutoAttack:
    """The standard ensemble, by the package pyautoattack: no settings but the ball, and seconds for each image.

    >>> print(AutoAttack().name)
    AutoAttack (standard ensemble), L-inf, eps 8/255
    """

    eps: float = 8 / 255
    norm: str = "linf"

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise unknown("norm", str(self.norm), NORMS)
        check_eps(self.eps)

    @property
    def name(self) -> str:
        return f"AutoAttack (standard ensemble), {BALLS[self.norm].label}, eps {in_pixels(self.eps)}"

    @property
    def weak(self) -> bool:
        return False

    def __call__(self, predict: Predict, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        """Adversarial images for one model, (batch, channel, height, width)."""
        with torch.inference_mode(False):
            with torch.no_grad():
                classes = predict(x[:2]).shape[-1]
            check_labels(y, classes)
            if self.eps == 0:
                return x
            seed = int(torch.randint(2**31, (), generator=rng))
            ensemble = self._ensemble(predict, classes, seed)
            with torch.random.fork_rng(devices=[]):  # the package seeds PyTorch's own generator
                found: Tensor = ensemble.run_standard_evaluation(x.contiguous(), y, batch_size=len(x))[0]
            return found

    def _ensemble(self, predict: Predict, classes: int, seed: int) -> Any:
        try:
            import pyautoattack
        except ImportError:
            raise UserError('autoattack needs pyautoattack; run: pip install "splitmix[attacks]"') from None
        logging.getLogger("auto-attack").setLevel(logging.ERROR)  # it talks about each batch
        settings: dict[str, Any] = {"norm": NORMS[self.norm], "eps": self.eps, "seed": seed}
        if classes < 4:
            return pyautoattack.AutoAttack(Served(predict), version="custom", attacks=list(FEW), **settings)
        made = pyautoattack.AutoAttack(Served(predict), version="standard", **settings)
        made.apgd_targeted.n_target_classes = made.fab.n_target_classes = min(9, classes - 1)
        return made


class Served(nn.Module):
    """A model as the package wants it."""

    def __init__(self, predict: Predict) -> None:
        super().__init__()
        self.predict = predict

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(x)
