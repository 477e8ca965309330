"""Cutting parts out of the server's weights and merging them back."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any

import torch
from torch import Tensor

from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Layout, Part, Train, Update, Weights, at_width, nested_width, plain_name
from splitmix.core.width import Width

Axes = tuple[slice | Tensor, ...]  # for each axis of an entry, the rows that belong to a part
Came = tuple[Part, frozenset[str]]  # a part that was trained, and the entries that came of it
AGGREGATES = {"mean": 0.0, "trimmed": 0.2, "median": 0.5}  # which share of the values is left out, at either end
LEAST = 5  # values of which some may be left out


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
    widths = {id(part.width): part.width for part in chosen}  # mostly one object: fractions are slow to compare
    if len(shifts) != 1 or len(set(widths.values())) > 1:
        raise UserError(f"the parts of one job must be nested or share one width and shift, got {chosen}")
    return chosen


def form(parts: Sequence[Part]) -> tuple[int, frozenset[Width]]:
    """What the download of some parts looks like: how many nets, and which widths are among them.

    Entries of parts of one form have the same names, types and shapes.
    """
    return len(covering(parts)), frozenset({id(part.width): part.width for part in parts}.values())


def cut(net: Net, layout: Layout, weights: Weights, parts: Sequence[Part]) -> Weights:
    """Copy the covering parts out of the weights, stacked in the given order, with the statistics of those in them."""
    bases = torch.tensor([part.base for part in covering(parts)])
    return {name: value.index_select(0, bases) for name, value in _uncut(net, layout, weights, parts).items()}


def returned(net: Net, layout: Layout, weights: Weights, job: Train, taken: Callable[..., Weights] = cut) -> Weights:
    """What a client was sent, of all that it sends back: norms that it keeps to itself are not among it."""
    private = net.norm_names(covering(job.parts)[0].width) if job.local_norms else set()
    sent = taken(net, layout, weights, job.parts)
    return {name: value for name, value in sent.items() if name not in private}


def like(net: Net, layout: Layout, weights: Weights, parts: Sequence[Part]) -> Weights:
    """Tensors of the names, types and shapes that `cut` gives; nothing is copied, and what they hold means nothing."""
    count = len(covering(parts))
    entries = _uncut(net, layout, weights, parts)
    return {name: value[:1].expand(count, *value.shape[1:]) for name, value in entries.items()}


def _uncut(net: Net, layout: Layout, weights: Weights, parts: Sequence[Part]) -> Weights:
    """The entries of the covering parts, of all bases: views of the weights where possible."""
    whole = covering(parts)
    inner = {part.width for part in parts} - {whole[0].width}
    nested = {name: value for name, value in weights.items() if nested_width(name) in inner}
    places = windows_of(net, layout.width, whole[0]) if nested else {}
    for name, value in nested.items():
        nested[name] = _place(value, weights[plain_name(name)], places[plain_name(name)])
    return window(net, layout.width, weights, whole[0]) | nested


def window(net: Net, full: Width, weights: Weights, part: Part) -> Weights:
    """The entries of a part, taken from stacked bases of the full width."""
    return windows(net, full, weights, [part])[0]


def windows(net: Net, full: Width, weights: Weights, parts: Sequence[Part]) -> list[Weights]:
    """The entries of several parts, which share the leaves that they are taken from; differentiable.

    Where the weights keep an entry for a part's own width (norm statistics), it takes the window's place.
    """
    whole = {name: value for name, value in weights.items() if nested_width(name) is None}
    if all(part.width == full for part in parts):
        return [whole for _ in parts]
    places = [windows_of(net, full, part) for part in parts]
    take: Callable[..., tuple[Tensor, ...]] = Windows.apply
    pieces = {name: take(value, *(place[name] for place in places)) for name, value in whole.items()}
    found = [{name: pieces[name][i] for name in whole} for i in range(len(parts))]
    for part, place, entries in zip(parts, places, found, strict=True):
        for name, value in whole.items():
            kept = weights.get(at_width(part.width, name))
            if kept is not None:
                entries[name] = _place(kept, value, place[name])
    return found


class Windows(torch.autograd.Function):
    """Windows of one tensor. Their gradients meet in one tensor of its size; slices would make one for each window."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, *places: Axes) -> tuple[Tensor, ...]:
        ctx.places, ctx.shape = places, whole.shape
        ctx.set_materialize_grads(False)
        return tuple(_take(whole, axes) for axes in places)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        total: Tensor | None = None
        used = [(slope, axes) for slope, axes in zip(slopes, ctx.places, strict=True) if slope is not None]
        for slope, axes in sorted(used, key=lambda pair: -pair[0].numel()):
            if total is None and slope.shape == ctx.shape:
                total = slope.clone()
                continue
            total = slope.new_zeros(ctx.shape) if total is None else total
            total[_outer((slice(0, ctx.shape[0]), *axes))] += slope
        return total, *(None for _ in ctx.places)


