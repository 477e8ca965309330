"""Warm processes: Flower starts a new one for every message and every run, and ours have all imports done already.

Flower lets somebody else start those processes (`--isolation process`). Here that is a process which forks, so that a
message costs a few hundredths of a second instead of several for importing PyTorch and Flower.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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

from splitmix.core.errors import UserError

POLL = 0.3  # seconds between two looks for work
PAUSE = 10.0  # seconds until a SuperNode that failed is started again
PATIENCE = 150.0  # seconds for which it is
PARENT_DEATH = 1  # the kernel's number for a signal at the death of a parent
APPS: dict[TaskType, Callable[[], None]] = {
    TaskType.CLIENT_APP: flwr_clientapp,
    TaskType.SERVER_APP: flwr_serverapp,
}


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


def run_supernode(arguments: Sequence[str], port: int) -> None:
    """Be a SuperNode, with these arguments of `flower-supernode`, until a signal ends it or it is turned away."""
    if sys.platform != "linux":
        raise UserError("a node is run like this on Linux only; elsewhere start Flower's own flower-supernode")
    node = SuperNode([*arguments, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)])
    node.start()
    execute_tasks(TaskType.CLIENT_APP, f"127.0.0.1:{port}", os.getpid(), node.goes_on)


def execute_servers(address: str, link: int, authority: Path | None) -> None:
    """Fork a server app for each run of a SuperLink, until that is gone."""
    execute_tasks(TaskType.SERVER_APP, address, link, lambda: alive(link), authority)


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
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Flower's own threads would keep us


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
