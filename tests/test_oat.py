"""Once-for-all adversarial training: conditioned norms, the draw of lambda, and single-norm adversarial training."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from splitmix.attacks.adversarial import Adversarial
from splitmix.attacks.oat import OnceForAll
from splitmix.attacks.pgd import PGD
from splitmix.core.attack import withstood
from splitmix.core.client import ClientData, train_client
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.objective import Plain, cross_entropy
from splitmix.core.parts import cut
from splitmix.core.types import Layout, Part, Plan, Train, Width
from splitmix.nets import NETS
from splitmix.nets.cost import cost
from splitmix.nets.film import CORNERS, FilmNorm, encode
from splitmix.nets.layers import scaled
from toys import ATOM, FULL, HALF, LAYOUT, PLAN, Tiny, ToyClients, bases, to_bytes, toy_split

EIGHTH = Width(1, 8)
SMALL = {"alexnet": 64, "preresnet18": 16}  # enough pixels for a test
DATA = ToyClients().data(0)
ONE_STEP = Plan(lr=0.1, batch=len(DATA.train), momentum=0.0, weight_decay=0.0)
ATTACK = PGD(eps=0.1, steps=3, step=0.05)
PARTS = bases(0, 1, 2)
WEIGHTS = [0.0, 0.1, 0.2, 0.3, 0.5, 1.0]  # lambda_n of the paper's FedAvg+AT, a model for each


class Conditioned(Tiny):
    """The tiny net with conditioned norms."""

    def __init__(self, width):
        super().__init__(width)
        channels = scaled(8, width)
        self.norm1, self.norm2 = FilmNorm(channels), FilmNorm(channels)


class Exact:
    """An objective in float64, where rounding turns no sign."""

    def __init__(self, objective):
        self.objective = objective

    def __call__(self, forward, x, y, rng):
        return self.objective(forward, x.double(), y, rng)


class Spy:
    """An attack that counts how often it was asked."""

    name, weak = "spy", True

    def __init__(self):
        self.calls = 0

    def __call__(self, predict, x, y, rng):
        self.calls += 1
        return ATTACK(predict, x, y, rng)


class Calls:
    """A forward that keeps how it was called; its logits depend on nothing but the images."""

    widths = (ATOM,)

    def __init__(self):
        self.seen = []

    def __call__(self, x, robust=0.0, *, training=True, only=None):
        self.seen.append((robust, training))
        return [(x.flatten(-3) @ torch.eye(36, 3, dtype=x.dtype)).expand(2, -1, -1)]


def disturbed(net, layout, *, tracked=True):
    """Weights in float64 whose FiLM does something, as after training."""
    weights = {name: value.double() for name, value in net.init(layout, seed=0, tracked=tracked).items()}
    rng = torch.Generator().manual_seed(2)
    for name in weights:
        if ".film." in name:
            weights[name] = 0.3 * torch.randn(weights[name].shape, dtype=torch.float64, generator=rng)
    return weights


def train(objective, parts=PARTS, *, net=None, plan=PLAN, layout=LAYOUT, tracked=True):
    """Weights before and after local training in float64."""
    net = net or Net(Conditioned)
    download = cut(net, layout, disturbed(net, layout, tracked=tracked), parts[-1:] if layout != LAYOUT else parts)
    job = Train(0, 0, tuple(parts), plan, seed=1)
    return download, train_client(job, net, download, DATA, Exact(objective), {}).weights


def images(name, batch=4):
    size = SMALL.get(name, NETS[name].image[0])
    return torch.rand(batch, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def stepped(net, width, weights, x, robust):
    """Logits and gradients of a training step, and the statistics it leaves behind."""
    parameters = net.parameter_names(width)
    leaves = {name: value.clone().requires_grad_(name in parameters) for name, value in weights.items()}
    logits = net.run(width, leaves, x, robust, training=True)
    (logits**2).sum().backward()
    grads = {name: leaves[name].grad for name in parameters if leaves[name].grad is not None}
    return logits.detach(), grads, {name: leaves[name].detach() for name in net.statistic_names(width)}


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
    weights, x = disturbed(net, Layout(1, EIGHTH)), images(name)
    logits = [net.run(EIGHTH, weights, x, robust, training=training) for robust in (0.0, 0.1, 0.35, 0.5, 1.0)]
    assert all(not torch.allclose(one, other) for i, one in enumerate(logits) for other in logits[:i])


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5, 5)])
@pytest.mark.parametrize("robust", [0.0, 0.3, 0.7, 1.0, torch.tensor(0.7)])
@pytest.mark.parametrize("training", [True, False])
def test_a_conditioned_norm_is_the_norm_then_gamma_and_beta(shape, robust, training):
    layer, x = FilmNorm(6).train(training), torch.randn(shape)
    for value in layer.state_dict().values():
        value.uniform_(0.5, 1.5)
    y = layer(x, robust)
    gamma, beta = (v.view(1, 6, *[1] * (len(shape) - 2)) for v in layer.film(encode(float(robust))))
    norm = layer.clean if robust == 0 else layer.noisy
    assert_close(y, gamma * norm(x) + beta, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("robust", "used", "idle"), [(0.0, "clean", "noisy"), (0.1, "noisy", "clean")])
def test_dial_0_touches_only_the_clean_norms_and_every_other_only_the_noisy(name, robust, used, idle):
    net = Net(partial(NETS[name], film=True))
    weights = disturbed(net, Layout(1, EIGHTH))
    _, grads, statistics = stepped(net, EIGHTH, weights, images(name), robust)
    affine = {entry for entry in net.norm_names(EIGHTH) if entry in net.parameter_names(EIGHTH)}
    assert affine & grads.keys() == {entry for entry in affine if f".{used}." in entry}
    for entry, value in statistics.items():
        assert torch.equal(value, weights[entry]) == (f".{idle}." in entry)


def test_clean_statistics_follow_as_fast_as_if_every_batch_reached_them():
    clients, x = [FilmNorm(3) for _ in OnceForAll().lambdas], torch.randn(500, 3) + 4
    for layer, drawn in zip(clients, OnceForAll().lambdas, strict=True):
        layer(x, drawn)
    mean = torch.stack([layer.clean.running_mean for layer in clients]).mean(0)
    assert_close(mean, 0.1 * x.mean(0, keepdim=True))


@pytest.mark.parametrize("robust", [0.0, 0.25, 1.0])
def test_a_dial_trains_the_codes_of_its_neighbours_alone(robust):
    net = Net(Conditioned)
    _, grads, _ = stepped(net, ATOM, disturbed(net, LAYOUT), DATA.train.batch(torch.arange(8))[0].double(), robust)
    trained = grads["norm1.film.table"].abs().sum((0, 1)) > 0
    assert trained.tolist() == (encode(robust) > 0).tolist()


def test_norms_that_stay_on_a_client_share_their_film():
    names = Net(Conditioned).norm_names(ATOM)
    assert any(".clean." in name for name in names)
    assert not any(".film." in name for name in names)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("robust", [0.0, 0.25, 0.7])
def test_stacked_bases_learn_what_looped_bases_learn(name, robust, monkeypatch):
    monkeypatch.setattr(NETS[name], "stack", 3, raising=False)
    build = partial(NETS[name], film=True)
    stacked, looped = Net(build, stacked=True), Net(build, stacked=False)
    weights, x = disturbed(stacked, Layout(3, EIGHTH)), images(name)
    assert_close(stepped(stacked, EIGHTH, weights, x, robust), stepped(looped, EIGHTH, weights, x, robust))
    assert_close(stacked.measure(EIGHTH, weights, x, robust), looped.measure(EIGHTH, weights, x, robust))
    assert_close(stacked.run(EIGHTH, weights, x, robust), looped.run(EIGHTH, weights, x, robust))


@pytest.mark.parametrize("name", NETS)
def test_the_loss_of_one_base_reaches_no_other(name):
    net = Net(partial(NETS[name], film=True))
    weights = disturbed(net, Layout(3, EIGHTH))
    leaves = {n: v.clone().requires_grad_(n in net.parameter_names(EIGHTH)) for n, v in weights.items()}
    net.run(EIGHTH, leaves, images(name), 0.3, training=True)[1].square().sum().backward()
    for leaf in leaves.values():
        if leaf.grad is not None:
            assert not leaf.grad[[0, 2]].any()
    assert leaves[next(n for n in leaves if n.endswith("film.gamma"))].grad[1].any()


@pytest.mark.parametrize("name", NETS)
def test_a_window_of_a_conditioned_net_is_a_conditioned_net(name):
    net, layout, part = Net(partial(NETS[name], film=True)), Layout(1, Width(1, 4)), Part(0, EIGHTH)
    weights = cut(net, layout, net.init(layout, seed=0), [part])
    shapes = net.shapes(EIGHTH)
    assert {entry: value.shape[1:] for entry, value in weights.items()} == {entry: shapes[entry] for entry in weights}
    assert net.run(EIGHTH, weights, images(name).float(), 0.6).isfinite().all()


def test_narrow_nets_start_with_the_same_film():
    net = Net(Conditioned)
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


# --- the objective


def test_bases_attacked_and_trained_together_learn_what_looped_bases_learn():
    (_, stacked), (_, looped) = (
        train(OnceForAll(ATTACK), net=Net(Conditioned, stacked=stacked)) for stacked in (True, False)
    )
    assert_close(stacked, looped, atol=1e-9, rtol=0)


def test_bases_trained_together_learn_what_each_learns_alone():
    objective = OnceForAll(PGD(eps=0.1, steps=3, step=0.05, random_start=False))
    _, together = train(objective)
    for base in range(3):
        _, alone = train(objective, bases(base))
        assert_close({n: v[base] for n, v in together.items()}, {n: v[0] for n, v in alone.items()}, atol=1e-9, rtol=0)


@pytest.mark.parametrize("drawn", [0.0, 0.3, 1.0])
def test_one_lambda_is_adversarial_training_of_that_weight_on_the_net_at_that_dial(drawn):
    x, y = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])
    forward = Calls()
    OnceForAll(ATTACK, lambdas=(drawn,))(forward, x, y, torch.Generator())
    attack = [(drawn, False)] * (1 + ATTACK.steps)
    clean, adversarial = [(drawn, True)], [*attack, (drawn, True)]
    assert forward.seen == {0.0: clean, 0.3: clean + adversarial, 1.0: adversarial}[drawn]


def test_the_losses_are_weighed_by_the_lambda_that_was_drawn():
    x, y, net = *DATA.train.batch(torch.arange(8)), Net(Conditioned)
    weights = disturbed(net, LAYOUT, tracked=False)  # no statistics that the clean pass could move before the attack

    def forward(x, robust=0.0, *, training=True, only=None):
        return [net.run(ATOM, weights, x, robust, training=training)]

    forward.widths = [ATOM]
    attack = PGD(eps=0.1, steps=3, step=0.05, random_start=False)
    loss = OnceForAll(attack, lambdas=(0.4,))(forward, x.double(), y, torch.Generator())
    made = attack(lambda images: forward(images, 0.4, training=False)[0], x.double(), y, torch.Generator())
    clean, adversarial = (cross_entropy(forward(i, 0.4)[0], y) for i in (x.double(), made))
    assert_close(loss, 0.6 * clean + 0.4 * adversarial)


def test_each_batch_draws_a_lambda_from_the_clients_own_rng():
    def draws(seed):
        forward, rng = Calls(), torch.Generator().manual_seed(seed)
        for _ in range(200):
            OnceForAll(PGD(eps=0.0), lambdas=(0.0, 0.2, 0.2, 1.0))(
                forward, torch.rand(2, 1, 6, 6), torch.tensor([0, 1]), rng
            )
        return [robust for robust, training in forward.seen if training]

    assert draws(1) == draws(1) != draws(2)
    assert set(draws(1)) == {0.0, 0.2, 1.0}
    assert 60 <= draws(1).count(0.2) / 2 <= 140  # listed twice: half of the batches, two passes each


def test_the_attack_leaves_no_gradient_in_the_parameters():
    x, y, net = *DATA.train.batch(torch.arange(8)), Net(Conditioned)
    weights = net.init(LAYOUT, seed=0, tracked=True)
    leaves = {n: v.clone().requires_grad_(n in net.parameter_names(ATOM)) for n, v in weights.items()}
    before = to_bytes({name: leaf.detach() for name, leaf in leaves.items()})
    made = ATTACK(lambda images: net.run(ATOM, leaves, images, 0.3), x, y, torch.Generator())
    assert made.shape == (4, *x.shape)
    assert all(leaf.grad is None for leaf in leaves.values())
    assert to_bytes({name: leaf.detach() for name, leaf in leaves.items()}) == before


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_norms_that_the_first_batch_does_not_reach_are_trained_by_later_ones(momentum):
    class InTurn:
        drawn = 1.0

        def __call__(self, forward, x, y, rng):
            self.drawn = 1.0 - self.drawn
            return OnceForAll(ATTACK, lambdas=(self.drawn,))(forward, x, y, rng)

    start, end = train(InTurn(), plan=Plan(lr=0.1, batch=4, momentum=momentum))
    assert all(not torch.equal(start[name], end[name]) for name in start)


def test_every_width_of_a_job_is_trained_at_the_same_dial():
    layout, parts = Layout(1, FULL), (Part(0, HALF), Part(0, FULL))
    start, end = train(OnceForAll(ATTACK, lambdas=(0.3,)), parts, layout=layout, plan=ONE_STEP)
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert {name for name in start if ".noisy." in name} <= moved
    assert not {name for name in start if ".clean." in name} & moved


@pytest.mark.slow
def test_one_net_learns_to_be_accurate_and_to_be_robust():
    net, attack, whole = Net(Conditioned), PGD(eps=0.2, steps=5, step=0.08), Part(0, FULL)
    job = Train(0, 0, (whole,), Plan(lr=0.1, epochs=10, batch=16), seed=1)
    start, data = net.init(Layout(1, FULL), seed=0, tracked=True), ClientData(*[toy_split(240)] * 3)
    weights = train_client(job, net, start, data, OnceForAll(attack), {}).weights
    x, y = toy_split(200, seed=9).batch(torch.arange(200))

    def accuracies(robust):
        def predict(images):
            return net.run(FULL, weights, images, robust)[0]

        attacked = withstood(attack, predict, x, y, torch.Generator().manual_seed(0))
        return (predict(x).argmax(-1) == y).float().mean(), attacked.float().mean()

    (clean, fragile), (_, robust) = accuracies(0.0), accuracies(1.0)
    assert clean > 0.95
    assert robust > fragile + 0.15


def test_an_unknown_loss_is_refused():
    with pytest.raises(UserError, match="unknown loss 'mask'; did you mean 'masked'"):
        OnceForAll(loss="mask")


@pytest.mark.parametrize("lambdas", [(), "0.5", 0.5, None, (0.0, 1.1), (-0.1,), (float("nan"),), ("high",), (None,)])
def test_lambdas_that_are_no_dials_are_refused_in_one_sentence(lambdas):
    with pytest.raises(UserError, match="robustness dial") as error:
        OnceForAll(lambdas=lambdas)
    assert "\n" not in str(error.value)


# --- adversarial training on single norms, a model for each weight (FedAvg+AT)


def test_on_single_norms_weight_0_is_plain_training_and_makes_no_attack():
    spy = Spy()
    _, adversarial = train(Adversarial(spy, weight=0.0, dual=False), net=Net(Tiny))
    _, plain = train(Plain(), net=Net(Tiny))
    assert to_bytes(adversarial) == to_bytes(plain)
    assert spy.calls == 0


def test_on_single_norms_weight_1_never_trains_on_clean_images():
    forward = Calls()
    Adversarial(ATTACK, weight=1.0, dual=False)(
        forward, torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 0]), torch.Generator()
    )
    assert forward.seen == [*[(0.0, False)] * (1 + ATTACK.steps), (0.0, True)]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_on_single_norms_a_step_is_the_weighed_mean_of_a_clean_and_an_adversarial_one(weight):
    attack = PGD(eps=0.1, steps=3, step=0.05, random_start=False)
    clean, adversarial, mixed = (
        train(Adversarial(attack, weight=w, dual=False), net=Net(Tiny), plan=ONE_STEP, tracked=False)
        for w in (0.0, 1.0, weight)
    )
    for name in Net(Tiny).parameter_names(ATOM):
        start = clean[0][name]
        expected = (1 - weight) * (clean[1][name] - start) + weight * (adversarial[1][name] - start)
        assert_close(mixed[1][name] - start, expected, atol=1e-12, rtol=1e-9)
