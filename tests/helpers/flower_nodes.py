"""Toy nodes of a federation over messages, for tests without processes."""

from dataclasses import dataclass, replace

from flwr.app import Message, RecordDict

from helpers.flower_grid import LocalGrid
from helpers.toys import ATOM, LAYOUT, PLAN, Plain, ToyClients, bases, toy_simulator
from splitmix.attacks.pgd import PGD
from splitmix.core.types import Calibrate, Question, Score, Train
from splitmix.core.width import Width
from splitmix.flower.engine import FlowerEngine
from splitmix.flower.fleet import Fleet
from splitmix.flower.node import Equipment, client_app
from splitmix.flower.wire import Member

TOYS = ToyClients()
JOBS = [
    Train(2, 1, bases(0, 2), PLAN, seed=5, run="a run"),
    Score(3, (bases(0), bases(1, 3)), Question("val", batch=4, robust=0.3)),
    Score(3, (bases(0),), Question(attack=PGD(eps=0.1, steps=3), surrogate=(bases(2), 0.5), images=4)),
    Calibrate(0, bases(0, 1, 2, 3), batch=8),
]


def toy_member(client, toys=TOYS):
    size = toys.sizes[client]
    return Member(client, size, size, size, 3, (6, 6, 1), "toys", "digit", toys.budgets[client])


def toy_app(toys):
    net = toy_simulator().net
    return client_app(
        lambda text, node: replace(toy_member(node["client"], toys), **node.get("says", {})),
        lambda text, node: Equipment(net, Plain(), toys.data(node["client"])),
        attacks=(PGD,),
    )


def toy_fleet(clients=(0, 1, 2, 3), *, deadline=600.0, toys=TOYS):
    """Nodes 100 and up, a grid to have them do as one likes, and what is noted."""
    grid = LocalGrid(toy_app(toys), {100 + client: {"client": client} for client in clients})
    notes = []
    return Fleet(grid, "{}", len(toys.sizes), ATOM, deadline, notes.append), grid, notes


def toy_engine(fleet, toys=TOYS):
    return FlowerEngine(fleet, toy_simulator().net, LAYOUT, Usual(toys.budgets), "{}")


@dataclass(frozen=True)
class Usual:
    """The same budgets in every round."""

    budgets: tuple[Width, ...]

    def at(self, round):
        return self.budgets


def message_of(reply):
    asked = Message(RecordDict(), 1, "train")
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked
