"""What every simulator is given to do, and how it is told when: a file, and one word a line. Needs NumPy and PyTorch.

A program of a peer trains one round at each `train` that it reads, and says so; at `score` it says how well it does.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stock_nets import digit_net, preresnet18, simple_cnn
from torch import Tensor, nn

NETS = {"simple_cnn": simple_cnn, "digit": digit_net, "preresnet18": preresnet18}
SCORED = 100  # test images a batch: norms without statistics of their own see the same neighbours everywhere


@dataclass(frozen=True)
class Work:
    """A federation to be simulated: the images, whose they are, who trains when, and what everybody starts from."""

    net: str
    width: float
    lr: float
    momentum: float
    weight_decay: float
    batch: int
    x: Tensor  # (n, height, width, channel), bytes
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    rows: Tensor  # (client, sample)
    cohorts: list[list[int]]  # of each round
    parts: list[list[list[int]]]  # of each round the bases of each client of its cohort; empty: one net for all
    start: list[dict[str, Tensor]]  # of each base, as a plain net has them

    @classmethod
    def read(cls, path: str | Path) -> "Work":
        with np.load(path, allow_pickle=False) as file:
            settings = json.loads(str(file["settings"]))
            start: list[dict[str, Tensor]] = [{} for _ in range(settings.pop("bases"))]
            for key in file.files:
                if key.startswith("start/"):
                    _, base, name = key.split("/", 2)
                    start[int(base)][name] = torch.from_numpy(file[key])
            arrays: dict[str, Any] = {
                key: torch.from_numpy(file[key]) for key in ("x", "y", "x_test", "y_test", "rows")
            }
        return cls(**settings, **arrays, start=start)

    def save(self, path: Path) -> None:
        names = ("net", "width", "lr", "momentum", "weight_decay", "batch", "cohorts", "parts")
        settings = {name: getattr(self, name) for name in names} | {"bases": len(self.start)}
        arrays: dict[str, Any] = {key: getattr(self, key).numpy() for key in ("x", "y", "x_test", "y_test", "rows")}
        for base, entries in enumerate(self.start):
            arrays |= {f"start/{base}/{name}": value.numpy() for name, value in entries.items()}
        np.savez(path, settings=json.dumps(settings), **arrays)

    def fresh(self, base: int = 0) -> nn.Module:
        """The plain net, as everybody starts."""
        net = NETS[self.net](self.width)
        net.load_state_dict(self.start[base])
        return net

    def images(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's images in [0, 1], (n, channel, height, width) in channels-last order, and labels."""
        rows = self.rows[client]
        return as_floats(self.x[rows]), self.y[rows]

    def accuracy(self, predict: Callable[[Tensor], Tensor]) -> float:
        """The share of the test images that are told right."""
        right = 0
        with torch.no_grad():
            for x, y in zip(self.x_test.split(SCORED), self.y_test.split(SCORED), strict=True):
                right += int((predict(as_floats(x)).argmax(-1) == y).sum())
        return right / len(self.y_test)

    def sgd(self, parameters: Any, lr: float | None = None) -> torch.optim.SGD:
        """What every client trains with, made anew for each."""
        rate = self.lr if lr is None else lr
        return torch.optim.SGD(parameters, lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)


@cache
def the_work() -> Work:
    """What the environment names, read once in every process."""
    return Work.read(os.environ["PEER_WORK"])


def as_floats(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).float() / 255


def words() -> Iterator[str]:
    """What there is to do, one word after another, until there is no more."""
    while word := sys.stdin.readline().strip():
        yield word


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def serve(
    train: Callable[[int], None], score: Callable[[], float], shares: Callable[[], dict[str, float]] = dict
) -> None:
    """Do what is asked for, round after round; at the end tell how well, and where a round's time went."""
    round = 0
    say(ready=True)
    for word in words():
        if word == "train":
            train(round)
            round += 1
            say(done=round)
        else:
            say(accuracy=score(), shares=shares())
