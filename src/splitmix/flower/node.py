"""A node: its images and budget, a net and loss made from the run's settings, and the Flower app that does its jobs."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from pydantic import BaseModel, ConfigDict, ValidationError

from splitmix.attacks.pgd import PGD
from splitmix.core.batches import ClientData
from splitmix.core.client import execute
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.objective import Objective
from splitmix.core.reproducible import one_thread
from splitmix.core.width import parse_width
from splitmix.data.domain import Domain
from splitmix.data.doors import is_table, read
from splitmix.data.task import Task, make_task
from splitmix.data.tasks import find_task, net_for
from splitmix.engines.clients import TaskClients
from splitmix.flower.wire import Agreement, Member, pack_answer, pack_member, unpack_job, unpack_query
from splitmix.nets import NETS
from splitmix.runs.config import Config
from splitmix.runs.setup import set_up

Said = Mapping[str, object]  # a node's configuration, as Flower hands it over
Introduce = Callable[[str, Said], Member]  # (agreement, node) -> what the node is
Equip = Callable[[str, Said], "Equipment"]  # (agreement, node) -> what the node works with
SOURCES = ("task", "data", "loader")


class NodeConfig(BaseModel):
    """A node's own configuration: one source of images, its number, and what it can train."""

    model_config = ConfigDict(
        alias_generator=lambda name: name.replace("_", "-"), coerce_numbers_to_str=True, extra="forbid", frozen=True
    )

    task: str | None = None  # a share of it, as the simulator deals it
    data: str | None = None  # a file or folder
    loader: str | None = None  # module:function
    partition_id: int
    num_partitions: int | None = None
    budget: str | None = None  # None: as the run's settings say
    data_root: str | None = None

    @classmethod
    def read(cls, said: Said) -> "NodeConfig":
        """A configuration that names the node's number and one source of images."""
        known = [field.alias for field in cls.model_fields.values()]
        unknown = [key for key in said if key not in known]
        if unknown:
            raise UserError(
                f"unknown key '{unknown[0]}' in the node's configuration; known: {', '.join(map(str, known))}"
            )
        if "partition-id" not in said:
            raise UserError("the node's configuration has no partition-id; give it its number, from 0 on")
        given = [key for key in SOURCES if key in said]
        if len(given) != 1:
            raise UserError(
                f"the node's configuration names {' and '.join(given) or 'no images'}; give one of data=PATH (a "
                "folder of pictures, .npz files or a table), loader=module:function or task=NAME"
            )
        try:
            return cls.model_validate(said)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise UserError(f"{wrong['loc'][0]} of the node is {wrong['input']!r}: {wrong['msg']}") from None

    def domains(self, how: Mapping[str, object] | None) -> tuple[Domain, ...]:
        """The images that are on this node, read as the run says; none, if it has a share of a task."""
        return _read_images(self.data, self.loader, json.dumps(how or {})) if self.task is None else ()

    def read_ahead(self) -> None:
        """Read the images that processes forked later will find in memory; how a table is read, only the run says."""
        if self.data is None or not is_table(self.data):
            self.domains(None)


@cache
def _read_images(data: str | None, loader: str | None, how: str) -> tuple[Domain, ...]:
    if loader is None:
        return read(str(data), json.loads(how))
    module, _, function = loader.partition(":")
    try:
        made = getattr(import_module(module), function)()
    except Exception as error:  # whatever the user's module raises
        cause = str(error) or type(error).__name__
        raise UserError(
            f"the loader '{loader}' failed ({cause}); give module:function, a function of no arguments"
        ) from error
    domains = read(made, json.loads(how))
    return (replace(domains[0], name=function),) if len(domains) == 1 else domains


@dataclass(frozen=True)
class Equipment:
    """What a client does its jobs with."""

    net: Net
    objective: Objective
    data: ClientData


def introduce(agreed: str, said: Said) -> Member:
    """What the server may know of a node: numbers, no image."""
    node = NodeConfig.read(said)
    client, task = client_and_task(Agreement.read(agreed).config, node)
    mine = task.shards[client]
    sizes = (len(mine.train), len(mine.val), len(mine.test))
    budget = None if node.budget is None else parse_width(node.budget)
    net = task.net if task.net in NETS else None  # one of its own is nothing to the server
    return Member(client, *sizes, task.classes, task.image, mine.domain, net, budget, task.class_names, task.kind)


def equip(agreed: str, said: Said) -> Equipment:
    """All that the node's client needs to do a job."""
    agreement = Agreement.read(agreed)
    client, task = client_and_task(agreement.config, NodeConfig.read(said))
    task = replace(task, classes=agreement.classes or task.classes, net=agreement.net or task.net)
    setup = set_up(agreement.config, task=task)
    return Equipment(setup.net, setup.objective, TaskClients(task, setup.budgets).data(client))


def client_and_task(config: Config, node: NodeConfig) -> tuple[int, Task]:
    """Which client a node is, and a task in which its own share is real; others' shares need not be."""
    client, count = node.partition_id, node.num_partitions or config.clients or 0
    if config.clients != count:
        raise UserError(
            f"this node was started as one of {count} clients, but the run has {config.clients}; "
            f"train with -o clients={count}, or start the nodes anew"
        )
    if not 0 <= client < count:
        raise UserError(f"this node's partition-id is {client}; give a number from 0 to {count - 1}")
    if node.task is not None:
        return client, dealt(config, node.task, None if node.data_root is None else Path(node.data_root))
    ratio = config.val_ratio or 0.2
    domains = node.domains(config.data)
    net = net_for(domains[0])
    task = make_task("nodes", domains, clients=1, partition="iid", val_ratio=ratio, seed=config.seed, net=net)
    mine = task.shards[0]
    domain = task.domains[0] if len(task.domains) == 1 else mine.domain
    return client, replace(task, shards=tuple(replace(mine, domain=domain) for _ in range(count)))


def dealt(config: Config, name: str, root: Path | None) -> Task:
    """A named task, dealt out as the simulator deals it: for trying a federation out on one machine."""
    if name != config.task:
        raise UserError(f"this node holds the task '{name}', but the run is on '{config.task}'; train on '{name}'")
    settings = {"clients": config.clients, "partition": config.partition, "val_ratio": config.val_ratio}
    return find_task(name, root=root, seed=config.seed, settings=settings, data=config.data)


def client_app(introduce: Introduce, equip: Equip, attacks: Collection[type] = ()) -> ClientApp:
    """A client that says what it is, and does jobs on its own images."""
    app = ClientApp()
    work = partial(do_job, equip, attacks)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        member = introduce(unpack_query(message.content), context.node_config)
        return Message(pack_member(member), reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    return app


def do_job(equip: Equip, attacks: Collection[type], message: Message, context: Context) -> Message:
    """Work on one job, on one thread: then every engine gives the same bits, and every machine of one kind."""
    job, download, agreed = unpack_job(message.content, attacks)
    tools = equip(agreed, context.node_config)
    with one_thread():
        answer = execute(job, tools.net, download, tools.data, tools.objective, {})
    return Message(pack_answer(job, answer), reply_to=message)


def app_for(usual: Said) -> ClientApp:
    """The client app, for nodes of which this is known besides what they say themselves."""
    return client_app(
        lambda agreed, node: introduce(agreed, {**usual, **node}),
        lambda agreed, node: equip(agreed, {**usual, **node}),
        attacks=(PGD,),
    )


app = app_for({})
