"""Jobs and answers as Flower messages, and an engine over a grid of nodes that come, go and misbehave; no processes."""

import json
import math
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')

from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from flower_grid import LocalGrid
from splitmix.attacks.pgd import PGD
from splitmix.core.client import parts_of
from splitmix.core.errors import UserError
from splitmix.core.parts import cut
from splitmix.core.rounds import Federation, federate
from splitmix.core.score import score
from splitmix.core.types import (
    Calibrate,
    Missing,
    Part,
    Plan,
    Profile,
    Question,
    Score,
    Tally,
    Train,
    Update,
    Width,
)
from splitmix.engines.flower import fleet as fleets
from splitmix.engines.flower.apps import Bench, client_app
from splitmix.engines.flower.engine import FlowerEngine
from splitmix.engines.flower.fleet import Fleet, Member, from_file, to_file
from splitmix.engines.flower.messages import (
    Garbled,
    pack_answer,
    pack_bases,
    pack_job,
    size_of,
    unpack_answer,
    unpack_bases,
    unpack_job,
)
from splitmix.engines.flower.records import from_text, to_text
from splitmix.experiments.config import make_config, read_toml
from splitmix.experiments.flower import Terms, run_on_grid
from splitmix.experiments.node import app, check_node
from splitmix.experiments.run import run_in_folder
from splitmix.experiments.setup import set_up
from stripes import SETTINGS, stripes, stripes_folder
from toys import (
    LAYOUT,
    METHOD,
    PLAN,
    Plain,
    ToyClients,
    bases,
    to_bytes,
    toy_federation,
    toy_run,
    toy_simulator,
    toy_weights,
)

TOYS = ToyClients()
JOBS = [
    Train(2, 1, bases(0, 2), PLAN, seed=5, run="a run"),
    Score(3, (bases(0), bases(1, 3)), Question("val", batch=4, robust=0.3)),
    Score(3, (bases(0),), Question(attack=PGD(eps=0.1, steps=3), surrogate=(bases(2), 0.5), images=4)),
    Calibrate(0, bases(0, 1, 2, 3), batch=8),
]


# --- messages -----------------------------------------------------------------------------------------------------

numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
widths = st.fractions(min_value=Width(1, 1000), max_value=1)


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_tensors_arrive_to_the_bit(values, count):
    parts = bases(*range(3, 3 + count))
    weights = {"a": torch.tensor([values] * count), "b.c": torch.arange(6.0).view(1, 2, 3).repeat(count, 1, 1)}
    weights["a"][-1] += 1
    back = unpack_bases(parts, pack_bases(parts, weights))
    assert to_bytes(back) == to_bytes(weights)
    assert {name: value.dtype for name, value in back.items()} == dict.fromkeys(weights, torch.float32)


