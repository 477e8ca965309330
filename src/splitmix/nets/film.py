"""Norms that are told how robust to be (FiLM): the net of once-for-all adversarial training.

A norm is followed by y = gamma(robust) * norm(x) + beta(robust), one gamma and beta for each channel, from a small net
on an encoding of the dial. Both maps are affine, so they are one norm whose affine depends on the dial: no pass over
the activations is added, and the work is done once for a batch, however many images it has.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitmix.core.width import parse_dial
from splitmix.nets.layers import BatchNorm, Norm, Rescale, norm_eps

CORNERS = (0.0, 0.1, 0.2, 0.3, 0.4, 1.0)  # dials with a code of their own: those that the paper trains
HIDDEN = 16  # more than corners, so that a gamma may take any value at each of them


def norms(width: Fraction, rescale_layers: Rescale, *, dual: bool, film: bool) -> Callable[[int], nn.Module]:
    """What builds the norms of a net from their channels: single or dual ones, or conditioned ones (always dual)."""
    eps, divisor = norm_eps(width, rescale_layers), float(width) if rescale_layers == "released" else 1.0
    kind: Callable[..., nn.Module] = FilmNorm if film else partial(Norm, dual=dual)
    return partial(kind, eps=eps, divisor=divisor)


class FilmNorm(nn.Module):
    """The clean norm at `robust=0`, its noisy twin above, each with an affine that depends on the dial.

    Nothing is blended, so any dial can be trained, and served with the statistics of a batch. The clean norm is reached
    by one batch in six only, which therefore counts six times in its running statistics: in the mean over clients they
    follow as fast as those of a norm that every batch reaches.
    """

    def __init__(self, channels: int, *, eps: float = 1e-5, divisor: float = 1.0) -> None:
        super().__init__()
        self.clean, self.noisy = (BatchNorm(channels, eps=eps, divisor=divisor) for _ in range(2))
        self.clean.momentum *= len(CORNERS)
        self.film = Film(channels)

    def forward(self, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        dial = float(robust)
        norm = self.clean if dial == 0 else self.noisy
        gamma, beta = self.film(encode(dial).to(x))
        return norm.normalised(x, (norm.weight * gamma).flatten(), (norm.bias * gamma + beta).flatten())


class Film(nn.Module):
    """Gamma and beta of every channel, from the code of a dial: h = LeakyReLU(A code + a), (1 + G h, B h).

    G and B start at 0: a fresh net is the net without FiLM. They need no biases, the affine of the norm is one. The
    entries have other names than those of layers, so that narrow nets start with the same ones: no sum in here grows
    with the width.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        bound = len(CORNERS) ** -0.5
        self.table = nn.Parameter(torch.empty(1, HIDDEN, len(CORNERS)).uniform_(-bound, bound))  # A
        self.offset = nn.Parameter(torch.empty(1, HIDDEN).uniform_(-bound, bound))  # a
        self.gamma = nn.Parameter(torch.zeros(1, channels, HIDDEN))  # G
        self.beta = nn.Parameter(torch.zeros(1, channels, HIDDEN))  # B

    def forward(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Both as (base, channel)."""
        hidden = F.leaky_relu((self.table * code).sum(-1) + self.offset).unsqueeze(1)  # (base, 1, hidden)
        return 1 + (self.gamma * hidden).sum(-1), (self.beta * hidden).sum(-1)


def encode(robust: float) -> Tensor:
    """The code of a dial: a unit vector at each of `CORNERS`, between two of them the straight line.

    The paper gives every trained dial one of several orthogonal codes, which beat the bare number. To a linear layer
    they are all alike: one is a rotation of another. Unit vectors are the simplest, and can be interpolated.

    >>> encode(0.25)
    tensor([0.0000, 0.0000, 0.5000, 0.5000, 0.0000, 0.0000])
    """
    dial = parse_dial(robust)
    place = max(i for i, corner in enumerate(CORNERS[:-1]) if corner <= dial)
    share = (dial - CORNERS[place]) / (CORNERS[place + 1] - CORNERS[place])
    code = [0.0] * len(CORNERS)
    code[place], code[place + 1] = 1 - share, share
    return torch.tensor(code)
