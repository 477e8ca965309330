"""A model in use: what it computes, its dials, its threads, and bases that arrive one by one."""

import asyncio
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import numpy as np
import pytest
import torch

from helpers.bundles import ATOM, images, random_bundle, random_weights
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.width import Width
from splitmix.nets import NETS

DIALS = [("1/16", 0.0), ("1/8", 0.3), ("3/16", 1.0), ("1/4", 0.5)]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A model without a robustness dial."""
    path = tmp_path_factory.mktemp("bundles") / "single"
    return Model.load(random_bundle(path, atom="1/16", bases=2, dual=False, classes=3).path)


def reference(x, robust, net="digit", atom="1/16", bases=4):
    """Logits of every base by the training code, in the order of the bundle."""
    weights = random_weights(net, atom, bases)
    pixels = torch.from_numpy(x).float().permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        return Net(partial(NETS[net], dual=True)).run(Width(atom), weights, pixels, robust).flip(0)


# --- what it computes ---


@pytest.mark.parametrize(("width", "robust"), DIALS)
def test_a_mix_is_the_mean_of_the_first_bases_at_the_dial(model, width, robust):
    x = images(5)
    expected = reference(x, robust)[: int(Width(width) / ATOM)]
    torch.testing.assert_close(model.logits_by_base(x, width, robust), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x, width, robust), expected.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("net", NETS)
def test_every_net_computes_what_it_computed_in_training(tmp_path, net):
    side = NETS[net].image[0]
    model = Model.load(random_bundle(tmp_path / net, net=net, atom="1/16", bases=2).path)
    x = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    expected = reference(x, 0.3, net, "1/16", 2)
    torch.testing.assert_close(model.logits_by_base(x, robust=0.3), expected, rtol=1e-4, atol=1e-5)


def test_one_none_or_many_images_get_the_answers_they_get_in_a_batch(model):
    x = images(9)
    for width, robust in DIALS:
        alone = torch.cat([model(x[i : i + 1], width, robust) for i in range(9)])
        torch.testing.assert_close(alone, model(x, width, robust), rtol=1e-5, atol=1e-6)
    x = images(140)
    torch.testing.assert_close(model(x, "1/16")[130:], model(x[130:], "1/16"), rtol=1e-5, atol=1e-6)
    assert model(images(0)).shape == (0, 10)
    assert model.predict(images(0), deadline_ms=5, confidence=0.5).classes.shape == (0,)


def test_bytes_floats_lists_and_tensors_are_the_same_image(model):
    x = images(2)
    for same in (x.astype(int), x / 255, (x / 255).astype(np.float32), x.tolist(), torch.from_numpy(x)):
        torch.testing.assert_close(model(same), model(x))


def test_gradients_flow_to_the_images_and_turning_the_dial_copies_no_weights(model):
    x = torch.rand(2, 3, 28, 28, requires_grad=True)
    model.mix("1/8")(x, 0.3).sum().backward()
    assert x.grad.abs().sum() > 0
    assert not any(parameter.requires_grad for parameter in model.mix("1/8").parameters())

    narrow, wide = model.mix("1/16").body.fc1.weight, model.mix("1/4").body.fc1.weight
    assert narrow.data_ptr() == wide.data_ptr()


# --- the dial ---


def test_a_dial_is_set_for_all_or_turned_for_a_few_calls(model):
    x = images(3)
    model.set(width="1/8", robust=0.3)
    assert torch.equal(model(x), model(x, "1/8", 0.3))
    with model.dial(robust=1):
        assert torch.equal(model(x), model(x, "1/8", 1))
        with model.dial(width="1/16"):
            assert torch.equal(model(x), model(x, "1/16", 1))
        assert torch.equal(model(x, robust=0), model(x, "1/8", 0))
    assert torch.equal(model(x), model(x, "1/8", 0.3))
    with pytest.raises(UserError), model.dial(robust=1):
        model(images(1), width="1/3")
    assert model.current.robust == 0.3  # turned back after an error


def test_two_models_have_a_dial_each(model, single):
    with model.dial(width="1/8"), single.dial(width="1/16"):
        assert (model.current.width, single.current.width) == (Width(1, 8), Width(1, 16))


def test_threads_do_not_see_each_others_dials(model):
    x = images(4)
    expected = {dial: model(x, *dial) for dial in DIALS}

    together = Barrier(8, timeout=1200)

    def work(number):
        width, robust = dial = DIALS[number % len(DIALS)]
        with model.dial(width=width, robust=robust):
            together.wait()  # all eight have turned the dial before any of them asks
            return torch.allclose(model(x), expected[dial], rtol=1e-5, atol=1e-6) and model.current.robust == robust

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))


def test_tasks_do_not_see_each_others_dials(model):
    async def work(number):
        width, robust = DIALS[number % len(DIALS)]
        with model.dial(width=width, robust=robust):
            await asyncio.sleep(0)  # let the others turn it
            return (model.current.width, model.current.robust) == (Width(width), robust)

    async def all_of_them():
        return await asyncio.gather(*(work(number) for number in range(20)))

    assert all(asyncio.run(all_of_them()))


@pytest.mark.parametrize(
    ("dial", "words"),
    [
        ({"width": "1/32"}, "width 1/32 is not a multiple of the atom 1/16; choose one of 1/16, 1/8, "),
        ({"width": "1/2"}, "width 1/2 needs 8 bases but only 4 are here; widest: 1/4"),
        ({"width": "wide"}, "'wide' is not a width"),
        ({"width": math.nan}, "is not a width"),
        ({"width": 2}, "outside"),
        ({"robust": math.nan}, "robust"),
        ({"robust": 1.5}, "robust"),
        ({"robust": "much"}, "robust"),
        ({"robust": -0.1}, "robust"),
    ],
)
def test_a_dial_that_cannot_be_turned_is_one_sentence(model, dial, words):
    for call in (lambda: model(images(1), **dial), lambda: model.predict(images(1), **dial), lambda: model.set(**dial)):
        with pytest.raises(UserError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_model_of_single_norms_has_one_dial(single):
    assert not single.dual
    assert single(images(1), robust=0).shape == (1, 3)
    with pytest.raises(UserError, match="no robustness dial"):
        single(images(1), robust=0.5)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((28, 28, 3)), r"shape \(28, 28, 3\) given, but the model takes \(n, 28, 28, 3\)"),
        (np.zeros((1, 3, 28, 28)), "given, but the model takes"),
        (np.full((1, 28, 28, 3), np.nan), "float pixels run from nan to nan"),
        (np.full((1, 28, 28, 3), np.inf), "float pixels run from inf"),
        (np.full((1, 28, 28, 3), 200.0), "give numbers from 0 to 1, or uint8"),
        (np.full((1, 28, 28, 3), -1), "whole-number pixels run from -1"),
        (np.full((1, 28, 28, 3), "a"), "pixels of type"),
        ([[1, 2], [3]], "do not form an array"),
        (None, "given, but the model takes"),
    ],
)
def test_images_of_another_kind_are_one_sentence(model, x, words):
    with pytest.raises(UserError, match=words) as caught:
        model.predict(x)
    assert "\n" not in str(caught.value)


# --- bases that arrive one by one ---


def test_any_first_bases_make_a_model_and_more_widen_it(bundle, model, tmp_path):
    device = tmp_path / "device"
    device.mkdir()
    shutil.copy(bundle.path / "manifest.json", device)
    with pytest.raises(UserError, match=r"has no bases yet; fetch base-0\.safetensors first"):
        Model.load(device)
    x = images(3)
    for base in range(4):
        shutil.copy(bundle.path / f"base-{base}.safetensors", device)
        if base == 0:
            growing = Model.load(device)
        assert growing.refresh() == growing.widths == model.widths[: base + 1] == Model.load(device).widths
        for width in growing.widths:
            torch.testing.assert_close(growing(x, width, 0.3), model(x, width, 0.3), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(growing(x), model(x, ATOM * (base + 1)), rtol=1e-5, atol=1e-6)


def test_a_width_that_has_not_arrived_is_one_sentence(bundle):
    model = Model.load(bundle.path, width="1/8")
    assert model.widths == (Width(1, 16), Width(1, 8))
    with pytest.raises(UserError, match="width 3/16 needs 3 bases but only 2 are here; widest: 1/8"):
        model(images(1), "3/16")