@given(st.floats(allow_nan=False), st.integers(-(2**70), 2**70), widths, st.text(max_size=9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_records_arrive_as_they_were(number, count, width, text, flag):
    plan = Plan(lr=number, epochs=count)
    job = Train(count, 7, (Part(0, width), Part(count, Width(1, 3), 5)), plan, count, local_norms=flag, run=text)
    assert from_text(to_text(job), (Train, Part, Plan)) == job


@pytest.mark.parametrize("job", JOBS, ids=lambda job: type(job).__name__)
def test_a_job_arrives_with_the_bases_that_it_names_and_no_other(job):
    weights = toy_weights()
    download = cut(toy_simulator().net, LAYOUT, weights, parts_of(job))
    content = pack_job(job, download, "settings")
    arrived, weights, said = unpack_job(content, attacks=(PGD,))
    assert (arrived, to_bytes(weights), said) == (job, to_bytes(download), "settings")
    assert set(content.array_records) == {f"base-{part.base}" for part in parts_of(job)}


def test_only_known_records_are_made_of_what_a_stranger_writes():
    text = to_text(JOBS[0])
    for bad in (
        "{}",
        "[]",
        "nonsense",
        "[" * 100_000,
        text.replace('"Train"', '"Popen"'),
        text.replace('"round": 2', '"round": "2"'),
        text.replace('"round": 2', '"round": true'),
        text.replace('"round": 2', '"round": 2, "more": 1'),
        text.replace('"round": 2, ', ""),
        text.replace('"1/4"', '"1/0"'),
        text.replace('"run": "a run"', f'"run": "{"x" * (1 << 20)}"'),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            from_text(bad, (Train, Part, Plan))


def test_a_record_that_refuses_its_settings_is_not_made():
    with pytest.raises(ValueError, match="eps"):
        from_text(to_text(PGD()).replace('"eps": 0.03', '"eps": -0.03'), [PGD])


def toy_update(job=JOBS[0], scale=1.0):
    weights = cut(toy_simulator().net, LAYOUT, toy_weights(), parts_of(job))
    return Update(
        job.round, job.client, job.parts, {k: v * scale for k, v in weights.items()}, 9, {"loss": 0.5}, run="a run"
    )


def test_an_answer_arrives_to_the_bit_and_the_server_alone_weighs_it():
    sent = replace(toy_update(), weight=5)
    came = unpack_answer(JOBS[0], pack_answer(JOBS[0], sent), 1 << 20)
    assert to_bytes(came.weights) == to_bytes(sent.weights)
    assert replace(came, weights={}) == replace(sent, weights={}, weight=1)
    tally = Tally(3, (1, 2), 4)
    assert unpack_answer(JOBS[1], pack_answer(JOBS[1], tally), 0) == tally


def spoiled(change):
    content = pack_answer(JOBS[0], toy_update())
    change(content)
    return content


def short(content):
    array = content["base-0"]["entries"]
    content["base-0"]["entries"] = Array(array.dtype, array.shape, array.stype, array.data[:50])


def pickled(content):
    content["base-0"]["entries"] = Array(np.zeros(3, np.float32))


def reshaped(content):
    narrow = {name: value[:1, :1] for name, value in toy_update().weights.items()}
    content["base-0"] = pack_bases(bases(0), narrow)["base-0"]


def described(text, size=None):
    def change(content):
        raw = len(text).to_bytes(8, "little") + text
        content["about"]["entries"] = zlib.compress(raw)[:size]

    return change


def of_type(kind):
    numbers = sum(value[0].numel() for value in toy_update().weights.values())
    said = {"a": {"dtype": kind, "shape": [numbers * 4], "data_offsets": [0, numbers * 4]}}
    return described(json.dumps(said).encode())


SPOILED = {
    "a base that was not asked for": lambda c: c.__setitem__("base-3", c["base-2"]),
    "a base too few": lambda c: c.__delitem__("base-2"),
    "half a base": short,
    "an array of another kind": pickled,
    "another shape": reshaped,
    "no description": lambda c: c["about"].__delitem__("entries"),
    "half a description": described(b"{}" * 99, 20),
    "a description of nothing": described(b"{}"),
    "a description that is no JSON": described(b"{nonsense"),
    "a description that grows beyond all bounds": described(b" " * (1 << 24)),
    "a description that is not packed": lambda c: c["about"].__setitem__("entries", b"{}"),
    "numbers of a type that nobody has": of_type("F8_E8M0"),
    "no text": lambda c: c.__delitem__("about"),
    "text of another kind": lambda c: c.__setitem__("about", ConfigRecord({"answer": 7})),
    "a tally that lies": lambda c: c.__setitem__("about", ConfigRecord({"answer": to_text(Tally(1, (), 1))})),
}


@pytest.mark.parametrize("change", SPOILED.values(), ids=SPOILED.keys())
def test_what_cannot_be_read_is_told_apart_from_an_answer(change):
    found = unpack_answer(JOBS[0], spoiled(change), 1 << 20)
    assert isinstance(found, Garbled)
    assert found.reason


def test_an_answer_that_is_too_large_is_not_even_read():
    content = pack_answer(JOBS[0], toy_update())
    assert "larger" in unpack_answer(JOBS[0], content, size_of(content) - 1).reason
    assert isinstance(unpack_answer(JOBS[0], content, size_of(content)), Update)


def test_framing_adds_little_to_the_bytes_of_the_parts():
    parts = bases(0, 1)
    weights = {f"layer{i}.weight": torch.rand(2, 100, 100) for i in range(8)}
    message = pack_bases(parts, weights)
    sent = sum(len(found.deflate()) for found in get_all_nested_objects(message).values())
    assert 1 < sent / sum(value.nbytes for value in weights.values()) < 1.01


# --- a fleet of nodes ---------------------------------------------------------------------------------------------


def toy_member(client):
    size = TOYS.sizes[client]
    return Member(client, size, size, size, 3, (6, 6, 1), "toys", "tiny", TOYS.budgets[client])


def toy_app():
    net = toy_simulator().net
    return client_app(
        lambda text, node: replace(toy_member(node["client"]), **node.get("says", {})),
        lambda text, node: Bench(net, Plain(), TOYS.data(node["client"])),
        attacks=(PGD,),
    )


def toy_fleet(clients=(0, 1, 2, 3), *, deadline=2.0):
    grid = LocalGrid(toy_app(), {100 + client: {"client": client} for client in clients})
    notes = []
    return Fleet(grid, "{}", 4, deadline, notes.append), grid, notes


def toy_engine(fleet):
    return FlowerEngine(fleet, toy_simulator().net, LAYOUT, Usual(), "{}")


class Usual:
    def at(self, round):
        return TOYS.budgets


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(fleets, "POLL", 0.01)
    monkeypatch.setattr(fleets, "LOOK", 0.02)


def test_a_federation_over_messages_learns_what_the_simulator_learns():
    fleet, grid, _ = toy_fleet()
    fleet.gather(1)
    learnt = federate(METHOD, toy_engine(fleet), toy_simulator().net, toy_weights(), toy_federation())
    assert to_bytes(learnt) == to_bytes(toy_run())
    assert len(grid.sent) == 4 + 3 * 3  # a query for each node, and a job for each client of a cohort


@pytest.mark.parametrize("job", JOBS[1:], ids=lambda job: type(job).__name__)
def test_scores_and_calibrations_are_those_of_the_simulator(job):
    fleet, _, _ = toy_fleet()
    fleet.gather(1)
    weights = toy_weights(tracked=True)
    (ours,), (theirs,) = (list(engine.run(weights, [job])) for engine in (toy_engine(fleet), toy_simulator()))
    assert replace(ours, **({"weights": {}} if isinstance(ours, Update) else {})) == replace(
        theirs, **({"weights": {}} if isinstance(theirs, Update) else {})
    )
    assert to_bytes(getattr(ours, "weights", {})) == to_bytes(getattr(theirs, "weights", {}))


def test_profiles_are_what_nodes_say_in_the_order_of_their_numbers():
    fleet, grid, _ = toy_fleet(clients=(3, 0, 2))
    grid.nodes[100]["says"] = {"budget": None}
    fleet.gather(0)
    while len(fleet.nodes) < 3:
        fleet.refresh()
    assert toy_engine(fleet).profiles(0) == [Profile(c, TOYS.budgets[c], TOYS.sizes[c]) for c in (0, 2, 3)]


def train_all(round=0):
    return [Train(round, client, bases(client), PLAN, seed=1) for client in range(4)]


def test_answers_come_in_the_order_of_the_jobs_and_who_gives_none_is_missing():
    fleet, grid, _ = toy_fleet(deadline=0.3)
    fleet.gather(1)
    late = {}
    grid.tamper = lambda node, reply: late.setdefault(node, None) if node == 102 else reply
    del grid.nodes[101]
    answers = list(toy_engine(fleet).run(toy_weights(), train_all()))
    assert [answer.client for answer in answers] == [0, 1, 2, 3]
    assert [answers[1], answers[2]] == [Missing(1, "not connected"), Missing(2, "late")]
    assert all(isinstance(answers[client], Update) for client in (0, 3))


def test_a_node_that_dies_at_work_is_not_waited_for():
    fleet, grid, _ = toy_fleet(deadline=60)
    fleet.gather(1)
    grid.tamper = lambda node, reply: grid.nodes.pop(node, None) and None if node == 103 else reply
    answers = list(toy_engine(fleet).run(toy_weights(), train_all()))
    assert answers[3] == Missing(3, "died")


def test_what_a_node_complains_of_is_told():
    fleet, grid, _ = toy_fleet()
    fleet.gather(1)
    grid.nodes[101] = {}
    answers = list(toy_engine(fleet).run(toy_weights(), train_all()))
    assert answers[1] == Missing(1, "'client'")


def test_a_second_reply_is_ignored():
    fleet, grid, _ = toy_fleet()
    fleet.gather(1)
    pull = grid.pull_messages
    grid.pull_messages = lambda keys: [reply for reply in pull(keys) for _ in range(2)]
    assert [type(answer) for answer in toy_engine(fleet).run(toy_weights(), train_all())] == [Update] * 4


def test_a_rude_answer_is_handed_on_for_the_door_to_refuse():
    fleet, grid, _ = toy_fleet()
    fleet.gather(1)
    grid.tamper = lambda node, reply: Message(RecordDict(), reply_to=message_of(reply)) if node == 100 else reply
    assert isinstance(next(iter(toy_engine(fleet).run(toy_weights(), train_all()))), Garbled)


def message_of(reply):
    asked = Message(RecordDict(), 1, "train")
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


def test_a_client_may_come_back_as_another_node():
    fleet, grid, _ = toy_fleet()
    fleet.gather(1)
    del grid.nodes[102]
    assert len(toy_engine(fleet).profiles(1)) == 4
    grid.nodes[202] = {"client": 2}
    while fleet.nodes[2] != 202:
        fleet.refresh()
    assert [type(answer) for answer in toy_engine(fleet).run(toy_weights(), train_all())] == [Update] * 4


def test_nobody_takes_the_place_of_a_client_that_is_there():
    fleet, grid, notes = toy_fleet()
    fleet.gather(1)
    grid.nodes[202] = {"client": 2}
    for _ in range(4):
        fleet.refresh()
    assert fleet.nodes[2] == 102
    assert notes == ["a node is not used: client 2 is connected already"]


def test_who_misses_a_deadline_loses_its_place_to_the_one_who_claims_it():
    fleet, grid, _ = toy_fleet(deadline=0.1)
    fleet.gather(1)
    grid.tamper = lambda node, reply: None if node == 102 else reply  # a ghost
    grid.nodes[202] = {"client": 2}
    while fleet.nodes[2] != 202:
        fleet.refresh()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"client": 4}, "it is client 4, but the run has clients 0 to 3"),
        ({"train": 1}, "client 1 says that it has 1 training images"),
        ({"image": (8, 8, 1)}, r"its images are \(8, 8, 1\), those of the others \(6, 6, 1\)"),
        ({"budget": Width(2)}, "width 2 is outside"),
    ],
)
def test_a_node_that_does_not_fit_is_not_used(says, why):
    fleet, grid, notes = toy_fleet(clients=(0, 1, 2, 3))
    del grid.nodes[101]
    grid.nodes[201] = {"client": 1, "says": says}
    fleet.gather(0.2)
    assert 201 not in fleet.nodes.values()
    assert any(re.search(why, note) for note in notes)


