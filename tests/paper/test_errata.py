"""What docs/errata.md says about the paper and its released code, computed again; each test is named there."""

import math
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from splitmix.attacks.pgd import PGD
from splitmix.core.net import Net
from splitmix.core.rounds import Cosine, Steps
from splitmix.core.types import Layout, Profile
from splitmix.core.width import Width
from splitmix.data.budgets import BUDGETS
from splitmix.data.domain import Domain
from splitmix.data.partition import Classes, split_validation
from splitmix.data.task import make_task
from splitmix.methods.bases import SplitMix
from splitmix.nets import NETS
from splitmix.nets.cost import cost
from splitmix.nets.layers import Linear, norm_eps
from splitmix.objectives.losses import cross_entropy, mask_absent
from splitmix_paper.exhibits import EXHIBITS
from splitmix_paper.exhibits.widths import IMAGES, MACS, PARAMETERS
from splitmix_paper.studies import WIDTHS as NAMES

ATOM, FULL = Width(1, 8), Width(1)
WIDTHS = (Width(1, 8), Width(1, 4), Width(1, 2), FULL)


@cache
def single(net, width):
    return cost(NETS[net], width, IMAGES[net])


def mix(net, bases):
    return single(net, ATOM) * bases


@pytest.mark.parametrize("net", IMAGES)
def test_printed_macs_are_a_tenth_of_the_true_ones_and_printed_parameters_are_right(net):
    (macs, mix_macs), (parameters, mix_parameters) = MACS[net], PARAMETERS[net]
    for i, width in enumerate(WIDTHS):
        alone, mixed = single(net, width), mix(net, 2**i)
        for true, printed in ((alone.macs, macs[i]), (mixed.macs, mix_macs[i])):
            assert 10 * (printed - 0.05) < 1.035 * true / 1e6  # theirs count norms and biases too: up to 3 % more
            assert true / 1e6 < 10 * (printed + 0.05)
        assert abs(alone.parameters / 1e6 - parameters[i]) < 0.06
        assert abs(mixed.parameters / 1e6 - mix_parameters[i]) < 0.06


def test_the_mix_on_digits_has_12_6_percent_of_the_parameters():
    one, mixed = single("digit", FULL), mix("digit", 8)
    assert round(100 * mixed.parameters / one.parameters, 1) == 12.6
    assert round(100 * 1.8 / 14.2, 1) == 12.7  # from the rounded cells of the table
    assert round(100 * mixed.macs / one.macs, 1) == 19.4  # 19.8 with norms and biases


@pytest.mark.parametrize("net", IMAGES)
def test_a_mix_keeps_as_many_activations_as_a_net_of_its_width(net):
    for width in WIDTHS:
        assert abs(mix(net, int(width / ATOM)).activations / single(net, width).activations - 1) < 0.002


def test_traffic_and_work_per_client_as_the_text_claims_them():
    """PreResNet18, a quarter of the clients at each budget."""
    singles = [single("preresnet18", width) for width in WIDTHS]
    mixes = [singles[0] * bases for bases in (1, 2, 4, 8)]
    assert [round(np.mean([c.parameters for c in costs]) / 1e6, 2) for costs in (mixes, singles)] == [0.66, 3.71]
    slimmable = [sum(c.macs for c in singles[: i + 1]) for i in range(4)]  # SHeteroFL trains all widths it can
    assert round(np.mean([c.macs for c in mixes]) / 1e6, 1) == 33.3
    assert round(np.mean(slimmable) / 1e6, 1) == 243.7


def test_the_budget_formula_is_one_exponent_off():
    clients = 100
    literal = [Fraction(1, 2) ** math.ceil(4 * k / clients) for k in range(1, clients + 1)]
    meant = [Fraction(1, 2) ** (math.ceil(4 * k / clients) - 1) for k in range(1, clients + 1)]
    assert sorted(set(literal)) == [Fraction(1, 16), Fraction(1, 8), Fraction(1, 4), Fraction(1, 2)]
    assert sorted(meant) == sorted(BUDGETS["exponential"](clients, np.random.default_rng(0)))


def test_budgets_ascend_with_the_client_so_domains_differ_in_budget():
    budgets = BUDGETS["exponential"](30, np.random.default_rng(0))
    domains = ("real", "clipart", "infograph", "painting", "quickdraw", "sketch")
    mean = {domain: sum(budgets[5 * i : 5 * i + 5]) / 5 for i, domain in enumerate(domains)}
    assert sorted(mean, key=mean.__getitem__)[:3] == [
        "real",
        "clipart",
        "infograph",
    ]  # the text: not real, but painting
    assert mean["painting"] == Fraction(1, 2)
    counts = BUDGETS["exponential"](50, np.random.default_rng(0))
    assert [counts.count(width) for width in WIDTHS] == [13, 12, 13, 12]


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "trainings"), [(100, 375), (50, 185), (30, 110)])
def test_every_base_is_trained_in_every_round_and_equally_often(clients, trainings):
    budgets = BUDGETS["exponential"](clients, np.random.default_rng(0))
    cohort = [Profile(client, budget, 100) for client, budget in enumerate(budgets)]
    rounds = [
        np.bincount([part.base for parts in SplitMix(seed=1).assign(r, cohort).values() for part in parts], minlength=8)
        for r in range(25)
    ]
    assert {int(counts.sum()) for counts in rounds} == {trainings}
    assert min(counts.min() for counts in rounds) >= clients // 8
    mean = np.mean(rounds, axis=0)
    assert np.abs(mean - trainings / 8).max() < 0.1 * trainings / 8


