"""An engine over a grid of nodes that come, go and are slow; no processes."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from helpers.flower_nodes import JOBS, TOYS, message_of, toy_engine, toy_fleet, toy_member
from helpers.toys import METHOD, PLAN, bases, to_bytes, toy_federation, toy_run, toy_simulator, toy_weights
from splitmix.core.admission import Rejected
from splitmix.core.errors import UserError
from splitmix.core.rounds import federate
from splitmix.core.types import Missing, Profile, Question, Score, Tally, Train, Update
from splitmix.core.width import Width
from splitmix.flower.server import ROSTER, read_roster, roster_text
from splitmix.flower.wire import pack_answer

pytestmark = pytest.mark.usefixtures("hurried")


def gathered(**settings):
    fleet, grid, notes = toy_fleet(**settings)
    fleet.gather(0)
    return fleet, grid, notes


def answers_of(fleet):
    """To a job for each of the four clients."""
    jobs = [Train(0, client, bases(client), PLAN, seed=1) for client in range(4)]
    return list(toy_engine(fleet).run(toy_weights(), jobs))


def away(reply):
    """What the link replies in the place of a node that it has not heard of for a while."""
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, "no heartbeat"), reply_to=message_of(reply))


def test_a_federation_over_messages_learns_what_the_simulator_learns():
    fleet, grid, _ = gathered()
    learnt = federate(METHOD, toy_engine(fleet), toy_simulator().net, toy_weights(), toy_federation())
    assert to_bytes(learnt) == to_bytes(toy_run())
    assert len(grid.sent) == 4 + 3 * 3  # a query for each node, and a job for each client of a cohort


@pytest.mark.parametrize("job", JOBS[1:], ids=lambda job: type(job).__name__)
def test_scores_and_calibrations_are_those_of_the_simulator(job):
    weights = toy_weights(tracked=True)
    (ours,), (theirs,) = (list(engine.run(weights, [job])) for engine in (toy_engine(gathered()[0]), toy_simulator()))
    if isinstance(ours, Update):
        assert to_bytes(ours.weights) == to_bytes(theirs.weights)
        ours, theirs = (replace(answer, weights={}) for answer in (ours, theirs))
    assert ours == theirs


def test_profiles_are_what_nodes_say_in_the_order_of_their_numbers():
    fleet, _, _ = gathered(clients=(3, 0, 2))
    assert toy_engine(fleet).profiles(0) == [Profile(c, TOYS.budgets[c], TOYS.sizes[c]) for c in (0, 2, 3)]


def disconnect(grid):
    del grid.nodes[102]


def break_down(grid):
    grid.nodes[102] = {}  # its app finds no number of a client


def withhold(grid):
    grid.tamper = lambda node, reply: None if node == 102 else reply


def die_at_work(grid):
    grid.tamper = lambda node, reply: grid.nodes.pop(node, None) and None if node == 102 else reply


@pytest.mark.parametrize(
    ("happen", "reason", "deadline"),
    [
        (disconnect, "not connected", 60),
        (break_down, "'client'", 60),
        (withhold, "late", 0.1),
        (die_at_work, "died", 60),
    ],
)
def test_answers_come_in_the_order_of_the_jobs_and_who_gives_none_is_missing(happen, reason, deadline):
    fleet, grid, _ = gathered(deadline=deadline)
    happen(grid)
    answers = answers_of(fleet)
    assert [answer.client for answer in answers] == [0, 1, 2, 3]
    assert answers[2] == Missing(2, reason)
    assert all(isinstance(answers[client], Update) for client in (0, 1, 3))


def test_a_second_reply_is_ignored_and_one_that_cannot_be_read_is_refused():
    fleet, grid, _ = gathered()
    pull = grid.pull_messages
    grid.pull_messages = lambda keys: [reply for reply in pull(keys) for _ in range(2)]
    grid.tamper = lambda node, reply: Message(RecordDict(), reply_to=message_of(reply)) if node == 100 else reply
    assert [type(answer) for answer in answers_of(fleet)] == [Rejected, Update, Update, Update]


@pytest.mark.parametrize(("registered", "counted", "good"), [(16, 16, True), (16, 17, False), (10**8, 10**8, False)])
def test_a_tally_is_of_no_more_images_than_a_client_registered_and_others_have(registered, counted, good):
    fleet, grid, _ = toy_fleet()
    grid.nodes[102]["says"] = {"test": registered}
    fleet.gather(0)
    asked = Score(2, (bases(0),), Question())

    def boast(node, reply):
        return Message(pack_answer(asked, Tally(2, (counted,), counted)), reply_to=message_of(reply))

    grid.tamper = boast
    (answer,) = toy_engine(fleet).run(toy_weights(tracked=True), [asked])
    assert type(answer) is (Tally if good else Rejected)


def test_a_client_may_come_back_as_another_node():
    fleet, grid, _ = gathered()
    del grid.nodes[102]
    assert len(toy_engine(fleet).profiles(1)) == 4
    grid.nodes[202] = {"client": 2}
    fleet.refresh()
    assert fleet.nodes[2] == 202
    assert [type(answer) for answer in answers_of(fleet)] == [Update] * 4


def still_there(grid):
    pass


def unheard_of(grid):
    grid.tamper = lambda node, reply: away(reply) if node == 102 else reply


@pytest.mark.parametrize(
    ("happen", "deadline", "holder"), [(still_there, 60, 102), (unheard_of, 60, 202), (withhold, 0.1, 202)]
)
def test_a_place_is_taken_from_who_is_away_or_misses_a_deadline_but_not_from_who_is_there(happen, deadline, holder):
    fleet, grid, notes = gathered(deadline=deadline)
    happen(grid)
    grid.nodes[202] = {"client": 2}
    while fleet.nodes[2] != holder or not (notes or holder == 202):
        fleet.refresh()
    assert notes == (["a node is not used: client 2 is connected already"] if holder == 102 else [])
    asked, grid.tamper = len(grid.sent), lambda node, reply: reply
    fleet.refresh()
    fleet.refresh()
    assert (fleet.nodes[2], grid.sent[asked:]) == (holder, [])  # the other is asked no more, though it answers by now


def test_a_node_that_claims_a_place_is_asked_once_while_its_holder_may_still_answer():
    fleet, grid, _ = gathered(deadline=60)
    withhold(grid)
    grid.nodes[202] = {"client": 2}
    for _ in range(4):
        fleet.refresh()
    assert [node for node, _ in grid.sent[4:]] == [202, 102]


def test_a_node_that_was_away_when_it_was_asked_is_asked_again():
    fleet, grid, notes = toy_fleet()
    losses = iter([True, True, False])
    grid.tamper = lambda node, reply: away(reply) if node == 102 and next(losses) else reply
    fleet.gather(600)
    assert sorted(fleet.nodes) == [0, 1, 2, 3]
    assert notes == []


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"client": 4}, "it is client 4, but the run has clients 0 to 3"),
        ({"train": 1}, "client 1 says that it has 1 training images"),
        ({"kind": "signal"}, "it has signal, the others image"),
        ({"kind": "film"}, "is no"),
        ({"class_names": ("a", "b")}, "names 2 classes of 3"),
        ({"image": (8, 8, 1)}, r"its images are \(8, 8, 1\), those of the others \(6, 6, 1\)"),
        ({"budget": Width(2)}, "width 2 is outside"),
        ({"budget": Width(1, 7)}, "its budget is 1/7, the run needs 1/4 or more"),
        ({"image": (99999, 99999, 3)}, "says that its images are"),
        ({"image": ()}, "says that its images are"),
        ({"image": (0, 6, 1)}, "says that its images are"),
        ({"classes": 10**5}, "says that its labels need 100000 classes"),
        ({"classes": 31}, "its labels need 31 classes, the run began with 30 at most"),
        ({"test": 10**9}, "says that it has"),
        ({"net": "this:x"}, "names the net 'this:x', which is none of"),
        ({"net": "builtins:print"}, "names the net 'builtins:print'"),
        ({"net": "tiny"}, "names the net 'tiny'"),
    ],
)
def test_a_node_that_does_not_fit_is_not_used(says, why):
    fleet, grid, notes = toy_fleet(clients=(0, 2, 3))
    grid.nodes[201] = {"client": 1, "says": says}
    fleet.gather(0)
    assert 201 not in fleet.nodes.values()
    assert any(re.search(why, note) for note in notes)


def test_a_node_whose_classes_have_other_names_is_not_used_but_one_that_names_none_is():
    fleet, grid, notes = toy_fleet()
    for node, names in zip(grid.nodes.values(), ("abc", "abc", "abx", ""), strict=True):
        node["says"] = {"class_names": tuple(names)}
    fleet.gather(0)
    assert sorted(fleet.nodes) == [0, 1, 3]
    assert fleet.class_names == ("a", "b", "c")
    assert notes == ["a node is not used: its classes are a, b, x, those of the others a, b, c"]


def test_most_of_those_who_came_say_what_images_are_like_not_the_first():
    fleet, grid, notes = toy_fleet(clients=(1, 2, 3))
    grid.nodes = {50: {"client": 0, "says": {"image": (7, 7, 1)}}, **grid.nodes}
    fleet.gather(0)
    assert (fleet.image, sorted(fleet.nodes), sorted(fleet.members)) == ((6, 6, 1), [1, 2, 3], [1, 2, 3])
    assert notes[-1] == "a node is not used: its images are (7, 7, 1), those of the others (6, 6, 1)"


def test_a_budget_that_is_no_multiple_of_the_atom_is_lowered_to_one():
    fleet, grid, _ = toy_fleet(clients=(0, 1, 2))
    grid.nodes[203] = {"client": 3, "says": {"budget": Width(5, 7)}}
    fleet.gather(0)
    assert fleet.members[3].budget == Width(1, 2)


@pytest.mark.parametrize("error", [ValueError("no such object"), KeyError("x"), MemoryError(), RecursionError()])
def test_a_message_that_cannot_be_read_is_its_sender_s_loss_alone(error):
    fleet, grid, notes = toy_fleet()
    pull, bad = grid.pull_messages, {102}

    def broken(keys):
        replies = pull(keys)
        if replies and any(grid.sent[int(key.removeprefix("message-"))][0] in bad for key in keys):
            raise error
        return replies

    grid.pull_messages = broken
    fleet.gather(0)
    assert sorted(fleet.nodes) == [0, 1, 3]
    assert any("cannot be read" in note for note in notes)
    bad.add(101)
    assert [type(answer) for answer in answers_of(fleet)] == [Update, Missing, Missing, Update]


def test_a_run_begins_with_those_who_came_and_says_who_did_not():
    fleet, _, notes = gathered(clients=(0, 2))
    assert sorted(fleet.nodes) == [0, 2]
    assert notes == ["begun without client 1, 3: not connected within 0 s"]
    with pytest.raises(UserError, match="no node came within 0 s"):
        gathered(clients=())


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
    fleet, grid, notes = gathered(clients=(0,))
    fleet.budgets = {Width(1, 2), Width(5, 8)}
    grid.nodes[101] = {"client": 1, "says": {"budget": Width(3, 4)}}
    grid.nodes[102] = {"client": 2, "says": {"budget": Width(3, 8)}}
    fleet.refresh()
    assert fleet.members[1].budget == Width(5, 8)
    assert notes[-1] == "a node is not used: its budget is 3/8, the run needs 1/2 or more"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"image": (8, 8, 1)}, "its images are (8, 8, 1), those of the others (6, 6, 1)"),
        ({"kind": "signal"}, "it has signal, the others image"),
        ({"classes": 4}, "its labels need 4 classes, the run began with 3 at most"),
    ],
)
def test_who_comes_later_must_fit_those_with_whom_the_run_began(says, why):
    fleet, grid, notes = gathered(clients=(0, 1))
    grid.nodes[102] = {"client": 2, "says": says}
    fleet.refresh()
    assert (sorted(fleet.nodes), sorted(fleet.members)) == ([0, 1], [0, 1])
    assert notes[-1] == f"a node is not used: {why}"


def test_members_are_written_and_read_back(tmp_path):
    members = {client: toy_member(client) for client in range(4)}
    (tmp_path / ROSTER).write_text(roster_text(members))
    assert read_roster(tmp_path, 4) == members
    assert read_roster(tmp_path, 3) == {}  # of another run
