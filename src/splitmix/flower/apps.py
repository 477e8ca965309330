"""The two Flower apps, made of what a run is: the client answers queries and jobs, the server runs the run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from splitmix.core.batches import ClientData
from splitmix.core.client import execute
from splitmix.core.net import Net
from splitmix.core.objective import Objective
from splitmix.core.reproducible import one_thread
from splitmix.flower.fleet import Member
from splitmix.flower.wire import pack_answer, text_of, to_text, unpack_job

Node = Mapping[str, Any]  # a node's own configuration
Introduce = Callable[[str, Node], Member]  # (settings, node) -> what the node is
Equip = Callable[[str, Node], "Bench"]  # (settings, node) -> what the node works with


@dataclass(frozen=True)
class Bench:
    """What a client does its jobs with."""

    net: Net
    objective: Objective
    data: ClientData


def client_app(introduce: Introduce, equip: Equip, attacks: Collection[type] = ()) -> ClientApp:
    """A client that says what it is, and does jobs on its own images."""
    app = ClientApp()
    work = partial(do_job, equip, attacks)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        member = introduce(text_of(message.content, "settings"), context.node_config)
        return Message(RecordDict({"about": ConfigRecord({"member": to_text(member)})}), reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    return app


def do_job(equip: Equip, attacks: Collection[type], message: Message, context: Context) -> Message:
    """Work on one job, on one thread: then every machine and engine gives the same bits."""
    job, download, settings = unpack_job(message.content, attacks)
    bench = equip(settings, context.node_config)
    with one_thread():
        answer = execute(job, bench.net, download, bench.data, bench.objective, {})
    return Message(pack_answer(job, answer), reply_to=message)


def server_app(run: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """A server that runs what it is given, with the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid, context.run_config)

    return app
