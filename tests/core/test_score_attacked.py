"""Accuracy of every width and dial under attack: the very mix that is served is attacked, as if it were alone."""

from functools import partial

import pytest
import torch
from torch import Tensor

from helpers.toys import (
    ATOM,
    FULL,
    LAYOUT,
    METHOD,
    Tiny,
    ToyClients,
    bases,
    to_bytes,
    toy_federation,
    toy_simulator,
    toy_weights,
)
from splitmix.attacks.pgd import PGD
from splitmix.core.client import execute, mixed, nested_statistics, touched
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.rounds import federate
from splitmix.core.score import calibrate, score
from splitmix.core.types import Calibrate, Question, Score

DOMAINS = {0: "a", 1: "a", 2: "b", 3: "b"}
ATTACK = PGD(eps=0.15, steps=5, step=0.05)
WIDTHS = {ATOM: bases(2), FULL: bases(2, 0, 3, 1)}


def dual(width):
    return Tiny(width, dual=True)


@pytest.fixture(scope="module")
def turned():
    """An engine of nets with a dial, and weights whose two norms differ."""
    engine = toy_simulator(net=Net(dual))
    weights = federate(METHOD, engine, engine.net, toy_weights(engine.net, tracked=True), toy_federation(rounds=6))
    noisy = {n.replace("clean", "noisy"): v for n, v in weights.items() if "clean" in n}
    rng = torch.Generator().manual_seed(0)
    return engine, weights | {n: v * (1 + 0.3 * torch.rand(v.shape, generator=rng)) for n, v in noisy.items()}


def asked(engine, weights, mixes=WIDTHS, **question):
    return [row.clients for row in score(engine, weights, mixes, DOMAINS, Question(**question))]


class Spy:
    """An attack that looks at the model it is to attack, and leaves the images alone."""

    name, weak = "spy", True

    def __init__(self):
        self.saw: list[Tensor] = []

    def __call__(self, predict, x, y, rng):
        self.saw.append(predict(x))
        return x


def test_an_attack_takes_right_answers_away(turned):
    engine, weights = turned
    clean, attacked = asked(engine, weights), asked(engine, weights, attack=ATTACK)
    assert all(
        a <= c for before, after in zip(clean, attacked, strict=True) for c, a in zip(before, after, strict=True)
    )
    assert sum(map(sum, attacked)) < sum(map(sum, clean))


@pytest.mark.parametrize("robust", [0.0, 0.3, 1.0])
def test_the_mix_that_is_served_is_attacked_at_its_very_dial(turned, robust):
    engine, weights = turned
    spy, parts = Spy(), bases(2, 0)
    download = cut(engine.net, LAYOUT, weights, parts)
    job = Score(0, (parts[:1], parts), Question(robust=robust, attack=spy))
    execute(job, engine.net, download, data := ToyClients().data(0), None, {})
    x, y = data.test.batch(torch.arange(len(data.test)))
    for mix, saw in zip(job.mixes, spy.saw, strict=True):
        logits = engine.net.run(ATOM, cut(engine.net, LAYOUT, weights, mix), x, robust).mean(0)
        right = logits.argmax(-1) == y  # what is misread anyway needs no attack
        torch.testing.assert_close(saw, logits[right])
        assert right.any()


def test_each_mix_is_attacked_as_if_it_were_alone(turned):
    engine, weights = turned
    together = asked(engine, weights, attack=ATTACK, robust=0.5)
    assert together == [asked(engine, weights, {w: mix}, attack=ATTACK, robust=0.5)[0] for w, mix in WIDTHS.items()]


def test_the_number_of_workers_does_not_matter_to_an_attack(turned):
    engine, weights = turned
    question = {"attack": ATTACK, "robust": 0.5, "images": 5, "seed": 7}
    with toy_simulator(net=Net(dual), workers=2) as pool:
        assert asked(pool, weights, **question) == asked(engine, weights, **question)


def test_images_are_drawn_by_the_seed(turned):
    engine, weights = turned
    whole = [row.samples for row in engine.run(weights, [Score(c, (bases(0),)) for c in range(4)])]
    some = [row.samples for row in engine.run(weights, [Score(c, (bases(0),), Question(images=9)) for c in range(4)])]
    assert some == [min(9, samples) for samples in whole]
    draws = [asked(engine, weights, images=4, seed=seed) for seed in range(8)]
    assert draws[0] == asked(engine, weights, images=4, seed=0)
    assert any(draw != draws[0] for draw in draws)


def test_a_black_box_attack_knows_only_its_surrogate(turned):
    engine, weights = turned
    spy, parts = Spy(), bases(2, 0)
    job = Score(0, (bases(2),), Question(robust=0.0, attack=spy, surrogate=(bases(0), 1.0)))
    execute(job, engine.net, cut(engine.net, LAYOUT, weights, parts), data := ToyClients().data(0), None, {})
    x, y = data.test.batch(torch.arange(len(data.test)))
    known = mixed(engine.net, bases(0), cut(engine.net, LAYOUT, weights, bases(0)), bases(0), 1.0)
    right = engine.net.run(ATOM, cut(engine.net, LAYOUT, weights, bases(2)), x)[0].argmax(-1) == y
    torch.testing.assert_close(spy.saw[0], known(x[right]))


def test_an_attack_needs_fixed_statistics(turned):
    engine, weights = turned
    weights = {name: value for name, value in weights.items() if "clean.running" not in name}
    with pytest.raises(UserError, match="an attack needs fixed norm statistics"):
        asked(engine, weights, attack=ATTACK)
    assert asked(engine, weights, attack=ATTACK, norm="client")


def test_noisy_norms_are_not_calibrated_on_clean_images(turned):
    engine, weights = turned
    with pytest.raises(UserError, match="noisy norms cannot be calibrated on clean images"):
        calibrate(engine, engine.net, LAYOUT, weights, range(4), batch=8)


@pytest.mark.parametrize("tracked", [True, False])
def test_clean_norms_are_calibrated_on_clean_images_and_noisy_ones_on_attacked_images(turned, tracked):
    engine, weights = turned
    weights = {name: value for name, value in weights.items() if tracked or "running" not in name}
    clean, noisy = (partial(by_twin, twin) for twin in (".clean.", ".noisy."))
    nothing, much = (
        calibrate(engine, engine.net, LAYOUT, weights, range(4), 8, PGD(eps=eps, random_start=False))
        for eps in (0.0, 0.1)
    )
    assert to_bytes(clean(nothing)) == to_bytes(clean(much))
    assert all(not torch.equal(value, noisy(much)[name]) for name, value in noisy(nothing).items())
    first = {name.replace("noisy", "clean"): value for name, value in noisy(nothing).items() if "norm1" in name}
    torch.testing.assert_close(first, {name: clean(nothing)[name] for name in first})  # they see the same images


def by_twin(twin, statistics):
    return {name: value for name, value in statistics.items() if twin in name}


@pytest.mark.parametrize(
    ("robust", "measured"), [(0.0, [".clean."]), (1.0, [".noisy."]), (0.3, [".clean.", ".noisy."])]
)
def test_a_client_calibrates_the_norms_that_the_dial_touches(turned, robust, measured):
    engine, weights = turned
    data, download = ToyClients().data(2), cut(engine.net, LAYOUT, weights, bases(0, 1))
    asked = Question(robust=robust, norm="client", noise=ATTACK)
    found = nested_statistics(Calibrate(2, bases(0, 1), 8, touched(asked), ATTACK), engine.net, download, data.train)
    assert found.keys() == {name for name in engine.net.statistic_names(ATOM) if any(twin in name for twin in measured)}
