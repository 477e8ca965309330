"""What happens on a client: local training, losses, batches, local norms, calibration."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.toys import (
    ATOM,
    FULL,
    HALF,
    LAYOUT,
    PLAN,
    Exact,
    Tiny,
    ToyClients,
    bases,
    plain_build,
    to_bytes,
    toy_simulator,
    toy_split,
    toy_weights,
)
from splitmix.core.batches import ClientData, Split, crop_and_flip, even_batches, shuffled, step_count
from splitmix.core.client import calibrate_client, mixed, score_client, train_client
from splitmix.core.net import Net, from_moments
from splitmix.core.parts import cut
from splitmix.core.reproducible import torch_rng_for
from splitmix.core.score import calibrate
from splitmix.core.types import Calibrate, Layout, Part, Plan, Question, Score, Train
from splitmix.nets.layers import BatchNorm
from splitmix.objectives.losses import Masked, Plain

CLIENT = 0
DATA = ToyClients().data(CLIENT)
ONE_STEP = Plan(lr=0.1, batch=len(DATA.train), momentum=0.0, weight_decay=0.0)


def train(download, parts, *, net=None, plan=PLAN, objective=None, own=None, **settings):
    """The client's update."""
    job = Train(0, CLIENT, tuple(parts), plan, seed=1, **settings)
    return train_client(job, net or Net(Tiny), download, DATA, objective or Plain(), {} if own is None else own)


def doubles(*numbers, build=Tiny, tracked=False):
    net = Net(build)
    weights = net.init(LAYOUT, seed=0, tracked=tracked)
    return {name: value.double() for name, value in cut(net, LAYOUT, weights, bases(*numbers)).items()}


def singles(*numbers):
    return cut(Net(Tiny), LAYOUT, toy_weights(), bases(*numbers))


def row(weights, base):
    return {name: value[base] for name, value in weights.items()}


@pytest.mark.parametrize("tracked", [False, True])
def test_stacked_bases_learn_what_looped_bases_learn(tracked):
    stacked, looped = (
        train(doubles(0, 1, 2, tracked=tracked), bases(0, 1, 2), net=Net(Tiny, stacked=stacked), objective=Exact())
        for stacked in (True, False)
    )
    assert_close(stacked.weights, looped.weights, atol=1e-9, rtol=0)
    assert_close(stacked.metrics, looped.metrics)


@pytest.mark.parametrize("build", [Tiny, plain_build])
def test_bases_trained_together_learn_what_each_learns_alone(build):
    settings = {"net": Net(build), "objective": Exact()}
    together = train(doubles(2, 0, 3, build=build), bases(2, 0, 3), **settings).weights
    for place, base in enumerate((2, 0, 3)):
        alone = train(doubles(base, build=build), bases(base), **settings).weights
        assert_close(row(together, place), row(alone, 0), atol=1e-9, rtol=0)


def test_nested_parts_add_their_gradients():
    net, layout = Net(Tiny), Layout(1, FULL)
    start = {name: value.double() for name, value in net.init(layout, seed=0).items()}
    wide, narrow, both = (
        train(cut(net, layout, start, parts[-1:]), parts, plan=ONE_STEP, objective=Exact()).weights["fc1.weight"][0]
        for parts in ([Part(0, FULL)], [Part(0, HALF)], [Part(0, HALF), Part(0, FULL)])
    )
    first = start["fc1.weight"][0]
    assert_close((both - first)[:4, :36], (wide - first)[:4, :36] + (narrow - first[:4, :36]))
    assert_close(both[4:], wide[4:])


def test_one_step_goes_down_the_gradient():
    net, start = Net(Tiny), doubles(1)
    leaf = start["fc2.bias"].clone().requires_grad_()
    x, y = DATA.train.batch(torch.arange(len(DATA.train)))
    F.cross_entropy(net.run(ATOM, {**start, "fc2.bias": leaf}, x.double(), training=True)[0], y).backward()
    learned = train(start, bases(1), plan=ONE_STEP, objective=Exact()).weights
    assert_close(learned["fc2.bias"], start["fc2.bias"] - 0.1 * leaf.grad)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_affines_of_norms_may_learn_at_a_rate_of_their_own(momentum):
    start, norms = doubles(1), Net(Tiny).norm_names(ATOM)
    once, thrice = (
        train(start, bases(1), plan=replace(ONE_STEP, momentum=momentum, norm_rate=rate), objective=Exact()).weights
        for rate in (1.0, 3.0)
    )
    for name in start:
        assert_close(thrice[name] - start[name], (3 if name in norms else 1) * (once[name] - start[name]))


