"""Clients side by side: jobs of one shape as one stacked net, in which each base has the images of its client.

A GPU has room for many small nets at once; on a CPU this gains nothing, and one client follows another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from splitmix.core.batches import UNTIMED, ClientData, Clock, Optimizer, augmented, shuffled
from splitmix.core.client import OwnNorms, keep_norms, with_own_norms
from splitmix.core.net import Net
from splitmix.core.objective import Objective, Predict
from splitmix.core.parts import covering
from splitmix.core.reproducible import drawing_for, torch_rng_for
from splitmix.core.types import Job, Train, Update, Weights
from splitmix.core.width import Width

MOST = 32  # bases side by side, of all clients together


class ApartError(Exception):
    """These clients must train one after another."""


def packs(jobs: Sequence[Job], most: int, samples: Callable[[int], int]) -> Iterator[list[Job]]:
    """The jobs in their order; neighbours of one shape are together, up to `most` bases of them.

    One shape: parts of one width that are not nested, and as many images; their batches are then alike.
    """
    if most < 2:
        yield from ([job] for job in jobs)
        return
    pack: list[Job] = []
    shape, bases = None, 0
    for job in jobs:
        own = _shape(job, samples)
        count = len(job.parts) if isinstance(job, Train) else 0
        if pack and (own is None or own != shape or bases + count > most):
            yield pack
            pack, bases = [], 0
        pack.append(job)
        shape, bases = own, bases + count
    if pack:
        yield pack


def _shape(job: Job, samples: Callable[[int], int]) -> Any:
    if not isinstance(job, Train) or len({part.width for part in job.parts}) > 1:
        return None
    return job.round, job.parts[0].width, job.plan, job.local_norms, samples(job.client)


def train_side_by_side(
    jobs: Sequence[Train],
    net: Net,
    downloads: Sequence[Weights],
    data: Sequence[ClientData],
    objective: Objective,
    own: Sequence[OwnNorms],
    clock: Clock = UNTIMED,
) -> list[Update]:
    """What `train_client` makes of each of these jobs, but for rounding."""
    plan, width, device = jobs[0].plan, jobs[0].parts[0].width, data[0].train.labels.device
    if not net.packable(width):
        raise ApartError
    private = net.norm_names(width) if jobs[0].local_norms else set()
    parts, names = [covering(job.parts) for job in jobs], net.parameter_names(width)
    starts = [with_own_norms(d, mine, private, o) for d, mine, o in zip(downloads, parts, own, strict=True)]
    leaves = {name: torch.cat([s[name] for s in starts]).requires_grad_(name in names) for name in starts[0]}
    optimizer = Optimizer(
        {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}, net.norm_names(width), plan
    )
    rngs = [torch_rng_for(job.seed, "client", job.round, job.client) for job in jobs]
    counts = [len(mine) for mine in parts]
    owner = torch.arange(len(jobs)).repeat_interleave(torch.tensor(counts)).to(device)  # of each base
    losses: list[Tensor] = []
    clock.lap("other")
    with drawing_for(device, "none"):
        drawn = _draws(device)
        orders = [shuffled(len(d.train), plan.batch, plan.epochs, rng) for d, rng in zip(data, rngs, strict=True)]
        for picks in zip(*orders, strict=True):
            x, y = gathered(data, picks, rngs)
            clock.lap("data")
            with plan.computing_on(device):
                logits = net.run(width, leaves, x[owner], training=True).split(counts)
                done = [Computed((width,), *pair) for pair in zip(x, logits, strict=True)]
                each = [objective(f, f.x, labels, rng) for f, labels, rng in zip(done, y, rngs, strict=True)]
            if not losses and _draws(device) != drawn:
                raise ApartError  # a dropout: each client draws its own
            clock.lap("forward")
            optimizer.step(torch.stack(each).sum(), clock)
            losses.append(torch.stack(each).detach())
    means = torch.stack(losses).mean(0).tolist()
    trained = {name: value.detach().split(counts) for name, value in leaves.items()}
    updates = []
    for i, (job, mine) in enumerate(zip(jobs, parts, strict=True)):
        weights = {name: pieces[i] for name, pieces in trained.items()}
        upload = keep_norms(weights, mine, private, own[i])
        loss = {"loss": means[i] / objective.terms(len(job.parts))}
        updates.append(Update(job.round, job.client, job.parts, upload, len(data[i].train), loss, run=job.run))
    return updates


def gathered(
    data: Sequence[ClientData], picks: Sequence[Tensor], rngs: Sequence[torch.Generator]
) -> tuple[Tensor, Sequence[Tensor]]:
    """A batch of each client, (client, batch, ...), and the labels; images that all of them share are taken at once."""
    size, shared = len(picks[0]), all(d.train.images is data[0].train.images for d in data)
    if shared:
        rows = torch.cat([d.train.rows[own] for d, own in zip(data, picks, strict=True)])
        x, y = replace(data[0].train, rows=rows).batch(torch.arange(len(rows)))
        found = list(zip(x.split(size), y.split(size), strict=True))
    else:
        found = [d.train.batch(own) for d, own in zip(data, picks, strict=True)]
    each = [augmented(x, d.augment, rng) for (x, _), d, rng in zip(found, data, rngs, strict=True)]
    return torch.stack(each), [y for _, y in found]


@dataclass(frozen=True)
class Computed:
    """A forward that is done: what the bases of a client made of its batch, beside those of others."""

    widths: Sequence[Width]
    x: Tensor
    logits: Tensor

    def __call__(
        self, x: Tensor, robust: float = 0.0, *, training: bool = True, only: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        if x is not self.x or robust or not training or only is not None:
            raise ApartError  # an objective that asks for more than the losses of a batch
        return [self.logits]

    def fixed(self, place: int, robust: float = 0.0) -> Predict:
        raise ApartError


def _draws(device: torch.device) -> list[bytes]:
    """Where the generators are that a net may draw from without an address."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return [state.numpy().tobytes() for state in states]
