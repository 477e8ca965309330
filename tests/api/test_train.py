"""Training in a call, on one's own arrays and net: the model that it gives, and one sentence for each mistake."""

import re

import numpy as np
import pytest
import torch

import splitmix
from helpers.small_task import SETTINGS, small_task, striped_images
from helpers.toys import Tiny, plain_build
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.runtime.model import Prediction

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def model():
    """Trained on one's own arrays and net."""
    settings = {key: value for key, value in SETTINGS.items() if key not in ("net", "clients")}
    return splitmix.train(small_task(), plain_build, workers=1, progress=False, **{**settings, "rounds": 8})


def test_a_model_predicts_at_every_width(model):
    x, y = striped_images(40, seed=9)
    assert model.widths == (Width(1, 4), Width(1, 2), Width(3, 4), Width(1))
    assert model(x, "1/4").shape == (40, 3)
    assert model.predict(x, 0.5).classes.dtype == np.int64
    assert np.mean(model.predict(x).classes == y) > 0.6


def test_a_prediction_is_that_of_a_model_on_a_device(model):
    x, _ = striped_images(7, seed=9)
    found = model.predict(x, width="1/2")
    assert isinstance(found, Prediction)
    torch.testing.assert_close(torch.from_numpy(found.probabilities), model(x, "1/2").softmax(-1))
    assert (found.classes == found.probabilities.argmax(-1)).all()
    assert found.bases.tolist() == [2] * 7
    assert found.milliseconds > 0


def test_a_mix_is_the_mean_of_its_bases(model):
    x, _ = striped_images(5, seed=9)
    bases = [
        model.net.run(
            Width(1, 4), {n: v[[b]] for n, v in model.weights.items()}, torch.from_numpy(x).permute(0, 3, 1, 2) / 255
        )[0]
        for b in model.method.order[:2]
    ]
    torch.testing.assert_close(model(x, "1/2"), torch.stack(bases).mean(0))


def test_a_single_image_gets_the_same_answer_as_in_a_batch(model):
    x, _ = striped_images(12, seed=9)
    alone = torch.cat([model(x[i : i + 1], "1/2") for i in range(12)])
    torch.testing.assert_close(alone, model(x, "1/2"))


def test_bytes_whole_numbers_and_floats_are_the_same_image(model):
    x, _ = striped_images(6, seed=9)
    for same in (x.astype(int), x / 255, (x / 255).astype(np.float32), x.tolist()):
        torch.testing.assert_close(model(same), model(x))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((2, 28, 28, 1)), r"shape \(2, 28, 28, 1\) given, but the model takes \(n, 6, 6, 1\)"),
        (np.zeros((6, 6, 1)), r"shape \(6, 6, 1\) given"),
        (np.zeros((2, 1, 6, 6)), r"shape \(2, 1, 6, 6\) given"),
        (np.full((2, 6, 6, 1), "a"), "pixels of type <U1"),
        (np.full((2, 6, 6, 1), 256), "run from 256 to 256; give 0 to 255"),
    ],
)
def test_images_of_another_kind_are_one_sentence(model, images, words):
    with pytest.raises(UserError, match=words):
        model.predict(images)


@pytest.mark.parametrize("width", ["1/8", "3/8", 0.3, 2, 0, "wide"])
def test_a_width_that_cannot_be_mixed_is_one_sentence(model, width):
    with pytest.raises(UserError, match="width"):
        model.predict(striped_images(2)[0], width)


def test_a_run_of_ones_own_arrays_says_what_it_was(model):
    about = {key: model.result[key] for key in ("task", "data", "net")}
    assert about == {"task": "arrays", "data": "your own arrays", "net": "helpers.toys:plain_build"}


def test_ones_own_arrays_and_net_can_be_resumed(tmp_path):
    settings = {"out": tmp_path / "run", "progress": False, "workers": 1, "rounds": 1, "budgets": "1/2 1"}
    first = splitmix.train(small_task(), Tiny, **settings)
    again = splitmix.train(small_task(), Tiny, **settings, resume=True)
    x, _ = striped_images(9, seed=9)
    assert again.result == first.result
    assert torch.equal(again(x, "1/2"), first(x, "1/2"))
    with pytest.raises(UserError, match="net = "):
        splitmix.train(small_task(), plain_build, **settings, resume=True)


