"""The contract with any plain net: uneven clients train it, at default settings, as well as clients without budgets."""

import numpy as np
import pytest
import torch
from torch import nn

import splitmix
from helpers.plain_nets import IMAGE, PLAIN_NETS, SIGNAL, TOKENS, resnet
from splitmix.attacks.pgd import PGD
from splitmix.runs.records import main_scores

pytestmark = pytest.mark.slow  # whole runs
NOISE = {"resnet": 0.2, "mobilenet": 0.3, "group-norm": 0.1, "mlp": 1.0, "signal": 1.5, "transformer": 0.6}
ROWS = {name: 480 if name == "group-norm" else 240 for name in PLAIN_NETS}  # what it takes to learn the task
POINTS = 0.03  # that uneven budgets may cost


def shape_of(name):
    """Of an array's samples: images have their channels last."""
    shape = PLAIN_NETS[name][1]
    return (*shape[1:], shape[0]) if shape == IMAGE else shape


def noisy(name, count, seed):
    """Samples of three classes: a pattern for each, under noise."""
    shape = shape_of(name)
    patterns, rng = np.random.default_rng(7).random((3, *shape)), np.random.default_rng(seed)
    labels, noise = np.arange(count) % 3, NOISE[name] * rng.standard_normal((count, *shape))
    x = np.clip(patterns[labels] + noise, 0, 1) if len(shape) == 3 else 4 * (patterns[labels] - 0.5) + noise
    return x.astype(np.float32).reshape(count, *(shape if len(shape) == 3 else (-1,))), labels


def build_of(name):
    """The net itself; what is no image and no table comes as a row."""
    build, shape = PLAIN_NETS[name]
    return (lambda width: nn.Sequential(nn.Unflatten(1, shape), build(width))) if shape in (SIGNAL, TOKENS) else build


@pytest.mark.parametrize("name", PLAIN_NETS)
def test_uneven_clients_train_it_as_well_as_clients_without_budgets(name):
    task = splitmix.task_from_arrays({"here": (*noisy(name, ROWS[name], 0), *noisy(name, 150, 1))}, clients=4)
    quiet = {"workers": 1, "progress": False}
    uneven = splitmix.train(task, build_of(name), **quiet)
    free = splitmix.train(task, build_of(name), method="fedavg", budgets="1", **quiet)
    (alone,) = main_scores(free.result)
    assert alone["accuracy"] > 0.85  # there is something to lose
    assert main_scores(uneven.result)[-1]["accuracy"] >= alone["accuracy"] - POINTS


def tempting(count, seed):
    """Classes by their brightness, which is unsure, and by a faint texture, which is sure and which an attack takes."""
    textures, rng = np.random.default_rng(7).choice([-1.0, 1.0], (3, 8, 8, 3)), np.random.default_rng(seed)
    labels = np.arange(count) % 3
    light = 0.3 + 0.1 * labels + 0.05 * rng.standard_normal(count)
    pixels = light[:, None, None, None] + 0.05 * textures[labels] + 0.03 * rng.standard_normal((count, 8, 8, 3))
    return np.clip(pixels, 0, 1).astype(np.float32), labels


def test_its_dial_makes_it_robust():
    x, y = tempting(240, 11)
    task = splitmix.task_from_arrays({"here": (*tempting(240, 10), x, y)}, clients=2)
    settings = {"objective": {"name": "adversarial", "steps": 3}, "norm": "post", "norm_rate": 10, "rounds": 16}
    made = splitmix.train(task, resnet, seed=2, atom="1/4", budgets="1/2 1", workers=1, progress=False, **settings)
    images, labels = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y)
    accurate, between, robust = (attacked(made.module(1, dial), images, labels) for dial in (0.0, 0.5, 1.0))
    assert accurate + 0.05 < robust
    assert accurate < between <= robust + 0.01


def attacked(module, x, y):
    """Accuracy under PGD that knows the module."""
    return (module(PGD(steps=10)(module, x, y, torch.Generator().manual_seed(0))).argmax(-1) == y).float().mean().item()