def merge(net: Net, layout: Layout, weights: Weights, updates: Iterable[Update]) -> Weights:
    """Mean of every entry over the clients that trained it, weighted by samples; entries nobody trained stay (Alg. 1).

    A running mean for each part that came, one update in memory at a time: mean += (update - mean) * samples / samples
    so far. At the end parts that overlap are averaged in the same way. Merging what was cut gives back the same bytes.
    """
    samples: dict[Came, float] = {}
    means: dict[Came, Weights] = {}
    for update in updates:
        count, names = update.samples * update.weight, frozenset(update.weights)
        rows = {name: value.unbind() for name, value in update.weights.items()}
        held, came, shares = list[Tensor](), list[Tensor](), list[float]()
        for row, part in enumerate(covering(update.parts)):
            key = part, names
            samples[key] = samples.get(key, 0) + count
            if key not in means:
                means[key] = {name: value[row].clone() for name, value in rows.items()}
                continue
            held += means[key].values()
            came += [rows[name][row] for name in means[key]]
            shares += [count / samples[key]] * len(rows)
        if held:  # all parts in one call
            torch._foreach_lerp_(held, came, shares)
    return _overlaid(net, layout, weights, means, samples)


def merge_middle(net: Net, layout: Layout, weights: Weights, updates: Iterable[Update], share: float) -> Weights:
    """The trimmed mean or median of every number that `LEAST` clients trained, with a vote each; of others the mean.

    What a few clients send in harm is left out. All updates of the round are in memory at once: the cohort's uploads.
    """
    held = [replace(update, samples=1, weight=1) for update in updates]
    merged = merge(net, layout, weights, held)
    pieces: dict[tuple[str, int], list[tuple[Any, Tensor]]] = {}
    for update in held:
        for row, part in enumerate(covering(update.parts)):
            places = windows_of(net, layout.width, part)
            for name, value in update.weights.items():
                kept, where = _home(merged, part, name, value[row], places)
                pieces.setdefault((kept, part.base), []).append((where, value[row]))
    for (kept, base), came in pieces.items():
        target = merged[kept][base]
        votes = target.new_full((len(came), *target.shape), nan)
        for vote, (where, value) in zip(votes, came, strict=True):
            vote[where] = value
        enough = votes.isfinite().sum(0) >= LEAST
        target[enough] = middle(votes[:, enough], share)
    return merged


