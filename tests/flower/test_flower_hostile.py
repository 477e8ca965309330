"""A node that sends another kind of harm in each round."""

import json
import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')

from flwr.app import Message, RecordDict
from flwr.server.strategy.aggregate import aggregate_median, aggregate_trimmed_avg
from torch.testing import assert_close

from helpers.flower_nodes import message_of, toy_engine, toy_fleet
from helpers.toys import METHOD, PLAN, ToyClients, bases, toy_simulator, toy_weights
from splitmix.core.parts import AGGREGATES, merge_middle
from splitmix.core.rounds import Federation, federate
from splitmix.core.score import score
from splitmix.core.types import Question, Update
from splitmix.core.width import Width
from splitmix.flower.wire import pack_bases, unpack_bases

pytestmark = pytest.mark.usefixtures("hurried")


CROWD = ToyClients((24, 20, 28, 16, 24, 32, 20, 24), (Width(1, 4), Width(1, 4), Width(1, 2), Width(1)) * 2)
HOSTILE = 2  # it is given two of four bases
ENTRY = "fc2.weight"  # (2, 3, 2)


def entries(change):
    """A trick that changes the entries of each base that was trained; None takes one away."""

    def trick(content, **_):
        parts = bases(*(int(name.removeprefix("base-")) for name in content.array_records))
        found = change({name: value.clone() for name, value in unpack_bases(parts, content).items()})
        kept = {name: value for name, value in found.items() if value is not None}
        return pack_bases(parts, kept, answer=content["about"]["answer"])

    return trick


def one_entry(make):
    return entries(lambda row: row | {ENTRY: make(row[ENTRY])})


def words(key, value):
    """A trick that changes what the answer says."""

    def trick(content, **_):
        said = json.loads(content["about"]["answer"])
        content["about"]["answer"] = json.dumps(said | {key: value})
        return content

    return trick


def foreign_base(content, **_):
    other = next(name for name in map("base-{}".format, range(4)) if name not in content)
    content[other] = content.pop(next(iter(content.array_records)))
    return content


HOSTILITIES = {
    "NaN": one_entry(lambda value: value.fill_(math.nan)),
    "Inf": one_entry(lambda value: value.fill_(-math.inf)),
    "a wrong shape": one_entry(lambda value: value.mT.contiguous()),
    "a single number": one_entry(lambda value: torch.full((2, 1), 9.0)),
    "an extra key": entries(lambda row: row | {"more": torch.zeros(2, 2)}),
    "a missing key": one_entry(lambda value: None),
    "a base it was not given": foreign_base,
    "very many samples": words("samples", 10**18),
    "negative samples": words("samples", -28),
    "no samples": words("samples", 0),
    "ten thousand times too far": entries(lambda row: {key: 1e4 * value for key, value in row.items()}),
    "an old round's update": lambda content, old, **_: old,
    "the same update twice": lambda content, **_: content,  # the grid brings every reply twice
    "an oversized array": one_entry(lambda value: torch.zeros(2, 3000, 500)),
}
BOUNDED = {"ten thousand times too far": [HOSTILE], "the same update twice": []}  # and whose update was shortened


def crowd_run(tamper=None, *, without=None):
    """The weights and reports of a run of eight nodes over messages; each reply comes twice."""

    fleet, grid, _ = toy_fleet([client for client in range(8) if client != without], toys=CROWD)
    pull, reports = grid.pull_messages, []
    grid.pull_messages = lambda keys: [reply for reply in pull(keys) for _ in range(2)]
    grid.tamper = tamper or grid.tamper
    fleet.gather(0)
    engine = toy_engine(fleet, CROWD)
    how = Federation(len(HOSTILITIES), replace(PLAN, batch=8), seed=2, clip=5.0)
    weights = federate(METHOD, engine, engine.net, toy_weights(), how, on_round=reports.append)
    return weights, reports


def crowd_accuracy(weights):
    """Of the widest mix, on ninety images of each client."""
    many = toy_simulator(replace(CROWD, sizes=(90,) * 8))
    (scored,) = score(many, weights, {Width(1): bases(0, 1, 2, 3)}, dict.fromkeys(range(8), ""), Question())
    return scored.pooled


@pytest.mark.slow
def test_a_node_that_sends_another_kind_of_harm_in_each_round_harms_nothing():
    sent = []

    def tamper(node, reply):
        if node != 100 + HOSTILE or "answer" not in reply.content["about"]:
            return reply
        trick = [*HOSTILITIES.values()][len(sent)]
        sent.append(copy_of(reply))
        bad = trick(copy_of(reply), old=sent[-2] if len(sent) > 1 else None)
        return Message(bad, reply_to=message_of(reply))

    attacked, reports = crowd_run(tamper)
    for name, report in zip(HOSTILITIES, reports, strict=True):
        refused = [one.client for one in report.seen.rejected]
        assert refused == ([] if name in BOUNDED else [HOSTILE]), name
        assert len(report.seen.accepted) == (8 if name in BOUNDED else 7), name
        assert set(BOUNDED.get(name, [])) <= set(report.seen.clipped) <= set(report.seen.accepted), name
    alone = crowd_accuracy(crowd_run(without=HOSTILE)[0])
    assert alone > 0.95
    assert abs(crowd_accuracy(attacked) - alone) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("clients", [5, 6, 9, 12])
def test_the_middle_of_updates_is_what_flower_s_own_strategies_make_of_them(clients):
    rng = torch.Generator().manual_seed(clients)
    rows = [
        {name: torch.randn(value.shape, generator=rng) for name, value in toy_weights().items()} for _ in range(clients)
    ]
    results = [([value.numpy() for value in row.values()], 1 + i) for i, row in enumerate(rows)]
    updates = [Update(0, i, bases(0, 1, 2, 3), row, 1 + i) for i, row in enumerate(rows)]
    for name, theirs in {"trimmed": aggregate_trimmed_avg(results, 0.2), "median": aggregate_median(results)}.items():
        ours = merge_middle(toy_simulator().net, METHOD.layout, toy_weights(), updates, AGGREGATES[name])
        for mine, other in zip(ours.values(), theirs, strict=True):
            assert_close(mine, torch.from_numpy(other), rtol=1e-5, atol=1e-6)


def copy_of(reply):
    """A copy of what a reply holds."""
    return RecordDict(dict(reply.content))
