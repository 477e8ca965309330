"""Forking: the processes of a federation, as copies of one that has everything imported.

Flower starts a new Python process for every message and every run, and importing PyTorch and Flower takes it several
seconds. But it also lets somebody else start them (`--isolation process`): a process of ours, which has imported all
that an app needs, asks the SuperNode or SuperLink for tasks, and forks itself for each. A message then costs a few
hundredths of a second. A federation on one machine is forked from one such process, too: a SuperNode for each client,
and what starts servers.

python -m splitmix.flower.forking FOLDER NAME...    a name is `server`, or the number of a client;
                                                    prints the name and the process of each
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.cli.flwr_serverapp import flwr_serverapp
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from httpx import HTTPError

from splitmix.core.errors import UserError, in_a_line
from splitmix.flower import server  # noqa: F401  (what a forked server needs)
from splitmix.flower.node import NodeConfig, Said
from splitmix.flower.site import SERVER, Site, free_port, is_running, read_site

POLL = 0.5  # seconds between two looks for work
PAUSE = 10.0  # seconds until a SuperNode that failed is started again
PATIENCE = 150.0  # seconds for which it is
PARENT_DEATH = 1  # the kernel's number for a signal at the death of a parent
APPS: dict[TaskType, Callable[[], None]] = {
    TaskType.CLIENT_APP: flwr_clientapp,
    TaskType.SERVER_APP: flwr_serverapp,
}


def main(folder: str, *names: str) -> None:
    """Fork what is named of the federation that a folder knows."""
    site = read_site(Path(folder))
    for name in names:
        log = site.log(name if name == SERVER else f"node-{name}")
        print(
            name, forked(log, partial(serve_runs, site) if name == SERVER else partial(be_site_node, site, int(name)))
        )


def forked(log: Path, work: Callable[[], None]) -> int:
    """A process that works in a session of its own, with a log."""
    sys.stdout.flush()  # else it is written twice
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
        work()
    except Exception as error:  # the log is all that a user will see
        print(in_a_line(error), file=sys.stderr)
    finally:
        leave(1)


def serve_runs(site: Site) -> None:
    """Fork a server for each run of a site's SuperLink, until that is gone."""
    authority = site.authority if site.tls else None
    execute_tasks(TaskType.SERVER_APP, site.address, site.link, lambda: is_running(site.link), authority)


def be_site_node(site: Site, client: int) -> None:
    """Be one of the nodes that a site knows."""
    said = {"partition-id": client, "num-partitions": site.clients, **site.nodes[client].config}
    be_node(said, SuperLink(site.address, site.authority, site.key(client)) if site.tls else SuperLink(site.address))


@dataclass(frozen=True)
class SuperLink:
    """How a node reaches the SuperLink; without certificates, the connection is not encrypted."""

    address: str
    root_certificates: Path | None = None
    key: Path | None = None  # private, by which the SuperLink knows the node


def be_node(said: Said, link: SuperLink) -> None:
    """Be a SuperNode with this configuration until a signal ends it, or it is turned away.

    Its images are read before the first job.
    """
    NodeConfig.read(said).read_ahead()
    if sys.platform != "linux":
        raise UserError("a node is run like this on Linux only; elsewhere start Flower's own flower-supernode")
    quoted = {key: f'"{value}"' if isinstance(value, str) else value for key, value in said.items()}
    words = ["--superlink", link.address, "--node-config", " ".join(f"{key}={value}" for key, value in quoted.items())]
    words += ["--root-certificates", str(link.root_certificates)] if link.root_certificates else ["--insecure"]
    words += ["--auth-supernode-private-key", str(link.key)] if link.key else []
    port = free_port()
    node = SuperNode([*words, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)])
    node.start()
    execute_tasks(TaskType.CLIENT_APP, f"127.0.0.1:{port}", os.getpid(), node.goes_on)


@dataclass
class SuperNode:
    """A SuperNode in a process of its own, started again when it fails.

    A SuperLink does not let in a node that was killed and comes back while it is still taken for present, for a minute;
    Flower's SuperNode then ends. So one that is not let in knocks again, for a while.
    """

    arguments: Sequence[str]
    pid: int = 0
    began: float = 0.0
    knocking: float = field(default_factory=monotonic)  # since when it has not been let in, as far as we know

    def start(self) -> None:
        self.began, self.pid = monotonic(), os.fork()
        if self.pid == 0:
            ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGTERM)  # it ends with the process that would start it again
            become(flower_supernode, ["flower-supernode", *self.arguments])

    def goes_on(self) -> bool:
        """Whether it is there, or has just been started again."""
        found, status = os.waitpid(self.pid, os.WNOHANG)
        if found == 0:
            return True
        if os.waitstatus_to_exitcode(status) == 0:  # it was told to end
            return False
        now = monotonic()
        if now - self.began > PATIENCE:
            self.knocking = now  # it has worked in between
        if now - self.knocking > PATIENCE:
            print("the SuperLink does not let this node in", file=sys.stderr, flush=True)
            return False
        print(f"not connected to the SuperLink; another try in {PAUSE:g} s", file=sys.stderr, flush=True)
        sleep(PAUSE)
        self.start()
        return True


def execute_tasks(
    kind: TaskType, address: str, owner: int, go_on: Callable[[], bool], authority: Path | None = None
) -> None:
    """Fork an app for each task that is waiting at an address, as long as we are to go on; apps end with the owner."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has the tasks decides when to stop
    retry = make_simple_http_retry_invoker()
    retry.max_tries = 1  # between two tries we look whether to go on
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=authority is None,
        root_certificates=None if authority is None else authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=retry,
    )
    security = ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    words = ["--runtime-api-address", address, "--parent-pid", str(owner), *security]
    running: set[int] = set()
    while go_on():
        with suppress(HTTPError):
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types={kind}))
            if found.HasField("task") and found.token:
                running.add(fork_app(kind, [*words, "--token", found.token]))
        running = {child for child in running if os.waitpid(child, os.WNOHANG)[0] == 0}
        sleep(POLL)


def fork_app(kind: TaskType, words: Sequence[str]) -> int:
    """An app for one task, in a process of its own."""
    child = os.fork()
    if child == 0:
        become(APPS[kind], [str(kind), *words])
    return child


def become(program: Callable[[], None], words: Sequence[str]) -> NoReturn:
    """Be one of Flower's programs, called with these words, in a process that was forked for it."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = list(words)
        program()
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """End a forked process at once: Flower's own threads would keep it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