class Odd(torch.nn.Module):
    """A net that gives more than its logits, or that cannot be served."""

    def __init__(self, fails="", cut=None):
        super().__init__()
        self.layer, self.fails, self.cut = torch.nn.Linear(36, 3), fails, cut

    def forward(self, x):
        assert self.training or not self.fails, "not when served"
        logits = self.layer(x.flatten(1))
        if self.cut:
            return self.cut(logits)
        return logits if self.fails else (logits, x)


SIZES = iter(range(1, 100))


def whole_complex(width):
    net = plain_build(width)
    net.turns = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    return net


def one_class():
    return splitmix.task_from_arrays({"here": (np.zeros((200, 6, 6, 1)), np.zeros(200, int))}, clients=2)


def drawn(width):
    """A net with a permutation of its own in every copy."""
    net = plain_build(width)
    net.register_buffer("places", torch.randperm(1000))
    return net


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"build": lambda width: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3))},
            "has a lazy layer: '1.",
        ),
        (
            {"build": "digit"},
            "the net is given as 'digit', which is no function build(width); one of the table is named",
        ),
        ({"build": lambda width: None}, "build(width) gives a NoneType; let it return a plain module"),
        ({"build": lambda width: Odd}, "build(width) gives a type; let it return"),
        ({"build": whole_complex}, "the net's parameter 'turns' is complex"),
        ({"build": lambda width: plain_build(width).double()}, "is float64; keep parameters in float32"),
        ({"task": one_class()}, "all samples of 'arrays' are of one class"),
        ({"build": drawn}, "draws its buffer 'places' anew whenever it is built"),
        ({"build": lambda width: plain_build(width).requires_grad_(False)}, "nothing in the net learns"),
        ({"task": "minni"}, "did you mean 'mini'"),
        ({"task": "picturs"}, "nor is there a file or folder of that name here"),
        ({"task": None}, "no data is given (None); name a task such as 'mini', or give a path"),
        ({"net": "digit"}, "two nets are given, build and net='digit'; leave one of them out"),
        ({"device": "gpu"}, "the device 'gpu' cannot be used here"),
        ({"workers": 0}, "workers 0 is too few; give 1 or more"),
        (
            {"build": lambda width: {}["channels"]},
            "cannot be built at width 1/8 for 3 classes: KeyError 'channels' (test_train.py, line",
        ),
        (
            {"build": lambda width: torch.nn.Linear(36 * width, 3)},
            "count channels by int(64 * width), or give splitmix.slim(module)",
        ),
        ({"build": lambda width: plain_build(next(SIZES))}, "gives another net each time: its entry '"),
        ({"build": lambda width: Odd(cut=torch.detach)}, "the net's logits have no gradient, so nothing would learn"),
        (
            {"build": lambda width: Odd(cut=lambda y: torch.from_numpy(y.numpy()))},
            "Can't call numpy() on Tensor that requires grad",
        ),
        (
            {"build": lambda width: Odd(cut=lambda y: y * torch.nan), "rounds": 2, "workers": 1},
            "nothing was trained, as in no round a client's update counted (client 3: its loss is nan",
        ),
        ({"rond": 3}, "did you mean 'rounds'"),
        ({"build": lambda width: torch.nn.Linear(3, 3)}, "cannot take the images of 'arrays'"),
        ({"build": lambda width: plain_build(width / 0)}, "cannot be built at width 1/8"),
        ({"build": lambda width: Odd()}, "the net gives a tuple; let its forward return the logits alone"),
        (
            {"build": lambda width: Odd("served")},
            "cannot take the images of 'arrays', shape (6, 6, 1): not when served",
        ),
        ({"build": lambda width: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 4))}, "has 3 classes"),
        ({"task": small_task(val_ratio=0.0)}, "has 2 validation images, by which the best round is chosen"),
        ({"budgets": "1/16"}, "below the atom 1/8"),
    ],
)
def test_a_mistake_in_a_call_is_one_sentence(changed, words):
    given = {"task": small_task(), "build": plain_build, "progress": False, **changed}
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        splitmix.train(given.pop("task"), given.pop("build"), **given)
    assert "\n" not in str(caught.value)
