"""What our nets are made of: a convolution or a linear map, and the norm, pooling and ReLU that stand behind it."""

from torch import Tensor, nn
from torch.nn import functional as F


class Stages:
    """Layer by layer, by PyTorch."""

    def conv(
        self, x: Tensor, conv: nn.Module, norm: nn.Module, robust: float | Tensor, *, pool: bool = False
    ) -> Tensor:
        """ReLU of a normed convolution; pooling before it gives the same values and a quarter of its work."""
        y: Tensor = norm(conv(x), robust)
        return F.relu_(F.max_pool2d(y, 2) if pool else y)

    def linear(self, x: Tensor, linear: nn.Module, norm: nn.Module, robust: float | Tensor) -> Tensor:
        """ReLU of a normed linear map."""
        return F.relu_(norm(linear(x), robust))
