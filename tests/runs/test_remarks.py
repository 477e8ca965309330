"""What is said of a user's own net before it trains: that its bases are tiny, or that no device will run it."""

import numpy as np
import pytest
import torch
from torch import nn

import splitmix
from helpers.plain_nets import resnet
from splitmix.core.errors import UserError
from splitmix.runs.remarks import remarks

SETTINGS = {"rounds": 1, "budgets": "1/4 1", "atom": "1/4", "workers": 1, "progress": False}


def trained(build, **settings):
    """A run of one round on noise."""
    rng, y = np.random.default_rng(0), np.arange(48) % 3
    arrays = rng.random((48, 8, 8, 3)), y, rng.random((12, 8, 8, 3)), y[:12]
    task = splitmix.task_from_arrays({"here": arrays}, clients=2)
    return splitmix.train(task, build, **{**SETTINGS, **settings})


def perceptron(units):
    return lambda w: nn.Sequential(
        nn.Flatten(), nn.Linear(192, int(units * w)), nn.ReLU(), nn.Linear(int(units * w), 3)
    )


class Odd(nn.Module):
    """Wide enough, but with a step of its own."""

    def __init__(self, width, step):
        super().__init__()
        self.maps, self.step, self.head = nn.Conv2d(3, int(16 * width), 3), step, nn.Linear(int(16 * width), 3)

    def forward(self, x):
        return self.head(self.step(self.maps(x)).mean((2, 3)))


def test_a_small_base_is_told_by_its_narrowest_layer():
    assert list(remarks(trained(perceptron(64)).setup)) == []  # 16 units are enough
    (line,) = remarks(trained(perceptron(32)).setup)
    assert line.startswith("a base of width 1/4 is small: its layer '1' has 8 units; a wider net, a larger atom")
    assert list(remarks(trained(perceptron(32), method="fedavg", budgets="1").setup)) == []
    (line,) = remarks(trained(lambda w: nn.Sequential(resnet(w), nn.Linear(3, 3)), atom="1/8").setup)
    assert "its layer '0.0' has 2 channels" in line


@pytest.mark.parametrize("step", [lambda x: x.cumsum(1), lambda x: x + torch.randn(len(x), 1, 1, 1)])
def test_what_no_device_runs_is_told_before_training_and_trains(step, tmp_path, capsys):
    made = trained(lambda width: Odd(width, step), progress=True)
    told = capsys.readouterr().err.splitlines()
    with pytest.raises(UserError) as refused:
        made.bundle(tmp_path / "b")
    assert told.count(str(refused.value)) == 1