def test_few_clients_in_a_round_leave_bases_untrained():
    cohort = [Profile(0, ATOM, 100), Profile(1, ATOM, 100)]
    touched = {part.base for parts in SplitMix().assign(0, cohort).values() for part in parts}
    assert len(touched) == 2


def test_the_released_attack_takes_steps_of_ten_sevenths():
    eps, steps = 8 / 255, 7
    released = min(1.25 * eps, eps + 4 / 255) / steps
    assert math.isclose(255 * released, 10 / 7)
    assert steps * released < 2 * eps  # from one side of the ball the other cannot be reached
    assert PGD(step=2 / 255).weak
    assert PGD(step=released).weak


def test_the_initialisation_is_pytorchs_default_not_hes_for_relus():
    layer, theirs = Linear(600, 400), nn.Linear(600, 400)
    for weight in (layer.weight.detach(), theirs.weight.detach()):
        assert weight.abs().max() <= 1 / math.sqrt(600)
        assert math.isclose(float(weight.std()), 1 / math.sqrt(3 * 600), rel_tol=0.02)
    he = math.sqrt(2 / 600)
    assert math.isclose(he / float(layer.weight.detach().std()), math.sqrt(6), rel_tol=0.02)


def test_rescaled_layers_with_tracked_statistics_are_off_by_64_in_variance():
    """The released layer divides by the width in training only, so the norm behind it tracks another scale."""
    torch.manual_seed(0)
    z, r = torch.randn(512, 6, dtype=torch.double) * 3 + 1, float(ATOM)
    norm = nn.BatchNorm1d(6, momentum=1.0, dtype=torch.double)
    trained = norm.train()(z / r)
    assert_close(norm.running_var / z.var(0), torch.full((6,), 64.0, dtype=torch.double))
    served = norm.eval()(z)
    assert_close(trained.std(0) / served.std(0), torch.full((6,), 8.0, dtype=torch.double), rtol=1e-3, atol=0)


def test_rescaled_layers_with_batch_statistics_change_only_epsilon():
    torch.manual_seed(0)
    z, r = torch.randn(64, 6, dtype=torch.double), float(ATOM)
    divided = F.batch_norm(z / r, None, None, training=True, eps=1e-5)
    assert_close(divided, F.batch_norm(z, None, None, training=True, eps=norm_eps(ATOM, rescale_layers=True)))
    assert_close(divided, F.batch_norm(z, None, None, training=True, eps=1e-5), rtol=1e-4, atol=1e-4)


def test_rescaled_initialisation_makes_steps_eight_times_as_large():
    """Behind a norm the scale of weights is free: smaller ones have larger slopes, and the more turns a step."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 20, dtype=torch.double), torch.randint(0, 5, (64,))
    start = torch.randn(5, 20, dtype=torch.double)

    def turned(scale):
        """Length of a gradient step, as a share of the weights' length."""
        weight = (scale * start).requires_grad_()
        loss = F.cross_entropy(F.batch_norm(x @ weight.t(), None, None, training=True, eps=1e-12), y)
        (slope,) = torch.autograd.grad(loss, weight)
        return float(slope.norm() / weight.detach().norm())

    assert math.isclose(turned(math.sqrt(float(ATOM))) / turned(1.0), 8, rel_tol=1e-6)


def test_shuffling_between_the_cuts_puts_nine_tenths_of_validation_into_training():
    rng, rows = np.random.default_rng(0), np.arange(500)
    leaked, lost = [], []
    for _ in range(100):  # clients
        rng.shuffle(rows)
        train = set(rows[50:].tolist())
        rng.shuffle(rows)
        val = set(rows[:50].tolist())
        leaked.append(len(val & train) / 50)
        lost.append(1 - len(val | train) / 500)
    assert abs(np.mean(leaked) - 0.9) < 0.02
    assert abs(np.mean(lost) - 0.09) < 0.005
    kept, held = split_validation(np.arange(500), 0.1)
    assert not set(kept) & set(held)
    assert len(kept) + len(held) == 500


