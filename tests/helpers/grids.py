"""A made-up run whose clients answer by the dial, and grids of it."""

from contextlib import contextmanager
from types import SimpleNamespace

from helpers.toys import ATOM, FULL, METHOD
from splitmix.attacks.pgd import PGD
from splitmix.core.types import Question, Tally
from splitmix.runs.measure.grid import Sweep, measure_grid

STRONG = PGD(steps=20, step=4 / 255, restarts=2)


class Clients:
    """An engine whose clients lose answers to the dial, and more of them to an attack."""

    def run(self, weights, jobs):
        for job in jobs:
            asked = job.question
            right = 16 - 4 * asked.robust if asked.attack is None else 4 + 8 * asked.robust
            yield Tally(job.client, tuple(int(right) + len(mix) - job.client for mix in job.mixes), samples=20)


def finished(*, dial=True, norm="tracked"):
    """A run of two clients in a domain each, or what a grid needs of one."""

    @contextmanager
    def engine(workers):
        yield Clients()

    def mixes(widths):
        return {width: METHOD.compose(width) for width in widths or METHOD.widths}

    return SimpleNamespace(
        path="run",
        setup=SimpleNamespace(dial=dial, domains={0: "a", 1: "a"}, task=SimpleNamespace(classes=4), mixes=mixes),
        weights={},
        norm=norm,
        question=Question(),
        result={"weights_sha256": "0"},
        engine=engine,
    )


def toy_grid(attack=STRONG, widths=(ATOM, FULL), dials=(0.0, 0.5, 1.0)):
    return measure_grid(finished(), Sweep(widths, dials, attack), workers=1)
