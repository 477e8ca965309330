"""What a node brings to a run on Flower: its images, its budget, and a net and loss made from the run's settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.width import parse_width
from splitmix.data.folder import read_folder
from splitmix.data.task import Domain, Task, make_domain, make_task
from splitmix.data.tasks import find_task
from splitmix.engines.clients import TaskClients
from splitmix.flower.apps import Bench, ClientApp, client_app
from splitmix.flower.fleet import Member
from splitmix.runs.config import Config, make_config
from splitmix.runs.setup import set_up

Node = Mapping[str, Any]
SOURCES = ("task", "data", "loader")
KEYS = (*SOURCES, "partition-id", "num-partitions", "budget", "data-root")


@dataclass(frozen=True)
class Settings:
    """What server and clients of a run agree on; classes and net are known once the nodes have spoken."""

    config: Config
    classes: int | None = None
    net: str | None = None

    def text(self) -> str:
        return json.dumps({"config": self.config.model_dump(mode="json"), "classes": self.classes, "net": self.net})

    @staticmethod
    def read(text: str) -> "Settings":
        said = json.loads(text)
        return Settings(make_config(said["config"], own=("task",)), said["classes"], said["net"])


def introduce(text: str, node: Node) -> Member:
    """What the server may know of a node: numbers, no image."""
    client, task = held(Settings.read(text), node)
    mine = task.shards[client]
    sizes = (len(mine.train), len(mine.val), len(mine.test))
    image = tuple(int(size) for size in task.train.images.shape[1:])
    budget = parse_width(node["budget"]) if "budget" in node else None
    return Member(client, *sizes, task.classes, image, mine.domain, task.net, budget)


def equip(text: str, node: Node) -> Bench:
    """All that the node's client needs to do a job."""
    settings = Settings.read(text)
    client, task = held(settings, node)
    agreed = replace(task, classes=settings.classes or task.classes, net=settings.net or task.net)
    setup = set_up(settings.config, task=agreed)
    return Bench(setup.net, setup.objective, TaskClients(agreed, setup.budgets).data(client))


def held(settings: Settings, node: Node) -> tuple[int, Task]:
    """Which client a node is, and a task in which its own share is real; others' shares need not be."""
    check_node(node)
    config, client = settings.config, int(node["partition-id"])
    count = int(node.get("num-partitions", config.clients or 0))
    if config.clients != count:
        raise UserError(
            f"this node was started as one of {count} clients, but the run has {config.clients}; "
            f"train with -o clients={count}, or start the nodes anew"
        )
    if not 0 <= client < count:
        raise UserError(f"this node's partition-id is {client}; give a number from 0 to {count - 1}")
    if "task" in node:
        return client, dealt(config, str(node["task"]), root_of(node))
    task = make_task(
        "nodes", domains_of(node), clients=1, partition="iid", val_ratio=config.val_ratio or 0.2, seed=config.seed
    )
    mine = task.shards[0]
    domain = task.domains[0] if len(task.domains) == 1 else mine.domain
    return client, replace(task, shards=tuple(replace(mine, domain=domain) for _ in range(count)))


def dealt(config: Config, name: str, root: Path | None) -> Task:
    """A named task, dealt out as the simulator deals it: for trying a federation out on one machine."""
    if name != config.task:
        raise UserError(f"this node holds the task '{name}', but the run is on '{config.task}'; train on '{name}'")
    settings = {"clients": config.clients, "partition": config.partition, "val_ratio": config.val_ratio}
    return find_task(name, root=root, seed=config.seed, settings=settings)


def warm_up() -> None:
    """Have PyTorch import what it imports at the first use of an optimizer: a second and more."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


@dataclass(frozen=True)
class Link:
    """How a node reaches the SuperLink; without certificates, the connection is not encrypted."""

    address: str
    root_certificates: Path | None = None
    key: Path | None = None  # private, by which the SuperLink knows the node


def be_node(node: Node, link: Link) -> None:
    """Be a SuperNode with this configuration until a signal ends it; all is imported and read before the first job."""
    from splitmix.flower.forking import run_supernode
    from splitmix.flower.site import free_port

    check_node(node)
    if "task" not in node:
        domains_of(node)
    warm_up()
    said = {key: f'"{value}"' if isinstance(value, str) else value for key, value in node.items()}
    words = ["--superlink", link.address, "--node-config", " ".join(f"{key}={value}" for key, value in said.items())]
    words += ["--root-certificates", str(link.root_certificates)] if link.root_certificates else ["--insecure"]
    words += ["--auth-supernode-private-key", str(link.key)] if link.key else []
    run_supernode(words, free_port())


def domains_of(node: Node) -> tuple[Domain, ...]:
    """The images that are on this node."""
    return _read("data", str(node["data"])) if "data" in node else _read("loader", str(node["loader"]))


@cache
def _read(source: str, where: str) -> tuple[Domain, ...]:
    if source == "data":
        return read_folder(where)
    module, _, function = where.partition(":")
    try:
        made = getattr(import_module(module), function)()
    except Exception as error:  # whatever the user's module raises
        cause = str(error) or type(error).__name__
        raise UserError(
            f"the loader '{where}' failed ({cause}); give module:function, a function of no arguments"
        ) from error
    return (make_domain(function, made),)


def check_node(node: Node) -> None:
    """A node names its number and one source of images."""
    unknown = [key for key in node if key not in KEYS]
    if unknown:
        raise UserError(f"unknown key '{unknown[0]}' in the node's configuration; known: {', '.join(KEYS)}")
    if "partition-id" not in node:
        raise UserError("the node's configuration has no partition-id; give it its number, from 0 on")
    given = [key for key in SOURCES if key in node]
    if len(given) != 1:
        raise UserError(
            f"the node's configuration names {' and '.join(given) or 'no images'}; give one of data=FOLDER (of .npz "
            "files), loader=module:function or task=NAME"
        )


def root_of(node: Node) -> Path | None:
    return Path(str(node["data-root"])) if "data-root" in node else None


def app_for(usual: Node) -> ClientApp:
    """The client app, for nodes of which this is known besides what they say themselves."""

    def introduced(text: str, node: Node) -> Member:
        return introduce(text, {**usual, **node})

    def equipped(text: str, node: Node) -> Bench:
        return equip(text, {**usual, **node})

    return client_app(introduced, equipped, attacks=(PGD,))


app = app_for({})
