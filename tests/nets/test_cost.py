"""Cost accounting: exact counts, equal to the published ones where those are right."""

from fractions import Fraction
from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.nets.cost import Cost, cost, cost_rows, count

ATOM = Width(1, 8)
SINGLE = {  # parameters, and millions of MACs, of single nets
    "digit": {"1": (14_219_210, 47.77), "1/2": (3_559_402, 12.88), "1/4": (892_154, 3.69), "1/8": (224_194, 1.16)},
    "preresnet18": {
        "1": (11_172_170, 555.42),
        "1/2": (2_796_714, 139.30),
        "1/4": (701_018, 35.05),
        "1/8": (176_178, 8.87),
    },
    "alexnet": {
        "1": (57_063_498, 923.07),
        "1/2": (14_288_938, 253.83),
        "1/4": (3_583_770, 74.99),
        "1/8": (901_714, 24.51),
    },
}
MIXES = {  # the same of mixes of 8, 4, 2 and 1 bases
    "digit": {8: (1_793_552, 9.27), 4: (896_776, 4.63), 2: (448_388, 2.32), 1: (224_194, 1.16)},
    "preresnet18": {8: (1_409_424, 70.98), 4: (704_712, 35.49), 2: (352_356, 17.75), 1: (176_178, 8.87)},
    "alexnet": {8: (7_213_712, 196.10), 4: (3_606_856, 98.05), 2: (1_803_428, 49.03), 1: (901_714, 24.51)},
}
EXACT = {
    "digit": (47_767_552, 1_158_528),
    "preresnet18": (555_422_720, 8_872_576),
    "alexnet": (923_069_120, 24_512_664),
}
DUAL = {"digit": 704, "preresnet18": 976, "alexnet": 2336}


def millions(macs):
    return round(macs / 1e6, 2)


@cache
def single_cost(name: str, width: str) -> Cost:
    return cost(NETS[name], Width(width), NETS[name].image)


@pytest.mark.parametrize(("name", "width"), [(name, width) for name in SINGLE for width in SINGLE[name]])
def test_a_single_net_has_the_published_parameters_and_macs(name, width):
    found = single_cost(name, width)
    assert (found.parameters, millions(found.macs)) == SINGLE[name][width]


@pytest.mark.parametrize(("name", "bases"), [(name, bases) for name in MIXES for bases in MIXES[name]])
def test_a_mix_has_the_published_parameters_and_macs(name, bases):
    found = cost(NETS[name], ATOM, NETS[name].image) * bases
    assert (found.parameters, millions(found.macs)) == MIXES[name][bases]


@pytest.mark.parametrize("name", EXACT)
def test_macs_are_exact_to_the_unit(name):
    assert (single_cost(name, "1").macs, single_cost(name, "1/8").macs) == EXACT[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_macs_are_those_that_pytorch_counts(name):
    height, width, channels = NETS[name].image
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        NETS[name](ATOM).eval()(torch.zeros(1, channels, height, width))
    assert counter.get_total_flops() == 2 * single_cost(name, "1/8").macs


@pytest.mark.parametrize("name", NETS)
def test_bases_side_by_side_cost_as_much_as_one_after_the_other(name, monkeypatch):
    build, (height, width, channels) = NETS[name], NETS[name].image
    monkeypatch.setattr(build, "stack", 3, raising=False)
    net = Net(build)
    weights = net.init(Layout(3, ATOM), seed=0, tracked=True)
    macs, activations = count(lambda: net.run(ATOM, weights, torch.zeros(1, channels, height, width)))
    mix = cost(build, ATOM, build.image) * 3
    assert (macs, activations) == (mix.macs, mix.activations)


@pytest.mark.parametrize("name", DUAL)
def test_dual_norms_add_two_numbers_for_each_channel_and_no_macs(name):
    build, image = NETS[name], NETS[name].image
    single, dual = cost(build, ATOM, image), cost(partial(build, dual=True), ATOM, image)
    assert dual.parameters - single.parameters == DUAL[name]
    assert (dual.macs, dual.activations) == (single.macs, single.activations)


def test_eight_bases_need_the_activations_of_the_full_net():
    build, image = NETS["preresnet18"], (32, 32, 3)
    assert single_cost("preresnet18", "1").activations == 1_171_466
    assert single_cost("preresnet18", "1/8").activations == 146_442
    assert (cost(build, ATOM, image) * 8).activations == 1_171_536


def test_rows_put_the_mix_beside_the_single_net():
    rows = cost_rows(NETS["digit"], (28, 28, 3), ATOM, [ATOM, Width(1)])
    assert [list(row.values()) for row in rows] == [
        ["1/8", 1, 224_194, 1_158_528, 17_898, 224_194, 1_158_528],
        ["1", 8, 1_793_552, 9_268_224, 143_184, 14_219_210, 47_767_552],
    ]
    assert list(rows[0]) == [
        *("width", "bases", "parameters", "macs", "activations"),
        *("single_parameters", "single_macs"),
    ]


def test_rows_refuse_a_width_that_no_mix_has():
    with pytest.raises(UserError, match="width 3/16 is not a multiple of the atom 1/8"):
        cost_rows(NETS["digit"], (28, 28, 3), ATOM, [Width(3, 16)])


def plain(width: Fraction) -> nn.Module:
    channels = int(8 * width)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.Flatten(), nn.Linear(channels * 16, 5)
    )


class Looks(nn.Module):
    """Reads the values of its input, which a net without values cannot do."""

    def __init__(self, width: Fraction) -> None:
        super().__init__()
        self.body = plain(width)

    def forward(self, x):
        return self.body(x * float(x.max()))


class Masked(nn.Module):
    """Has numbers of its own, without which it would do less."""

    def __init__(self, width: Fraction) -> None:
        super().__init__()
        self.body = plain(width)
        self.register_buffer("kept", torch.arange(3) >= 0)

    def forward(self, x):
        return self.body(x[:, self.kept])


@pytest.mark.parametrize("build", [plain, Looks, Masked])
def test_any_module_of_a_user_is_counted(build):
    convolved = 4 * 4 * 4  # channels, rows, columns
    assert cost(build, Width(1, 2), (4, 4, 3)) == Cost(
        parameters=(3 * 4 * 9 + 4) + 2 * 4 + (64 * 5 + 5), macs=convolved * 27 + 64 * 5, activations=2 * convolved + 5
    )


def test_a_net_of_plain_features_is_counted():
    assert cost(lambda width: nn.Linear(20, 10), Width(1), (20,)) == Cost(parameters=210, macs=200, activations=10)


def test_a_net_that_does_not_fit_its_image_says_so():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        cost(plain, Width(1), (5, 5, 3))


def test_counting_leaves_the_random_numbers_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    cost(NETS["digit"], ATOM, (28, 28, 3))
    assert torch.equal(before, torch.get_rng_state())