def test_a_run_begins_with_those_who_came_and_says_who_did_not():
    fleet, _, notes = toy_fleet(clients=(0, 2))
    fleet.gather(0.1)
    assert sorted(fleet.nodes) == [0, 2]
    assert notes == ["begun without client 1, 3: not connected within 0 s"]
    nobody, _, _ = toy_fleet(clients=())
    with pytest.raises(UserError, match="no node came within 0 s"):
        nobody.gather(0.1)


def test_a_node_that_is_connected_has_time_to_say_who_it_is():
    fleet, grid, _ = toy_fleet(deadline=60)
    pull, looks = grid.pull_messages, []
    grid.pull_messages = lambda keys: pull(keys) if looks.append(1) or len(looks) > 9 else []
    fleet.gather(0)
    assert sorted(fleet.nodes) == [0, 1, 2, 3]
    silent, grid, _ = toy_fleet(deadline=0.1)
    grid.tamper = lambda node, reply: None
    with pytest.raises(UserError, match="4 nodes are connected, but none said within 0 s who it is"):
        silent.gather(0)


def test_who_comes_later_gets_a_budget_that_the_run_knows():
    fleet, grid, notes = toy_fleet(clients=(0,))
    fleet.gather(0)
    fleet.budgets = {Width(1, 4), Width(1, 2)}
    grid.nodes[101] = {"client": 1, "says": {"budget": Width(3, 4)}}
    grid.nodes[102] = {"client": 2, "says": {"budget": Width(1, 8)}}
    while not any("budget" in note for note in notes) or 1 not in fleet.members:
        fleet.refresh()
    assert fleet.members[1].budget == Width(1, 2)
    assert notes[-1] == "a node is not used: its budget is 1/8, the run began with 1/4 or more"


