"""Cutting parts out of the server's weights and merging them back."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout, Part, Update, Weights, Width

Windows = tuple[Tensor, ...]  # for each axis of an entry, the numbers of the rows that belong to a part


def covering(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts that must travel: of nested parts only the widest.

    >>> covering([Part(0, Width(1, 8)), Part(0, Width(1, 2))])
    (Part(base=0, width=Fraction(1, 2), shift=0),)
    """
    widest: dict[int, Part] = {}
    for part in parts:
        if part.base not in widest or part.width > widest[part.base].width:
            widest[part.base] = part
    chosen = tuple(widest.values())
    if len({(part.width, part.shift) for part in chosen}) != 1:
        raise UserError(f"the parts of one job must be nested or share one width and shift, got {chosen}")
    return chosen


def cut(net: Net, layout: Layout, weights: Weights, parts: Sequence[Part]) -> Weights:
    """Copy parts of one width and shift out of the weights, stacked in the given order."""
    bases = torch.tensor([part.base for part in parts])
    picked = {name: value.index_select(0, bases) for name, value in weights.items()}
    return window(net, layout.width, picked, parts[0])


def window(net: Net, full: Width, weights: Weights, part: Part) -> Weights:
    """The entries of a part, taken from stacked bases of the full width; differentiable, so nested parts share leaves."""
    if part.width == full:
        return weights
    windows = windows_of(net, full, part)
    return {name: _take(value, windows[name]) for name, value in weights.items()}


def merge(net: Net, layout: Layout, weights: Weights, updates: Iterable[Update]) -> Weights:
    """Mean of every entry over the clients that trained it, weighted by samples; entries nobody trained stay (Alg. 1).

    Updates are added one at a time, so memory does not grow with the number of clients.
    """
    # float64: merging what was cut gives back the same bytes, whatever the weights of the clients
    sums = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in weights.items()}
    seen = {name: torch.zeros((), dtype=torch.float64).expand(value.shape) for name, value in weights.items()}
    whole = torch.zeros(layout.count, dtype=torch.float64)  # samples that trained a base as a whole
    for update in updates:
        parts = covering(update.parts)
        bases = torch.tensor([part.base for part in parts])
        if parts[0].width == layout.width:
            whole.index_add_(0, bases, torch.full((len(parts),), float(update.samples), dtype=torch.float64))
            for name, value in update.weights.items():
                sums[name].index_add_(0, bases, value.double(), alpha=update.samples)
            continue
        windows = windows_of(net, layout.width, parts[0])
        for name, value in update.weights.items():
            if not seen[name].stride() == sums[name].stride():
                seen[name] = torch.zeros_like(sums[name])
            where = _mesh((bases, *windows[name]))
            sums[name][where] += value.double() * update.samples
            seen[name][where] += update.samples
    return {name: _mean(value, sums[name], seen[name], whole) for name, value in weights.items()}


def windows_of(net: Net, full: Width, part: Part) -> dict[str, Windows]:
    """Which entries of the full net make up a part: `width` of each scaled axis, from `shift` on, wrapping around."""
    wide, small, blocks = net.shapes(full), net.shapes(part.width), net.blocks(full)
    return {
        name: tuple(
            _window(have, want, part.shift, blocks.get(name, 1) if axis == 1 else 1)
            for axis, (have, want) in enumerate(zip(wide[name], small[name], strict=True))
        )
        for name in wide
    }


def _window(have: int, want: int, shift: int, block: int) -> Tensor:
    """Rows of one axis: `want` of `have`; rows come in blocks where a channel was flattened with its pixels."""
    if have == want:
        return torch.arange(have)
    channels = (torch.arange(want // block) + shift) % (have // block)
    return (channels[:, None] * block + torch.arange(block)).flatten()


def _take(value: Tensor, windows: Windows) -> Tensor:
    for axis, rows in enumerate(windows, start=1):
        if len(rows) == value.shape[axis]:
            continue
        if int(rows[-1]) - int(rows[0]) + 1 == len(rows):
            value = value.narrow(axis, int(rows[0]), len(rows))
        else:
            value = value.index_select(axis, rows)
    return value


def _mesh(axes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Index tensors that pick the outer product of the rows of every axis."""
    return tuple(rows.view([-1 if i == axis else 1 for i in range(len(axes))]) for axis, rows in enumerate(axes))


def _mean(old: Tensor, total: Tensor, seen: Tensor, whole: Tensor) -> Tensor:
    count = whole.view([-1] + [1] * (old.dim() - 1)) + seen
    return torch.where(count > 0, total / count.clamp(min=1), old.double()).to(old.dtype)