def test_an_update_says_what_was_trained_on_how_many_samples():
    update = train(singles(1, 3), bases(1, 3))
    assert (update.round, update.client, update.parts, update.samples) == (0, CLIENT, bases(1, 3), len(DATA.train))
    assert {value.shape[0] for value in update.weights.values()} == {2}
    assert update.metrics["loss"] == pytest.approx(math.log(3), rel=0.5)  # of a single base


def test_the_download_stays_as_it_was():
    download = singles(0, 1)
    train(download, bases(0, 1))
    assert to_bytes(download) == to_bytes(singles(0, 1))


def test_mixed_precision_learns_nearly_the_same_and_keeps_full_numbers():
    start = singles(0, 1)
    full, mixed = (
        train(start, bases(0, 1), plan=replace(ONE_STEP, precision=precision)) for precision in ("full", "mixed")
    )
    change, close = (
        torch.cat([(update.weights[name] - start[name]).flatten() for name in start]) for update in (full, mixed)
    )
    assert {value.dtype for value in mixed.weights.values()} == {torch.float32}
    assert 0 < (change - close).norm() < 0.05 * change.norm()
    assert mixed.metrics["loss"] == pytest.approx(full.metrics["loss"], rel=0.02)


def test_each_seed_round_and_client_draws_batches_of_its_own():
    job = Train(0, 0, bases(0), PLAN, seed=0)
    jobs = [job, replace(job, seed=1), replace(job, round=1), replace(job, client=1)]
    learned = [train_client(each, Net(Tiny), singles(0), DATA, Plain(), {}).weights for each in jobs]
    assert len({weights["fc2.bias"].numpy().tobytes() for weights in learned}) == 4


def test_the_state_of_the_optimizer_does_not_persist():
    once = train(singles(0), bases(0), plan=replace(ONE_STEP, momentum=0.9)).weights
    fresh, heavy = (train(once, bases(0), plan=replace(ONE_STEP, momentum=momentum)).weights for momentum in (0.0, 0.9))
    assert to_bytes(fresh) == to_bytes(heavy)  # the first step of a fresh optimizer has no momentum


def masked_loss(logits, y):
    return Masked()(lambda x: [logits], torch.empty(0), y, torch.Generator())


def test_a_class_absent_from_the_batch_counts_as_exp_0():
    logits = torch.tensor([[[1.0, 0.0, 3.0], [0.0, 2.0, -1.0]]])  # of one base; nobody is of class 2
    loss = masked_loss(logits, torch.tensor([0, 1]))
    first, second = (-math.log(math.exp(z) / (math.exp(z) + 1 + 1)) for z in (1.0, 2.0))
    assert loss.item() == pytest.approx((first + second) / 2)


def test_a_class_absent_from_the_batch_gets_no_gradient():
    logits = torch.randn(2, 4, 3, generator=torch_rng_for(0)).requires_grad_()
    masked_loss(logits, torch.tensor([0, 1, 1, 0])).backward()
    assert not logits.grad[..., 2].any()
    assert logits.grad[..., :2].all()


def test_where_all_classes_are_present_nothing_is_masked():
    logits, y = torch.randn(2, 3, 3, generator=torch_rng_for(0)), torch.tensor([2, 0, 1])
    assert_close(masked_loss(logits, y), Plain()(lambda x: [logits], torch.empty(0), y, torch.Generator()))


def test_the_loss_is_the_mean_over_the_batch_and_the_sum_over_the_bases():
    logits, y = torch.zeros(4, 5, 3), torch.tensor([0, 1, 2, 0, 1])
    assert Plain()(lambda x: [logits], torch.empty(0), y, torch.Generator()).item() == pytest.approx(4 * math.log(3))


