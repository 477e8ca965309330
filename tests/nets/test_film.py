"""Norms conditioned on the dial: its code, and what a net with such norms computes, trains and costs."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from helpers.film_net import FilmTiny, with_film
from helpers.stepping import SMALL, images, stepped
from helpers.toys import ATOM, LAYOUT, to_bytes, toy_split
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.nets.cost import cost
from splitmix.nets.layers import CORNERS, FilmNorm, encode
from splitmix.objectives.adversarial import OnceForAll

EIGHTH = Width(1, 8)


# --- the code of a dial


@pytest.mark.parametrize("corner", CORNERS)
def test_trained_dials_have_orthogonal_codes(corner):
    assert encode(corner).tolist() == [float(corner == other) for other in CORNERS]


@pytest.mark.parametrize("robust", [0.05, 0.15, 0.37, 0.5, 0.8, 0.999])
def test_a_dial_between_is_coded_by_its_neighbours_in_proportion(robust):
    code = encode(robust)
    assert_close(code @ torch.tensor(CORNERS), torch.tensor(robust))
    assert_close(code.sum(), torch.tensor(1.0))
    used = code.nonzero().flatten()
    assert len(used) == 2
    assert used[1] - used[0] == 1


def test_the_dials_with_codes_are_those_that_are_drawn():
    assert OnceForAll().lambdas == CORNERS


@pytest.mark.parametrize("robust", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_dial_outside_0_and_1_is_refused(robust):
    with pytest.raises(UserError, match="robustness dial"):
        FilmNorm(3)(torch.rand(2, 3), robust)


# --- conditioned norms


@pytest.mark.parametrize("name", NETS)
def test_a_fresh_net_is_the_net_without_film(name):
    film, dual = (Net(partial(NETS[name], **{kind: True})) for kind in ("film", "dual"))
    weights, x = film.init(Layout(1, EIGHTH), seed=0, tracked=True), images(name).float()
    shared = {entry: weights[entry] for entry in dual.shapes(EIGHTH)}
    for robust in (0.0, 1.0):
        assert_close(film.run(EIGHTH, weights, x, robust), dual.run(EIGHTH, shared, x, robust))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False])
def test_the_dial_changes_the_logits(name, training):
    net = Net(partial(NETS[name], film=True))
    weights, x = with_film(net, Layout(1, EIGHTH)), images(name)
    logits = [net.run(EIGHTH, weights, x, robust, training=training) for robust in (0.0, 0.1, 0.35, 0.5, 1.0)]
    assert all(not torch.allclose(one, other) for i, one in enumerate(logits) for other in logits[:i])


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5, 5)])
@pytest.mark.parametrize("robust", [0.0, 0.3, 0.7, 1.0, torch.tensor(0.7)])
@pytest.mark.parametrize("training", [True, False])
def test_a_conditioned_norm_is_the_norm_then_gamma_and_beta(shape, robust, training):
    layer, x = FilmNorm(6).double().train(training), torch.randn(shape, dtype=torch.float64)
    for value in layer.state_dict().values():
        value.uniform_(0.5, 1.5)
    y = layer(x, robust)
    gamma, beta = (v.view(1, 6, *[1] * (len(shape) - 2)) for v in layer.film(encode(float(robust))))
    norm = layer.clean if robust == 0 else layer.noisy
    assert_close(y, gamma * norm(x) + beta, atol=1e-5, rtol=1e-5)


def test_clean_statistics_follow_as_fast_as_if_every_batch_reached_them():
    clients, x = [FilmNorm(3) for _ in OnceForAll().lambdas], torch.randn(500, 3) + 4
    for layer, drawn in zip(clients, OnceForAll().lambdas, strict=True):
        layer(x, drawn)
    mean = torch.stack([layer.clean.running_mean for layer in clients]).mean(0)
    assert_close(mean, 0.1 * x.mean(0, keepdim=True))


@pytest.mark.parametrize("robust", [0.0, 0.25, 1.0])
def test_a_dial_trains_the_codes_of_its_neighbours_alone(robust):
    net = Net(FilmTiny)
    _, grads, _ = stepped(net, ATOM, with_film(net, LAYOUT), toy_split(8).batch(torch.arange(8))[0].double(), robust)
    trained = grads["norm1.film.table"].abs().sum((0, 1)) > 0
    assert trained.tolist() == (encode(robust) > 0).tolist()


def test_norms_that_stay_on_a_client_share_their_film():
    names = Net(FilmTiny).norm_names(ATOM)
    assert any(".clean." in name for name in names)
    assert not any(".film." in name for name in names)


@pytest.mark.parametrize("name", NETS)
def test_the_loss_of_one_base_reaches_no_other(name):
    net = Net(partial(NETS[name], film=True))
    weights = with_film(net, Layout(3, EIGHTH))
    leaves = {n: v.clone().requires_grad_(n in net.parameter_names(EIGHTH)) for n, v in weights.items()}
    net.run(EIGHTH, leaves, images(name), 0.3, training=True)[1].square().sum().backward()
    for leaf in leaves.values():
        if leaf.grad is not None:
            assert not leaf.grad[[0, 2]].any()
    assert leaves[next(n for n in leaves if n.endswith("film.gamma"))].grad[1].any()


def test_narrow_nets_start_with_the_same_film():
    net = Net(FilmTiny)
    narrow, plain = (net.init(LAYOUT, seed=0, rescale=rescale) for rescale in (True, False))
    film = [name for name in plain if ".film." in name]
    assert to_bytes({n: narrow[n] for n in film}) == to_bytes({n: plain[n] for n in film})


@pytest.mark.parametrize("name", NETS)
def test_film_adds_parameters_but_no_work_that_grows_with_the_images(name):
    build, image = NETS[name], (*[SMALL.get(name, NETS[name].image[0])] * 2, 3)
    dual, film = (cost(partial(build, **{kind: True}), EIGHTH, image) for kind in ("dual", "film"))
    channels = [layer.clean.weight.numel() for layer in build(EIGHTH, film=True).modules() if hasattr(layer, "film")]
    assert film.parameters - dual.parameters == sum(6 * 16 + 16 + 2 * 16 * c for c in channels)
    assert (film.macs, film.activations) == (dual.macs, dual.activations)