def test_members_are_written_and_read_back():
    members = {client: toy_member(client) for client in range(4)}
    assert from_file(to_file(members), 4) == members


# --- a hostile node -----------------------------------------------------------------------------------------------

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

    def introduce(text, node):
        client = node["client"]
        size, budget = CROWD.sizes[client], CROWD.budgets[client]
        return Member(client, size, size, size, 3, (6, 6, 1), "toys", "tiny", budget)

    net, reports = toy_simulator().net, []
    app = client_app(introduce, lambda text, node: Bench(net, Plain(), CROWD.data(node["client"])))
    grid = LocalGrid(app, {100 + client: {"client": client} for client in range(8) if client != without})
    pull = grid.pull_messages
    grid.pull_messages = lambda keys: [reply for reply in pull(keys) for _ in range(2)]
    grid.tamper = tamper or grid.tamper
    fleet = Fleet(grid, "{}", 8, 60, lambda note: None)
    fleet.gather(0.1)
    how = Federation(len(HOSTILITIES), replace(PLAN, batch=8), seed=2)
    weights = federate(METHOD, toy_engine(fleet), net, toy_weights(), how, on_round=reports.append)
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
        assert report.seen.clipped == BOUNDED.get(name, []), name
    alone = crowd_accuracy(crowd_run(without=HOSTILE)[0])
    assert alone > 0.95
    assert abs(crowd_accuracy(attacked) - alone) <= 0.01


