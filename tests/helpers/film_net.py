"""The tiny net with norms that are told how robust to be, and weights for nets with such norms."""

import torch

from helpers.toys import Tiny
from splitmix.nets.layers import FilmNorm, scaled


class FilmTiny(Tiny):
    """The tiny net with conditioned norms."""

    def __init__(self, width):
        super().__init__(width)
        channels = scaled(8, width)
        self.norm1, self.norm2 = FilmNorm(channels), FilmNorm(channels)


def with_film(net, layout, *, tracked=True):
    """Weights in float64 whose FiLM, if they have any, does something, as after training."""
    weights = {name: value.double() for name, value in net.init(layout, seed=0, tracked=tracked).items()}
    rng = torch.Generator().manual_seed(2)
    for name in weights:
        if ".film." in name:
            weights[name] = 0.3 * torch.randn(weights[name].shape, dtype=torch.float64, generator=rng)
    return weights
