"""Answers to jobs, honest and not, and the admission of them."""

import math
from dataclasses import dataclass, field, replace

import torch

from helpers.toys import LAYOUT, PLAN, Tiny, bases, toy_simulator, toy_weights
from splitmix.core.admission import Admission
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.types import Profile, Train, Update
from splitmix.core.width import Width

NET, WEIGHTS, TRACKED = Net(Tiny), toy_weights(), toy_weights(tracked=True)
PROFILES = [Profile(client, Width(1), samples=10) for client in range(9)]
FC = "fc2.weight"  # (base, 3, 2)
ATTACKER = 3  # it is given all bases


def job(client=0, *numbers, **settings):
    return Train(0, client, bases(*numbers or (1, 2)), PLAN, seed=1, run="a", **settings)


def answer(to, *, by=0.01, weights=WEIGHTS, layout=LAYOUT, **changed):
    """An honest answer, each of whose numbers moved by as much."""
    moved = {name: value + by for name, value in cut(NET, layout, weights, to.parts).items()}
    return replace(Update(to.round, to.client, to.parts, moved, 10, {"loss": 1.0}, run=to.run), **changed)


def edited(update, **entries):
    """The update with other entries; None takes one away."""
    weights = {name: value for name, value in (update.weights | entries).items() if value is not None}
    return replace(update, weights=weights)


def filled(update, name, number):
    value = update.weights[name].clone()
    value.view(-1)[-1] = number
    return edited(update, **{name: value})


def through(answers, jobs, *, weights=WEIGHTS, **settings):
    """The updates that are admitted, and their admission."""
    admission = Admission(NET, LAYOUT, weights, PROFILES, **settings)
    return list(admission.admitted(jobs, answers)), admission


@dataclass
class Tampered:
    """The simulator, whose clients' answers pass through a function of job and answer."""

    tamper: object
    engine: object = field(default_factory=toy_simulator)

    def profiles(self, round):
        return self.engine.profiles(round)

    def run(self, weights, jobs):
        if isinstance(self.tamper, Attacker):
            self.tamper.weights = weights
        for asked, got in zip(jobs, self.engine.run(weights, jobs), strict=True):
            yield self.tamper(asked, got)


@dataclass
class Attacker:
    """One client that sends another kind of harm in each round."""

    tricks: tuple[str, ...]
    weights: dict = field(default_factory=dict)  # of the server
    before: object = None

    def __call__(self, asked, got):
        if asked.client != ATTACKER or not isinstance(asked, Train):
            return got
        bad = getattr(self, self.tricks[asked.round % len(self.tricks)])(got, FC)
        self.before = got
        return bad

    def nan(self, u, name):
        return filled(u, name, math.nan)

    def inf(self, u, name):
        return filled(u, name, math.inf)

    def shape(self, u, name):
        return edited(u, **{name: u.weights[name].transpose(1, 2)})

    def single(self, u, name):
        return edited(u, **{name: torch.full((1,), 9.0)})

    def extra(self, u, name):
        return edited(u, more=u.weights[name])

    def less(self, u, name):
        return edited(u, **{name: None})

    def foreign(self, u, name):
        return replace(u, parts=tuple(replace(part, base=(part.base + 1) % 4) for part in u.parts))

    def many(self, u, name):
        return replace(u, samples=10**18)

    def negative(self, u, name):
        return replace(u, samples=-u.samples)

    def none(self, u, name):
        return replace(u, samples=0)

    def far(self, u, name):
        return replace(
            u,
            weights={
                n: 1e4 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for n, v in u.weights.items()
            },
        )

    def backwards(self, u, name):
        old = cut(NET, LAYOUT, self.weights, u.parts)
        return replace(u, weights={n: old[n] - 1e4 * (v - old[n]) for n, v in u.weights.items()})

    def old(self, u, name):
        return self.before

    def twice(self, u, name):
        """What it sent before, under a new name."""
        return replace(self.before, round=u.round, parts=u.parts)

    def oversized(self, u, name):
        return edited(u, **{name: torch.zeros(4, 300, 2000)})