def copy_of(reply):
    """A copy of what a reply holds."""
    return RecordDict(dict(reply.content))


# --- whole runs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stripes_folder(tmp_path_factory.mktemp("data") / "own")


def stripes_config(folder, **more):
    return make_config({**SETTINGS, "task": str(folder), "rounds": 2, "order": "validation", **more})


def stripes_grid(folder, clients=4, **more):
    budgets = ["1/4", "1/4", "1/2", "1"]
    about = {"num-partitions": clients, "task": str(folder), **more}
    return LocalGrid(app, {50 + k: {"partition-id": k, "budget": budgets[k], **about} for k in range(clients)})


@pytest.mark.parametrize("method", ["splitmix", "heterofl", "sheterofl", {"name": "fjord"}])
@pytest.mark.slow
def test_a_run_on_a_grid_leaves_what_a_simulated_run_leaves(folder, tmp_path, method):
    config = stripes_config(folder, method=method)
    run_on_grid(stripes_grid(folder), config, tmp_path / "grid", Terms(60, 10))
    run_in_folder(set_up(config), tmp_path / "simulated")
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("grid", "simulated"))
    for key in ("weights_sha256", "bases", "best_round", "clients", "domains", "task"):
        assert ours[key] == theirs[key], key
    assert [row["accuracy"] for row in ours["scores"]] == [row["accuracy"] for row in theirs["scores"]]