def test_a_crop_is_a_window_of_the_padded_image_or_its_mirror_image():
    x = torch.arange(1.0, 1 + 8 * 2 * 36).view(8, 2, 6, 6)  # eight images of two channels, no pixel twice
    for image, crop in zip(F.pad(x, (4, 4, 4, 4)), crop_and_flip(x, torch_rng_for(0)), strict=True):
        windows = image.unfold(1, 6, 1).unfold(2, 6, 1).flatten(1, 2).transpose(0, 1)  # (81, 2, 6, 6)
        both = torch.cat([windows, windows.flip(-1)])
        assert (both == crop).flatten(1).all(1).any()


def test_crops_differ_from_image_to_image_and_repeat_with_the_seed():
    x = torch.arange(1.0, 37).expand(50, 1, 36).reshape(50, 1, 6, 6)
    first, again = (crop_and_flip(x, torch_rng_for(7)) for _ in range(2))
    assert torch.equal(first, again)
    assert len(first.flatten(1).unique(dim=0)) > 25


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_every_epoch_meets_each_sample_once(samples, batch, epochs):
    met = torch.cat(list(shuffled(samples, batch, epochs, torch_rng_for(0)))).view(epochs, samples)
    assert (met.sort(dim=1).values == torch.arange(samples)).all()


def test_every_epoch_has_an_order_of_its_own():
    first, second = torch.cat(list(shuffled(30, 8, 2, torch_rng_for(0)))).view(2, 30)
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    ("samples", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2]), (5, [5]), (3, [3]), (1, [1]), (0, [])]
)
def test_a_last_batch_of_one_joins_its_neighbour(samples, sizes):
    assert [len(picks) for picks in even_batches(samples, 4)] == sizes


@pytest.mark.parametrize(("samples", "sizes"), [(34, [34]), (39, [39]), (40, [32, 8]), (71, [32, 39]), (3, [3])])
def test_no_step_is_taken_on_a_handful_of_samples(samples, sizes):
    assert [len(picks) for picks in shuffled(samples, 32, 1, torch_rng_for(0))] == sizes


@settings(max_examples=50)
@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 3))
def test_steps_are_counted_as_they_are_taken(samples, batch, epochs):
    assert step_count(samples, batch, epochs) == len(list(shuffled(samples, batch, epochs, torch_rng_for(0))))


def test_norms_never_leave_the_client():
    update = train(singles(0, 1), bases(0, 1), local_norms=True)
    assert update.weights.keys() == toy_weights().keys() - Net(Tiny).norm_names(ATOM)


def test_the_client_keeps_its_norms_of_each_base():
    own, shared = {}, train(singles(2, 0), bases(2, 0)).weights
    train(singles(2, 0), bases(2, 0), own=own, local_norms=True)
    norms = Net(Tiny).norm_names(ATOM) & shared.keys()
    assert norms
    assert {base: to_bytes(kept) for base, kept in own.items()} == {
        base: to_bytes({name: shared[name][place].contiguous() for name in norms}) for place, base in [(0, 2), (1, 0)]
    }


def test_a_client_goes_on_from_its_own_norms_whatever_the_server_has():
    own = {}
    train(singles(0), bases(0), own=own, local_norms=True)
    strange = {name: value + 1 if "norm" in name else value for name, value in singles(0).items()}
    ours, theirs = (
        train(download, bases(0), own=dict(own), local_norms=True).weights for download in (singles(0), strange)
    )
    assert to_bytes(ours) == to_bytes(theirs)


def test_a_score_counts_the_right_answers_of_every_mix():
    net, weights, x = Net(Tiny), singles(0, 1), DATA.test.batch(torch.arange(13))[0]
    one, other = net.run(ATOM, weights, x)
    mixes = (bases(0), bases(1), bases(0, 1), bases(0, 1, 1))
    tally = score_client(Score(CLIENT, mixes), net, weights, DATA, {})
    right = [int((z.argmax(1) == DATA.test.labels).sum()) for z in (one, other, one + other, one + 2 * other)]
    assert (tally.correct, tally.samples) == (tuple(right), 13)


def test_two_halves_are_all_images():
    asked = (Score(CLIENT, (bases(0),), Question(norm="client", half=half)) for half in (0, 1, 2))
    whole, *halves = (score_client(job, Net(Tiny), singles(0), DATA, {}) for job in asked)
    assert [tally.samples for tally in halves] == [7, 6]
    assert sum(tally.correct[0] for tally in halves) == whole.correct[0]


