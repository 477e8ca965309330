"""What a user should know of a net of their own before it trains: each remark is a line, and none stops the run."""

from collections.abc import Iterator

import torch

from splitmix.core.net import Net
from splitmix.core.width import Width
from splitmix.runs.graphs import MIXING, Sampled
from splitmix.runs.setup import Setup

FEW_UNITS = 16  # of a linear layer: mixes of bases below stay points behind the full net, however many they are
FEW_CHANNELS = 3


def remarks(setup: Setup) -> Iterator[str]:
    """What is odd about the net, if it is a user's own."""
    net = setup.net
    if net.stacking not in ("", "yes"):
        yield f"its bases run one after another: {net.stacking}"
    if net.rescaled is None:  # a net of ours
        return
    width = setup.method.layout.width
    yield from about_size(net, width)
    yield from about_bundle(setup, width)


def about_size(net: Net, width: Width) -> Iterator[str]:
    """A base may be as large as the full net, or so small that no number of bases makes up for it."""
    if width == 1:
        return
    wide = net.shapes(min(Width(1), 2 * width))
    if net.shapes(width) == wide:
        yield "build(width) gives nets of one size at all widths: a budget saves no work"
    sizes = {
        name.removesuffix(".weight"): (shape[0], len(shape))
        for name, shape in net.shapes(width).items()
        if len(shape) > 1 and shape[0] != wide[name][0]
    }
    small = {name: size for name, (size, axes) in sizes.items() if size < (FEW_UNITS if axes == 2 else FEW_CHANNELS)}
    if small:
        name = min(small, key=lambda name: small[name])
        what = ("unit" if sizes[name][1] == 2 else "channel") + ("s" if small[name] > 1 else "")
        yield (
            f"a base of width {width} is small: its layer '{name}' has {small[name]} {what}; a wider net, a larger "
            "atom with budgets to match, or more rounds bring its mixes nearer to the full net"
        )


def about_bundle(setup: Setup, width: Width) -> Iterator[str]:
    """A net may train, and yet be none that a device can run: better known now than after the last round."""
    if setup.config.method_name not in MIXING:
        return
    sampled = Sampled.of(setup.net.build, width, setup.image, setup.task.kind)
    try:
        with torch.random.fork_rng(devices=[]):
            sampled.traced(setup.net.shapes(width))
    except Exception as error:  # whatever the user's code raises: it trains all the same
        said = (str(error) or type(error).__name__).splitlines()[0]
        yield said if said.startswith("the net cannot be bundled") else f"the net cannot be bundled: {said}"