def test_about_four_of_a_hundred_clients_draw_a_class_twice():
    """Classes are dealt three at a time from a shuffled list of ten, which is shuffled again when it is empty."""
    rng, doubles = np.random.default_rng(0), []
    for _ in range(400):
        cards: list[int] = []
        while len(cards) < 300:
            cards += rng.permutation(10).tolist()
        hands = np.reshape(cards[:300], (100, 3))
        doubles.append(sum(len(set(hand)) < 3 for hand in hands.tolist()))
    assert abs(np.mean(doubles) - 3.9) < 0.4
    ours = Classes(3)(np.arange(5000) % 10, np.zeros(5000, np.int64), 100, rng)
    assert {len(set((rows % 10).tolist())) for rows in ours} == {3}


def test_redrawn_test_classes_are_mostly_ones_that_a_client_never_saw():
    x, y = np.zeros((6000, 1, 1, 1), np.uint8), np.arange(6000) % 10
    domain = Domain("all", x[:5000], y[:5000], x[5000:], y[5000:])

    def known(same):
        task = make_task("t", [domain], clients=100, partition="classes", same_test_classes=same)
        shares = [np.isin(task.test.labels[s.test], task.train.labels[s.train]).mean() for s in task.shards]
        return float(np.mean(shares))

    assert known(True) == 1
    assert 0.2 < known(False) < 0.4


def test_resuming_the_released_schedules_begins_at_a_high_rate():
    """Both carry the current rate along and multiply it; a fresh one begins at the first rate wherever it starts."""
    steps, cosine, rate = Steps((150, 250)), Cosine(), 0.1
    assert math.isclose(rate * steps(300, 400), 0.001)  # the released one: 0.1, as no milestone comes again
    start, rounds = 225, 300

    def factor(t):
        return 1 + math.cos(math.pi * t / rounds)

    released = rate * factor(start) / factor(start - 1)
    assert round(released, 4) == 0.0975
    assert round(rate * cosine(start, rounds), 4) == 0.0146


def test_masked_classes_still_count_in_the_softmax():
    logits = torch.zeros(1, 4, 10)
    logits[..., 3:] = 9.0  # of classes that are not in the batch
    y = torch.tensor([0, 1, 2, 0])
    loss = cross_entropy(mask_absent(logits.requires_grad_(), y), y)
    assert math.isclose(float(loss.detach()), math.log(10), rel_tol=1e-6)  # log 3 if they were left out
    (slope,) = torch.autograd.grad(loss, logits)
    assert slope[..., 3:].abs().max() == 0


def test_with_batch_statistics_a_prediction_depends_on_its_neighbours():
    net = Net(NETS["digit"])
    weights = net.init(Layout(1, ATOM), seed=0)
    torch.manual_seed(0)
    images = torch.rand(40, 3, 28, 28)
    images[20:] *= 0.2  # darker neighbours
    together = net.run(ATOM, weights, images)[0, :10]
    among_its_own = net.run(ATOM, weights, images[:20])[0, :10]
    assert not torch.allclose(together, among_its_own, rtol=0.1, atol=0.01)
    with pytest.raises(ValueError, match="more than 1 value"):
        net.run(ATOM, weights, images[:1])


def test_counting_bases_by_floats_loses_one():
    assert int(0.3 / 0.1) == 2
    assert int(Width(3, 10) / Width(1, 10)) == 3


def test_sentences_that_the_papers_own_table_contradicts():
    tables = {task: EXHIBITS[f"table1-{task}"].printed for task in ("cifar10", "digits", "domainnet")}
    printed = {task: {(place.series, place.key): v for place, v in table.items()} for task, table in tables.items()}
    worse = {(t, w) for t, at in printed.items() for w in NAMES if at["Split-Mix", w] < at["SHeteroFL", w]}
    assert worse == {(task, w) for task in ("cifar10", "digits") for w in ("1/8", "1/4")}  # "outperforms with the same"
    narrow = {series: value for (series, width), value in printed["cifar10"].items() if width == "1/8"}
    assert max(narrow, key=narrow.__getitem__) == "SHeteroFL"  # "much lower"
    widest = [value for (series, _), value in printed["domainnet"].items() if series.startswith("FedAvg")]
    assert printed["domainnet"]["Split-Mix", "1"] > max(widest)  # "not comparable with the wider ones"
    assert 81.8 not in [value for (series, _), value in printed["cifar10"].items() if series == "SHeteroFL"]


def test_the_page_names_every_test_here_and_none_that_is_gone():
    root = Path(__file__).parents[2]
    named = set(re.findall(r"`(test_\w+)`", (root / "docs" / "errata.md").read_text()))
    here = {name for name in globals() if name.startswith("test_")}
    assert here - named == {"test_the_page_names_every_test_here_and_none_that_is_gone"}
    rooms = "".join(path.read_text() for path in (root / "tests").glob("*/test_*.py"))
    assert [name for name in sorted(named) if f"def {name}(" not in rooms] == []
