"""A million registered clients: what a round does not look at is not made."""

import numpy as np
import pytest

from splitmix.core.rounds import draw_cohort
from splitmix.core.types import Profile
from splitmix.data.budgets import parse_budgets
from splitmix.data.domain import Domain
from splitmix.data.task import Shards, make_task
from splitmix.engines.clients import Registered, TaskClients


def clients(count=6, **settings):
    x, y = np.zeros((10 * count, 4), np.float32), np.arange(10 * count) % 5
    domains = [Domain(name, x, y, x, y) for name in ("left", "right")]
    task = make_task("toy", domains, clients=count, **settings)
    return TaskClients(task, parse_budgets("1/8 1", clients=count))


def test_profiles_are_those_of_a_list():
    profiles = clients().profiles(0)
    listed = [Profile(i, profiles[i].budget, 18) for i in range(6)]
    assert list(profiles) == listed
    assert profiles[2:4] == listed[2:4]
    assert profiles[-1] == listed[-1]
    with pytest.raises(IndexError):
        profiles[6]


def test_a_cohort_of_many_looks_at_its_own_alone():
    class Strict(Shards):
        looked = 0

        def __len__(self):
            return 1_000_000

        def __getitem__(self, place):
            type(self).looked += 1
            return made[0]

    made = clients().task.shards
    budgets = parse_budgets("1/8 1", clients=1_000_000).at(0)
    fields = [getattr(made, name) for name in made.__dataclass_fields__]
    cohort = draw_cohort(Registered(budgets, Strict(*fields)), 100, 0, 0)
    assert len({profile.client for profile in cohort}) == 100
    assert Strict.looked == 100


def test_budgets_that_do_not_change_are_found_once():
    fixed, redrawn = parse_budgets("1/8 1", clients=50), parse_budgets({"widths": "1/8 1", "redraw": True}, clients=50)
    assert fixed.at(0) is fixed.at(7)
    assert redrawn.at(0) != redrawn.at(7)


def test_shards_have_every_row_once_and_know_their_domain():
    shards = clients(val_ratio=0.25).task.shards
    assert sorted(row for shard in shards for row in (*shard.train, *shard.val)) == list(range(120))
    assert [(shard.domain, len(shard.train), len(shard.val), len(shard.test)) for shard in shards[2:4]] == [
        ("left", 15, 5, 20),
        ("right", 15, 5, 20),
    ]
    assert {shard.domain for shard in clients(partition="iid").task.shards} == {"mixed"}
