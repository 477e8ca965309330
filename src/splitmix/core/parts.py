"""Cutting parts out of the server's weights and merging them back."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout, Part, Update, Weights, Width, at_width, nested_width

Windows = tuple[Tensor, ...]  # for each axis of an entry, the numbers of the rows that belong to a part


def covering(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts that must travel: of nested parts only the widest.

    >>> covering([Part(0, Width(1, 8)), Part(0, Width(1, 2))])
    (Part(base=0, width=Fraction(1, 2), shift=0),)
    """
    widest: dict[int, Part] = {}
    shifts = set()
    for part in parts:
        shifts.add(part.shift)
        if part.base not in widest or part.width > widest[part.base].width:
            widest[part.base] = part
    chosen = tuple(widest.values())
    if len(shifts) != 1 or len({part.width for part in chosen}) != 1:
        raise UserError(f"the parts of one job must be nested or share one width and shift, got {chosen}")
    return chosen


def cut(net: Net, layout: Layout, weights: Weights, parts: Sequence[Part]) -> Weights:
    """Copy parts of one width and shift out of the weights, stacked in the given order, with what is nested in them."""
    bases = torch.tensor([part.base for part in parts])
    nested = {name: value for name, value in weights.items() if (nested_width(name) or 1) < parts[0].width}
    entries = window(net, layout.width, weights, parts[0]) | nested  # views where possible: only the parts are copied
    return {name: value.index_select(0, bases) for name, value in entries.items()}


def window(net: Net, full: Width, weights: Weights, part: Part) -> Weights:
    """The entries of a part, taken from stacked bases of the full width; differentiable, so nested parts share leaves.

    Where the weights keep an entry for the part's own width (norm statistics), it takes the window's place.
    """
    whole = {name: value for name, value in weights.items() if nested_width(name) is None}
    if part.width == full:
        return whole
    windows = windows_of(net, full, part)
    own = {name: weights.get(at_width(part.width, name)) for name in whole}
    return {name: _take(value, windows[name]) if (kept := own[name]) is None else kept for name, value in whole.items()}


def merge(net: Net, layout: Layout, weights: Weights, updates: Iterable[Update]) -> Weights:
    """Mean of every entry over the clients that trained it, weighted by samples; entries nobody trained stay (Alg. 1).

    A running mean, one update in memory at a time: mean += (update - mean) * samples / samples so far. The first update
    of an entry replaces it, and merging what was cut gives back the same bytes.
    """
    mean = {name: value.clone() for name, value in weights.items()}
    rows = {name: value.unbind() for name, value in mean.items()}  # a view of each base
    whole = [0] * layout.count  # samples that trained a base as a whole
    seen: Weights = {}  # samples that trained each entry, from the first part on that is narrower than a base
    for update in updates:
        parts, samples = covering(update.parts), update.samples * update.weight
        if parts[0].width == layout.width and not seen:
            came = [value.unbind() for value in update.weights.values()]
            held = [rows[name] for name in update.weights]
            for row, part in enumerate(parts):
                whole[part.base] += samples
                share = samples / whole[part.base]
                torch._foreach_lerp_([h[part.base] for h in held], [c[row] for c in came], share)
            continue
        windows = windows_of(net, layout.width, parts[0])
        bases = torch.tensor([part.base for part in parts])
        for name, value in update.weights.items():
            where = _where((bases, *windows[name]))
            if name not in seen:
                seen[name] = _counts(whole, mean[name])
            seen[name][where] += samples
            mean[name][where] = torch.lerp(mean[name][where], value, samples / seen[name][where])
    return mean


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


def _counts(whole: Sequence[int], like: Tensor) -> Tensor:
    """The samples that trained each base, for each of its entries."""
    samples = torch.tensor(whole, dtype=like.dtype, device=like.device)
    return samples.view(-1, *[1] * (like.dim() - 1)).expand_as(like).clone()


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
        value = value.narrow(axis, int(rows[0]), len(rows)) if _consecutive(rows) else value.index_select(axis, rows)
    return value


def _where(axes: Windows) -> tuple[slice | Tensor, ...]:
    """An index that picks the outer product of the rows of every axis: slices if they will do, they are much faster."""
    if all(_consecutive(rows) for rows in axes):
        return tuple(slice(int(rows[0]), int(rows[-1]) + 1) for rows in axes)
    return tuple(rows.view([-1 if i == axis else 1 for i in range(len(axes))]) for axis, rows in enumerate(axes))


def _consecutive(rows: Tensor) -> bool:
    return bool((rows.diff() == 1).all())