@pytest.mark.parametrize("method", ["splitmix", "heterofl"])
@pytest.mark.slow
def test_nodes_name_their_budgets_and_the_record_of_the_run_tells_them(folder, tmp_path, method):
    grid = stripes_grid(folder)
    grid.nodes[51]["budget"] = "3/4"
    config = stripes_config(folder, method=method, order="natural", budgets="1/4 1")
    run_on_grid(grid, config, tmp_path / "grid", Terms(60, 10))
    told = make_config(read_toml(tmp_path / "grid" / "config.toml"))
    assert told.budgets == {"name": "each", "widths": ["1/4", "3/4", "1/2", "1"]}
    run_in_folder(set_up(told), tmp_path / "simulated")
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("grid", "simulated"))
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert ours["clients"] == theirs["clients"]
    assert run_on_grid(grid, config, tmp_path / "grid", Terms(60, 10), resume=True) is None  # it is finished


@pytest.mark.slow
def test_a_run_resumes_with_other_nodes_and_remembers_who_is_away(folder, tmp_path):
    config, grid = stripes_config(folder, rounds=3), stripes_grid(folder)

    class Stop:
        def round(self, row):
            if row["round"] == 1:
                raise KeyboardInterrupt

        begin = scores = note = lambda self, *_: None
        end = lambda self: None  # noqa: E731

    with pytest.raises(KeyboardInterrupt):
        run_on_grid(grid, config, tmp_path / "run", Terms(60, 10), watchers=[Stop()])
    again = stripes_grid(folder)
    away = again.nodes.pop(50)
    run_on_grid(again, config, tmp_path / "run", Terms(60, 0.1), resume=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "round"][-1]
    assert away
    assert last["cohort"] == [0, 1, 2, 3]
    assert last["missing"] == [{"client": 0, "reason": "not connected"}]


@pytest.mark.slow
def test_nodes_bring_images_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes = {}
    for client in range(3):
        x, y = stripes(40 + 10 * client, seed=client)
        (tmp_path / f"site{client}").mkdir()
        np.savez(tmp_path / f"site{client}" / "images.npz", x=x, y=y)
        nodes[client] = {"partition-id": client, "data": str(tmp_path / f"site{client}"), "budget": "1/2"}
    nodes[2] = {"partition-id": 2, "loader": "stripes:stripes", "budget": "1"}
    config = make_config({**SETTINGS, "task": "nodes", "clients": 3, "rounds": 2, "order": "natural"})
    grid = LocalGrid(app, nodes)
    outcome = run_on_grid(grid, config, tmp_path / "run", Terms(60, 10))
    told = [(row["domain"], row["train"] + row["val"] + row["test"]) for row in outcome.result["clients"]]
    assert told == [("images", 40), ("images", 50), ("stripes", 60)]
    for _, content in grid.sent:  # the server knows shapes and counts, and sends what it knows
        assert set(content.config_records) == {"about"}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"task": "mini"}, "has no partition-id"),
        ({"partition-id": 0}, "names no images"),
        ({"partition-id": 0, "task": "mini", "data": "x"}, "names task and data"),
        ({"partition-id": 0, "task": "mini", "colour": 1}, "unknown key 'colour'"),
    ],
)
def test_a_node_says_which_client_it_is_and_where_its_images_are(node, why):
    with pytest.raises(UserError, match=why):
        check_node(node)


@pytest.mark.parametrize(
    ("more", "why"),
    [({"clients": None}, "the number of clients must be given"), ({"norm": "local"}, "norm 'local' keeps norms")],
)
def test_what_cannot_be_done_on_flower_is_said_first(folder, tmp_path, more, why):
    config = make_config({key: value for key, value in {**SETTINGS, "task": str(folder), **more}.items() if value})
    with pytest.raises(UserError, match=why):
        run_on_grid(stripes_grid(folder), config, tmp_path / "run", Terms(1, 1))
