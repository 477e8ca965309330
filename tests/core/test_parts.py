"""Cutting parts out of the server's weights, and merging what clients made of them."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.toys import ATOM, FULL, HALF, LAYOUT, Slim, Tiny, bases, plain_build, to_bytes, toy_weights
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.parts import covering, cut, merge, merge_middle
from splitmix.core.types import Layout, Part, Update

SLIM, ONE = Net(Slim), Layout(1, FULL)
seeds = st.integers(0, 999)


def counted():
    """The full slim net, its entries numbered from 0."""
    shapes = SLIM.shapes(FULL)
    return {name: torch.arange(float(shape.numel())).view(1, *shape) for name, shape in shapes.items()}


def filled(width, value):
    return {name: torch.full((1, *shape), float(value)) for name, shape in SLIM.shapes(width).items()}


def update(parts, weights, samples=1, **settings):
    return Update(0, 0, tuple(parts), weights, samples, **settings)


def random_updates(seed, count=4):
    """Clients that trained two bases each, of the four of the toy layout."""
    rng = torch.Generator().manual_seed(seed)
    draws = [torch.randperm(4, generator=rng)[:2].tolist() for _ in range(count)]
    shapes = {name: value.shape[1:] for name, value in toy_weights().items()}
    return [
        update(bases(*drawn), {n: torch.randn(2, *s, generator=rng) for n, s in shapes.items()}, samples=3 + i)
        for i, drawn in enumerate(draws)
    ]


def test_of_nested_parts_only_the_widest_travels():
    nested = [Part(0, ATOM), Part(0, FULL), Part(0, HALF)]
    assert covering(nested) == (Part(0, FULL),)


def test_of_distinct_bases_each_travels_once_in_the_order_of_the_job():
    assert covering(bases(2, 0, 2, 3)) == bases(2, 0, 3)


@pytest.mark.parametrize(
    "parts",
    [
        [Part(0, ATOM), Part(1, HALF)],
        [Part(0, ATOM, shift=1), Part(1, ATOM)],
        [Part(0, HALF, shift=1), Part(0, ATOM)],
        [],
    ],
)
def test_parts_that_do_not_fit_one_download_are_refused(parts):
    with pytest.raises(UserError, match="must be nested or share one width and shift"):
        covering(parts)


@pytest.mark.parametrize(
    ("shift", "channels", "inputs"),
    [(0, [0, 1], [0, 1, 2, 3]), (1, [1, 2], [2, 3, 4, 5]), (3, [3, 0], [6, 7, 0, 1]), (4, [0, 1], [0, 1, 2, 3])],
)
def test_a_window_starts_at_its_shift_and_wraps_around_and_flattened_inputs_move_in_blocks(shift, channels, inputs):
    piece = cut(SLIM, ONE, counted(), [Part(0, HALF, shift)])
    assert piece["conv.weight"].flatten().tolist() == channels
    assert piece["fc.weight"].flatten().tolist() == inputs
    assert piece["fc.bias"].tolist() == [[0]]  # outputs of the last layer are never cut


def test_a_narrow_window_is_the_beginning_of_a_wider_one():
    wide, narrow = (cut(SLIM, ONE, counted(), [Part(0, width, shift=3)]) for width in (HALF, ATOM))
    assert narrow["conv.weight"].flatten().tolist() == wide["conv.weight"].flatten().tolist()[:1] == [3]
    assert narrow["fc.weight"].flatten().tolist() == wide["fc.weight"].flatten().tolist()[:2] == [6, 7]


def test_bases_are_cut_in_the_given_order():
    weights = toy_weights()
    piece = cut(Net(Tiny), LAYOUT, weights, bases(3, 1))
    assert torch.equal(piece["conv.weight"], weights["conv.weight"][[3, 1]])


def test_a_cut_is_a_copy():
    weights = counted()
    for part in (Part(0, FULL), Part(0, HALF), Part(0, HALF, shift=3)):
        cut(SLIM, ONE, weights, [part])["conv.weight"].fill_(9)
    assert to_bytes(weights) == to_bytes(counted())


@pytest.mark.slow
@pytest.mark.parametrize("build", [Tiny, plain_build])
@settings(max_examples=25)
@given(seeds, st.sampled_from([ATOM, HALF, FULL]), st.integers(0, 9), st.lists(st.integers(1, 50), min_size=1))
def test_merging_what_was_cut_changes_nothing(build, seed, width, shift, samples):
    net, layout = Net(build), Layout(2, FULL)
    weights = net.init(layout, seed)
    parts = [Part(base, width, shift) for base in (1, 0)]
    updates = [update(parts, cut(net, layout, weights, parts), n) for n in samples]
    assert to_bytes(merge(net, layout, weights, updates)) == to_bytes(weights)


@pytest.mark.slow
@settings(max_examples=20)
@given(seeds, st.permutations(range(4)))
def test_the_order_of_arrival_does_not_matter(seed, order):
    net, weights, updates = Net(Tiny), toy_weights(), random_updates(seed)
    expected, found = (merge(net, LAYOUT, weights, some) for some in (updates, [updates[i] for i in order]))
    assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.slow
@settings(max_examples=20)
@given(seeds)
def test_a_merged_base_is_the_mean_over_those_who_trained_it_weighted_by_their_samples(seed):
    updates, base = random_updates(seed), 1
    found = merge(Net(Tiny), LAYOUT, toy_weights(), updates)["fc1.weight"][base]
    mine = [(u.samples, u.weights["fc1.weight"][u.parts.index(p)]) for u in updates for p in u.parts if p.base == base]
    mean = sum(n * value.double() for n, value in mine) / sum(n for n, _ in mine) if mine else None
    assert_close(found, toy_weights()["fc1.weight"][base] if mean is None else mean.float(), atol=1e-6, rtol=0)


def test_the_mean_is_weighted_by_samples():
    updates = [update(bases(0, width=FULL), filled(FULL, 2), 10), update(bases(0, width=FULL), filled(FULL, 5), 20)]
    assert_close(merge(SLIM, ONE, counted(), updates), filled(FULL, 4))  # (10*2 + 20*5) / 30


def test_samples_that_the_server_weighs_twice_count_twice():
    whole = bases(0, width=FULL)
    updates = [update(whole, filled(FULL, 2), 10), update(whole, filled(FULL, 5), 10, weight=2)]
    assert_close(merge(SLIM, ONE, counted(), updates), filled(FULL, 4))


def test_each_entry_is_averaged_over_the_windows_that_cover_it():
    first = update([Part(0, HALF, shift=0)], filled(HALF, 10), samples=1)  # channels 0, 1
    second = update([Part(0, HALF, shift=1)], filled(HALF, 40), samples=2)  # channels 1, 2
    merged = merge(SLIM, ONE, filled(FULL, 0), [first, second])
    assert_close(merged["conv.weight"].flatten().tolist(), [10.0, 30.0, 40.0, 0.0])
    assert_close(merged["fc.weight"].flatten().tolist(), [10.0, 10.0, 30.0, 30.0, 40.0, 40.0, 0.0, 0.0])
    assert_close(merged["fc.bias"].item(), 30.0)


@pytest.mark.parametrize("order", [1, -1])
def test_whole_nets_and_windows_are_averaged_together(order):
    whole = update([Part(0, FULL)], filled(FULL, 1), samples=1)
    half = update([Part(0, HALF)], filled(HALF, 4), samples=2)
    merged = merge(SLIM, ONE, filled(FULL, 0), [whole, half][::order])
    assert_close(merged["conv.weight"].flatten().tolist(), [3.0, 3.0, 1.0, 1.0])


def test_bases_nobody_trained_stay_as_they_were():
    weights, trained = toy_weights(), toy_weights(seed=1)
    merged = merge(Net(Tiny), LAYOUT, weights, [update(bases(2), cut(Net(Tiny), LAYOUT, trained, bases(2)))])
    rest = [0, 1, 3]
    assert torch.equal(merged["fc1.weight"][rest], weights["fc1.weight"][rest])
    assert torch.equal(merged["fc1.weight"][2], trained["fc1.weight"][2])


def test_entries_that_stayed_on_the_clients_stay_as_they_were():
    weights = toy_weights()
    merged = merge(Net(Tiny), LAYOUT, weights, [update(bases(0), {"fc2.bias": torch.ones(1, 3)})])
    assert merged["fc2.bias"][0].tolist() == [1, 1, 1]
    assert to_bytes(merged)["norm1.clean.weight"] == to_bytes(weights)["norm1.clean.weight"]


def test_without_updates_nothing_changes():
    assert to_bytes(merge(SLIM, ONE, counted(), [])) == to_bytes(counted())


def test_the_weights_that_are_merged_into_are_not_touched():
    weights = counted()
    merge(SLIM, ONE, weights, [update([Part(0, HALF)], filled(HALF, 9))])
    assert to_bytes(weights) == to_bytes(counted())


def test_updates_are_taken_one_by_one_and_let_go():
    alive = []

    def arriving():
        yielded = []
        for value in range(9):
            new = update([Part(0, FULL)], filled(FULL, value))
            yielded.append(weakref.ref(new))
            yield new
            del new
            alive.append(sum(ref() is not None for ref in yielded))

    merge(SLIM, ONE, counted(), arriving())
    assert max(alive) == 1


# --- the middle of many updates ----------------------------------------------------------------------------------


def votes(*values):
    """Updates of one base, each of whose numbers is the same."""
    return [update([Part(0, FULL)], filled(FULL, value), samples=3 + i) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("share", "values", "found"),
    [
        (0.5, (1, 9, 2, -70, 3), 2.0),
        (0.5, (1, 9, 2, -70, 3, 4), 2.5),
        (0.2, (1, 9, 2, -70, 3), 2.0),
        (0.2, (1, 9, 2, -70), -14.5),  # of so few, all count
        (0.5, (1, 9, 2, -70), -14.5),
    ],
)
def test_what_few_send_is_left_out_where_five_have_a_vote(share, values, found):
    merged = merge_middle(SLIM, ONE, counted(), votes(*values), share)
    assert all((value == found).all() for value in merged.values())


@pytest.mark.slow
@given(seeds)
@settings(max_examples=10, deadline=None)
def test_the_middle_does_not_depend_on_the_order_and_merging_what_was_cut_changes_nothing(seed):
    net, weights, came = Net(Tiny), toy_weights(seed=seed), random_updates(seed, count=12)
    forwards, backwards = (merge_middle(net, LAYOUT, weights, some, 0.2) for some in (came, came[::-1]))
    for name, value in forwards.items():
        assert_close(value, backwards[name])
    same = [update(bases(0, 1, 2, 3), cut(net, LAYOUT, weights, bases(0, 1, 2, 3))) for _ in range(6)]
    assert to_bytes(merge_middle(net, LAYOUT, weights, same, 0.5)) == to_bytes(weights)


def test_where_parts_overlap_each_number_has_the_votes_of_those_who_trained_it():
    narrow = [update([Part(0, HALF)], filled(HALF, value)) for value in (5, 6, 7)]
    merged = merge_middle(SLIM, ONE, counted(), [*votes(1, 2, 90), *narrow], 0.5)["conv.weight"].flatten()
    assert merged.tolist() == [5.5, 5.5, 31.0, 31.0]  # the median of six, and the mean of three
