"""Which data reached which parameters over a run, entry by entry; like its costs, replayed without training.

Both are kept in `costs.json` beside a run.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.compare.costs import Account, Profiles, account_of, replay, run_costs
from splitmix.core.net import Net
from splitmix.core.parts import covering
from splitmix.core.rounds import Federation
from splitmix.core.types import Layout, Part
from splitmix.core.width import Width
from splitmix.runs.records import DamagedError, parse_record, write_record
from splitmix.runs.setup import Setup


class ReachedShares(TypedDict):
    """The share of the server's parameters that each domain's data ever trained: of all, and of each slice.

    Slices are the bases, or where widths are nested the parameters of each width that no narrower one has.
    """

    domains: dict[str, float]
    slices: list[str]
    reached: dict[str, list[float]]


class StoredCosts(TypedDict):
    """The content of `costs.json`: bytes and MACs of each client over the whole run, and what its data reached."""

    down: list[int]
    up: list[int]
    macs: list[int]
    memory: list[int]
    coverage: ReachedShares


def read_costs(folder: Path) -> StoredCosts | None:
    """What a run costs, if it was counted and can be read."""
    try:
        return parse_record((folder / "costs.json").read_bytes(), StoredCosts)
    except (OSError, DamagedError):
        return None


def write_costs(folder: Path, setup: Setup) -> None:
    """Count what each client spends over a run, and what its data reaches, and keep that beside it."""
    account, profiles = account_of(setup), setup.clients().profiles
    spent = sorted(run_costs(account, profiles, setup.how).items())
    each = {key: [getattr(client, key) for _, client in spent] for key in ("down", "up", "macs", "memory")}
    found = coverage(account, profiles, setup.how, setup.domains)
    write_record(folder / "costs.json", {**each, "coverage": found}, indent=None)


def coverage(account: Account, profiles: Profiles, how: Federation, domains: Mapping[int, str]) -> ReachedShares:
    """Which data reached which parameters over a run, entry by entry; `domains` names each client's domain."""
    held: dict[str, set[Part]] = {domain: set() for domain in domains.values()}
    for profile, parts in replay(account.method, profiles, how):
        held[domains[profile.client]] |= set(covering(parts))
    layout = account.method.layout
    sizes = trained(account.net, layout, [Part(base, layout.width) for base in range(layout.count)])
    reached = {domain: trained(account.net, layout, parts) for domain, parts in held.items()}
    return {
        "domains": {domain: sum(found.values()) / sum(sizes.values()) for domain, found in reached.items()},
        "slices": list(sizes),
        "reached": {domain: [found[name] / sizes[name] for name in sizes] for domain, found in reached.items()},
    }


def trained(net: Net, layout: Layout, parts: Iterable[Part]) -> dict[str, int]:
    """How many parameters of each slice lie in at least one of the parts."""
    held = list(parts)
    found = {}
    for base in range(layout.count):
        own = [part for part in held if part.base == base]
        narrower = 0
        for width in (*layout.nested, layout.width):
            inside = union_size(net, layout.width, own, width)
            found[f"base {base}" if layout.count > 1 else str(width)] = inside - narrower
            narrower = inside
    return found


def union_size(net: Net, full: Width, parts: Sequence[Part], within: Width) -> int:
    """Parameters of the leading window `within` that lie in at least one of the parts of a base.

    A part holds an outer product of rows: those of each axis. Rows that always go together are counted as one, so that
    no array is larger than the channels of a layer squared, whatever its kernels and feature maps.
    """
    names = net.parameter_names(full)
    if any(part.width == full for part in parts):
        return sum(net.shapes(within)[name].numel() for name in names)
    if not parts:
        return 0
    wide, inner, blocks = net.shapes(full), net.shapes(within), net.blocks(full)
    shifts = torch.tensor([part.shift for part in parts])
    shapes = [net.shapes(part.width) for part in parts]
    rows = cache(partial(_rows, shifts))
    return sum(
        _outer_size(
            rows(have, tuple(shape[name][axis] for shape in shapes), blocks.get(name, 1) if axis == 1 else 1, leading)
            for axis, (have, leading) in enumerate(zip(wide[name], inner[name], strict=True))
        )
        for name in names
    )


def _rows(shifts: Tensor, have: int, wants: tuple[int, ...], block: int, leading: int) -> tuple[Tensor, Tensor]:
    """Which rows of an axis each part holds, as (part, kind of row), and how many rows there are of each kind."""
    channels, sizes = torch.arange(have) // block, torch.tensor(wants)[:, None] // block
    held = (channels - shifts[:, None]) % (have // block) < sizes  # (part, row)
    held |= torch.tensor(wants)[:, None] == have  # an axis that does not scale has no shift
    kinds, counts = held[:, :leading].unique(dim=1, return_counts=True)
    return kinds.float(), counts.double()


def _outer_size(axes: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Entries of an array that lie in at least one part, which is the outer product of the rows it holds."""
    sides = sorted(axes, key=lambda side: len(side[1]))
    if not sides:
        return 1
    held, sizes = sides.pop()
    other, weights = torch.ones(len(held), 1), torch.ones(1, dtype=torch.float64)
    for kinds, counts in sides:  # all but the last one or two have a single kind
        other = (other[:, :, None] * kinds[:, None]).flatten(1)
        weights = torch.outer(weights, counts).flatten()
    return int(weights @ (other.T @ held > 0).double() @ sizes)