def middle(votes: Tensor, share: float) -> Tensor:
    """The mean over the first axis without the share of the smallest and of the largest; .5 is the median.

    NaN is no vote.

    >>> votes = torch.tensor([9.0, 1.0, 3.0, 2.0, -70.0, nan])
    >>> middle(votes, 0.2), middle(votes, 0.5)
    (tensor(2.), tensor(2.))
    """
    ranked, count = votes.sort(0).values, votes.isfinite().sum(0)
    left_out = torch.minimum((count * share).int(), (count - 1) // 2)
    rank = torch.arange(len(votes)).view(-1, *[1] * (votes.dim() - 1))
    kept = (rank >= left_out) & (rank < count - left_out)
    return torch.where(kept, ranked, 0).sum(0) / kept.sum(0)


def _overlaid(
    net: Net, layout: Layout, weights: Weights, means: dict[Came, Weights], samples: dict[Came, float]
) -> Weights:
    """The weights, with the parts' means put in; where parts overlap, the mean by samples."""
    merged = {name: value.clone() for name, value in weights.items()}
    bases = [part.base for part, _ in means]
    seen: dict[tuple[int, str], Tensor] = {}  # samples behind every entry of a base that several parts trained
    for (part, came), mean in means.items():
        places = windows_of(net, layout.width, part)
        for name, value in mean.items():
            kept, where = _home(merged, part, name, value, places)
            target = merged[kept][part.base]
            if bases.count(part.base) == 1:
                target[where] = value
                continue
            count = seen.setdefault((part.base, kept), torch.zeros_like(target))
            count[where] += samples[part, came]
            target[where] = torch.lerp(target[where], value, samples[part, came] / count[where])
    return merged


def _home(weights: Weights, part: Part, name: str, value: Tensor, places: Mapping[str, Axes]) -> tuple[str, Any]:
    """Under which name the weights keep an entry of a part, and where in it."""
    own = at_width(part.width, name)  # statistics of the part's width, if they are kept
    kept = own if own in weights else name
    return kept, ... if weights[kept].shape[1:] == value.shape else _outer(places[plain_name(name)])


def times_held(net: Net, layout: Layout, names: Iterable[str], parts: Iterable[Part]) -> Weights:
    """How many of the parts hold each number of these entries of the server's weights."""
    shapes = net.shapes(layout.width)
    times = {name: torch.zeros(layout.count, *shapes[name]) for name in names}
    for part, often in Counter(parts).items():
        places = windows_of(net, layout.width, part)
        for name, count in times.items():
            count[part.base][_outer(places[name])] += often
    return times


def windows_of(net: Net, full: Width, part: Part) -> Mapping[str, Axes]:
    """Which entries of the full net make up a part: `width` of each scaled axis, from `shift` on, wrapping around."""
    key = (full, part.width, part.shift)
    known: Mapping[str, Axes] | None = net.windows.get(key)
    if known is None:
        wide, small, blocks = net.shapes(full), net.shapes(part.width), net.blocks(full)
        net.windows[key] = known = {
            name: tuple(
                _window(have, want, part.shift, blocks.get(name, 1) if axis == 1 else 1)
                for axis, (have, want) in enumerate(zip(wide[name], small[name], strict=True))
            )
            for name in wide
        }
    return known


def _window(have: int, want: int, shift: int, block: int) -> slice | Tensor:
    """Rows of one axis: `want` of `have`; rows come in blocks where a channel was flattened with its pixels."""
    start, channels = (0, have) if have == want else (shift * block % have, have // block)
    if start + want <= have:
        return slice(start, start + want)
    rows = (torch.arange(want // block) + shift) % channels
    return (rows[:, None] * block + torch.arange(block)).flatten()


def _place(kept: Tensor, whole: Tensor, axes: Axes) -> Tensor:
    """Statistics of a width at the place of a part: all of them, or a window, where they are kept for every channel."""
    return _take(kept, axes) if kept.shape == whole.shape else kept


def _take(value: Tensor, axes: Axes) -> Tensor:
    """The outer product of the rows of every axis but the first, which numbers the bases."""
    for axis, rows in enumerate(axes, start=1):
        if isinstance(rows, Tensor):
            value = value.index_select(axis, rows)
        elif rows.stop - rows.start != value.shape[axis]:
            value = value.narrow(axis, rows.start, rows.stop - rows.start)
    return value


def _outer(axes: Axes) -> Axes:
    """An index that picks the outer product of the rows of every axis: slices if they will do, they are much faster."""
    if not any(isinstance(rows, Tensor) for rows in axes):
        return axes
    rows = [axis if isinstance(axis, Tensor) else torch.arange(axis.start, axis.stop) for axis in axes]
    return tuple(numbers.view([-1 if i == axis else 1 for i in range(len(axes))]) for axis, numbers in enumerate(rows))
