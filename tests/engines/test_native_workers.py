"""Native kernels in worker processes: the same bits from any number of them."""

import shutil

import pytest

from helpers.toys import LAYOUT, METHOD, ToyClients, to_bytes, toy_federation, toy_simulator
from splitmix.core.net import Net
from splitmix.core.rounds import federate
from splitmix.engines.workers import Workers
from splitmix.nets.layers import Conv, Linear, ScaledNet, scaled
from splitmix.nets.native.library import COMPILERS
from splitmix.nets.native.stages import NativeStages
from splitmix.nets.stages import Stages

pytestmark = pytest.mark.skipif(
    not Workers.possible() or not any(map(shutil.which, COMPILERS)), reason="needs fork and a C compiler"
)


class Staged(ScaledNet):
    """A net in stages for 6x6 images of one channel."""

    def make_layers(self, width, classes, norm):
        self.conv, self.norm1 = Conv(1, scaled(16, width), 3, padding=1), norm(scaled(16, width))
        self.hidden, self.norm2 = Linear(9 * scaled(16, width), scaled(32, width)), norm(scaled(32, width))
        self.last = Linear(scaled(32, width), classes)

    def forward(self, x, robust=0.0):
        x = self.stages.conv(x, self.conv, self.norm1, robust, pool=True)
        return self.last(self.stages.linear(x.flatten(1), self.hidden, self.norm2, robust))


def trained(stages, workers):
    net = Net(lambda width: Staged(width, classes=3, stages=stages))
    with toy_simulator(ToyClients(), net=net, workers=workers) as engine:
        return federate(METHOD, engine, net, net.init(LAYOUT, 0), toy_federation(rounds=2, cohort=None))


def test_native_kernels_give_the_same_bits_from_any_number_of_workers():
    alone = trained(NativeStages(), 1)
    assert to_bytes(alone) == to_bytes(trained(NativeStages(), 2))
    plain = trained(Stages(), 1)
    assert to_bytes(alone) != to_bytes(plain)  # these kernels it was
    assert all(float((alone[name] - plain[name]).abs().max()) < 1e-4 for name in plain)
