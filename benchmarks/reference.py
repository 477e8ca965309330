"""A plain reference to measure against: the round as one would first write it.

One process with all threads, stock `nn` layers, one base after the other, a stock DataLoader with a per-sample
transform, one optimizer over all bases of the client, and a merge that keeps every update until the end.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    """One client's images, as stock image sets give them: each becomes a PIL image, then a tensor as by ToTensor."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[i])
        pixels = torch.from_numpy(np.array(image, copy=True)).permute(2, 0, 1).contiguous()
        return pixels.float().div(255), int(self.labels[i])


def plain_round(
    bases: list[nn.Module],
    clients: Sequence[tuple[np.ndarray, np.ndarray]],
    assigned: Sequence[Sequence[int]],
    *,
    batch: int,
    lr: float,
) -> None:
    """Train every client's bases in turn and average what comes back into `bases`."""
    updates: list[tuple[int, int, dict[str, Tensor]]] = []
    for (images, labels), chosen in zip(clients, assigned, strict=True):
        loader = DataLoader(Images(images, labels), batch_size=batch, shuffle=True)
        local = _copies(bases, chosen)
        optimizer = torch.optim.SGD(
            [p for net in local for p in net.parameters()], lr=lr, momentum=0.9, weight_decay=5e-4
        )
        for x, y in loader:
            optimizer.zero_grad()
            for net in local:
                nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        updates += [(base, len(labels), net.state_dict()) for base, net in zip(chosen, local, strict=True)]
    for number, base in enumerate(bases):
        mine = [(samples, state) for which, samples, state in updates if which == number]
        total = sum(samples for samples, _ in mine)
        if mine:
            base.load_state_dict(
                {name: sum(s * state[name] for s, state in mine) / total for name in base.state_dict()}
            )


def _copies(bases: list[nn.Module], chosen: Sequence[int]) -> list[nn.Module]:
    from copy import deepcopy

    return [deepcopy(bases[i]).train() for i in chosen]
