"""Tokens and signals with nets of one's own: trained, served, and told where they do not fit."""

import numpy as np
import pytest
from torch import nn

import splitmix
from splitmix.core.errors import UserError
from splitmix.data.task import task_from_arrays

SETTINGS = {"rounds": 1, "clients": 2, "atom": "1/2", "budgets": "1/2 1", "workers": 1, "progress": False}
LABELS = np.arange(60) % 2
RNG = np.random.default_rng(0)


def words(width):
    features = int(16 * width)
    pool = nn.Sequential(nn.Flatten(), nn.Linear(12 * features, features), nn.BatchNorm1d(features), nn.ReLU())
    return nn.Sequential(nn.Embedding(99, features), pool, nn.Linear(features, 2))


def waves(width):
    channels = int(16 * width)
    layers = (nn.Conv1d(3, channels, 5), nn.BatchNorm1d(channels), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4 * channels, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("x", "build", "kind"),
    [
        (RNG.integers(0, 49, (60, 12)) + 50 * LABELS[:, None], words, "tokens"),
        (RNG.normal(size=(60, 3, 40)) + LABELS[:, None, None], waves, "signal"),
    ],
)
def test_tokens_and_signals_train_and_predict_with_a_net_of_ones_own(x, build, kind):
    model = splitmix.train((x, LABELS), build, data={"kind": kind}, **{**SETTINGS, "rounds": 4, "batch": 8})
    assert model.result["kind"] == kind
    assert model.result["scores"][-1]["accuracy"] > 0.8
    assert model.predict(x[:20], width="1/2").classes.shape == (20,)
    with pytest.raises(UserError, match="but the model takes"):
        model.predict(x[..., :5])
    assert model.predict(x[:0]).probabilities.shape == (0, 2)
    if kind == "tokens":
        with pytest.raises(UserError, match="a token among these is none that the net knows"):
            model.predict(x[:3] + 99)


def test_attacks_are_for_images():
    task = task_from_arrays({"a": (RNG.normal(size=(60, 3, 40)), LABELS)}, clients=2)
    with pytest.raises(UserError, match=r"attacks are made on images in \[0, 1\]"):
        splitmix.train(task, waves, objective={"name": "adversarial", "dual": False}, **SETTINGS)


def test_attacks_are_for_no_table_that_was_scaled(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(60)))
    with pytest.raises(UserError, match=r"attacks are made on images in \[0, 1\], but the task 't' has features"):
        splitmix.train(tmp_path / "t.csv", objective={"name": "adversarial", "dual": False}, **SETTINGS)


@pytest.mark.parametrize("part", [0, 2])  # of training, of testing
def test_a_token_that_the_net_does_not_know_is_told_before_training(part):
    parts = [RNG.integers(0, 99, (40, 12)), LABELS[:40], RNG.integers(0, 99, (20, 12)), LABELS[:20]]
    parts[part][7, 3] = 123
    with pytest.raises(UserError, match="whole numbers up to 123, for which an embedding needs 124 rows"):
        splitmix.train(tuple(parts), words, data={"kind": "tokens"}, **SETTINGS)


def test_tokens_that_were_not_said_to_be_tokens_are_told_so():
    ids = RNG.integers(0, 49, (60, 12))
    with pytest.raises(UserError, match=r"such as words, are data=\{kind=\"tokens\"\}"):
        splitmix.train((ids, LABELS), words, **SETTINGS)
