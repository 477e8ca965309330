"""Which data reached which parameters."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import SETTING, TINY, tiny
from helpers.toys import ATOM, FULL, HALF, Tiny, ToyClients
from splitmix.compare.costs import replay
from splitmix.compare.coverage import coverage, trained, union_size
from splitmix.core.net import Net
from splitmix.core.parts import covering, merge, windows_of
from splitmix.core.rounds import Federation
from splitmix.core.types import Part, Profile, Update
from splitmix.core.width import Width
from splitmix.methods import METHODS, find_method
from splitmix.methods.nested import FedRolex


def held_by_hand(method, parts):
    """Parameters that a merge of these parts changes, by changing them."""
    net, layout = Net(Tiny), method.layout
    zeros = {name: torch.zeros_like(value) for name, value in net.init(layout, seed=0).items()}
    for part in parts:
        shapes = {name: net.shapes(part.width)[name] for name in zeros}
        ones = {name: torch.ones(1, *shape) for name, shape in shapes.items()}
        zeros = merge(net, layout, zeros, [Update(0, 0, (part,), ones, samples=1)])
    return sum(int(value.count_nonzero()) for value in zeros.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_coverage_counts_the_entries_that_updates_changed(name):
    account, how = tiny(name), Federation(4, cohort=3, seed=1)
    alone, together = (
        coverage(account, ToyClients().profiles, how, dict(enumerate(domains)))["domains"]
        for domains in ("0123", "aaaa")
    )
    size = account.method.layout.count * TINY[account.method.layout.width]
    held = {client: set() for client in range(4)}
    for profile, parts in replay(account.method, ToyClients().profiles, how):
        held[profile.client] |= set(covering(parts))
    by_hand = {str(client): held_by_hand(account.method, parts) / size for client, parts in held.items()}
    assert alone == pytest.approx(by_hand)
    assert together == pytest.approx({"a": held_by_hand(account.method, set().union(*held.values())) / size})


def test_nested_windows_leave_the_outer_rings_to_strong_clients():
    domains = dict(enumerate(["weak", "weak", "half", "full"]))
    found = coverage(tiny("heterofl"), ToyClients().profiles, Federation(9), domains)
    assert found["slices"] == ["1/4", "1/2", "1"]
    assert found["reached"] == {"weak": [1, 0, 0], "half": [1, 1, 0], "full": [1, 1, 1]}
    assert found["domains"] == pytest.approx({"weak": 75 / 723, "half": 219 / 723, "full": 1})


def test_every_domain_reaches_every_base_of_split_mix():
    domains = dict(enumerate(["weak", "weak", "half", "full"]))
    found = coverage(tiny("splitmix"), ToyClients().profiles, Federation(20), domains)
    assert found["slices"] == ["base 0", "base 1", "base 2", "base 3"]
    assert set(found["domains"].values()) == {1.0}


def test_rolling_windows_reach_all_channels_but_not_all_pairs_of_them():
    account = replace(tiny("fedrolex"), method=FedRolex((ATOM, FULL)))
    found = coverage(account, lambda round: [Profile(0, ATOM, samples=1)], Federation(8), {0: "weak"})
    # of 8 x 8 pairs of channels in fc1, windows of 2 x 2 along the diagonal hold 3 in each row
    assert found["domains"]["weak"] == (723 - 9 * 8 * 5) / 723


windows = st.lists(st.tuples(st.sampled_from([Width(n, 8) for n in range(1, 8)]), st.integers(0, 20)), max_size=6)


@pytest.mark.slow
@settings(max_examples=15)
@given(windows, st.sampled_from([Width(1, 8), HALF, FULL]))
def test_the_union_of_windows_is_that_of_their_entries(drawn, within):
    net, parts = Net(Tiny), [Part(0, width, shift) for width, shift in drawn]
    masks = {name: torch.zeros(net.shapes(FULL)[name], dtype=torch.bool) for name in net.parameter_names(FULL)}
    for part in parts:
        for name, axes in windows_of(net, FULL, part).items():
            if name in masks:
                rows = [torch.arange(n)[axis] for n, axis in zip(masks[name].shape, axes, strict=True)]
                masks[name][torch.meshgrid(*rows, indexing="ij")] = True
    inner = {name: tuple(slice(n) for n in net.shapes(within)[name]) for name in masks}
    assert union_size(net, FULL, parts, within) == sum(int(masks[name][inner[name]].sum()) for name in masks)


def test_slices_add_up_to_the_whole_net():
    method = find_method("heterofl", SETTING)
    assert trained(Net(Tiny), method.layout, [Part(0, FULL)]) == {"1/4": 75, "1/2": 219 - 75, "1": 723 - 219}