def test_a_base_that_comes_twice_counts_twice_under_attack_too():
    net, weights, x = Net(Tiny), singles(0, 1), DATA.test.batch(torch.arange(13))[0]
    one, other = net.run(ATOM, weights, x)
    assert_close(mixed(net, bases(0, 1), weights, bases(1, 0, 1), 0.0)(x), (one + 2 * other) / 3)


def test_a_last_batch_of_one_can_be_scored_without_statistics():
    data = ClientData(toy_split(4), toy_split(4), toy_split(9))
    tally = score_client(Score(CLIENT, (bases(0),), Question(batch=4)), Net(Tiny), singles(0), data, {})
    assert tally.samples == 9


def test_a_client_without_images_of_a_split_says_so():
    data = ClientData(toy_split(4), toy_split(0), toy_split(4))
    tally = score_client(Score(CLIENT, (bases(0), bases(1)), Question("val")), Net(Tiny), singles(0, 1), data, {})
    assert (tally.correct, tally.samples) == ((0, 0), 0)


def images():
    return torch.rand(9, 1, 6, 6, generator=torch_rng_for(0))


def calibrated():
    engine, weights = toy_simulator(), toy_weights()
    return weights | calibrate(engine, engine.net, LAYOUT, weights, range(4), batch=8)


def test_calibrated_logits_do_not_depend_on_the_batch():
    net, weights, x = Net(Tiny), calibrated(), images()
    together = net.run(ATOM, weights, x)
    alone = torch.cat([net.run(ATOM, weights, image[None]) for image in x], dim=1)
    assert_close(together, alone)


def test_uncalibrated_logits_do():
    net, weights, x = Net(Tiny), toy_weights(), images()
    assert not torch.allclose(net.run(ATOM, weights, x)[:, :2], net.run(ATOM, weights, x[:2]), atol=0.01)


class Ruler(nn.Module):
    """Nothing but a norm of a single number."""

    stackable = True

    def __init__(self, width):
        super().__init__()
        self.norm = BatchNorm(1)

    def forward(self, x):
        return self.norm(x)


def moments(values, batch):
    """What a client answers whose training images are these numbers."""
    split = Split(torch.tensor(values)[:, None], torch.zeros(len(values)).long(), torch.arange(len(values)))
    download = Net(Ruler).init(Layout(1, ATOM), seed=0)
    update = calibrate_client(Calibrate(0, bases(0), batch), Net(Ruler), download, ClientData(split, split, split))
    return update.weights


@pytest.mark.parametrize(("batch", "variance"), [(4, 14 / 3), (2, 2.5 + 1.5**2)])
def test_calibration_pools_the_moments_of_the_batches(batch, variance):
    # in pairs: means 1.5 and 4.5, variances 0.5 and 4.5; what lies between the pairs is not lost
    found = from_moments(moments([1.0, 2.0, 3.0, 6.0], batch))
    assert found["norm.running_mean"].item() == pytest.approx(3)
    assert found["norm.running_var"].item() == pytest.approx(variance)


def test_a_client_sends_its_mean_and_mean_square():
    sent = moments([1.0, 2.0, 3.0, 6.0], batch=2)
    assert sent["norm.running_mean"].item() == pytest.approx(3)
    assert sent["norm.running_var"].item() == pytest.approx(2.5 + 1.5**2 + 3 * 3)


def test_moments_of_all_clients_make_the_statistics_of_the_pooled_images():
    engine, weights = toy_simulator(), toy_weights()
    found = calibrate(engine, engine.net, LAYOUT, weights, range(4), batch=99)
    splits = [engine.clients.data(client).train for client in range(4)]
    pooled = torch.cat([split.batch(torch.arange(len(split)))[0] for split in splits])
    seen = F.conv2d(pooled, weights["conv.weight"][2], weights["conv.bias"][2], padding=1)  # what the first norm sees
    assert_close(found["norm1.clean.running_mean"][2], seen.mean((0, 2, 3)), atol=1e-5, rtol=0)
    assert_close(found["norm1.clean.running_var"][2], seen.var((0, 2, 3)), atol=0, rtol=0.01)
