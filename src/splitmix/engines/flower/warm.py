"""Warm processes: Flower starts a new one for every message and every run, and ours have all imports done already.

Flower lets somebody else start those processes (`--isolation process`). Here that is a process which forks, so that a
message costs a few hundredths of a second instead of several for importing PyTorch and Flower.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.cli.flwr_serverapp import flwr_serverapp
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from httpx import HTTPError

POLL = 0.3  # seconds between two looks for work
APPS: dict[TaskType, Callable[[], None]] = {
    TaskType.CLIENT_APP: flwr_clientapp,
    TaskType.SERVER_APP: flwr_serverapp,
}


def run_supernode(arguments: Sequence[str], port: int) -> None:
    """Be a SuperNode, with these arguments of `flower-supernode`, until a signal ends it."""
    node = os.getpid()
    if os.fork() == 0:
        try:
            execute_tasks(TaskType.CLIENT_APP, f"127.0.0.1:{port}", node)
        finally:
            os._exit(1)
    sys.argv = ["flower-supernode", *arguments, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    flower_supernode()
    print("the SuperLink does not know this node, or no longer", file=sys.stderr, flush=True)
    os._exit(1)  # Flower's own threads would keep us


def execute_servers(address: str, link: int, authority: Path | None) -> None:
    """Fork a server app for each run of a SuperLink, until that is gone."""
    execute_tasks(TaskType.SERVER_APP, address, link, authority)


def execute_tasks(kind: TaskType, address: str, owner: int, authority: Path | None = None) -> None:
    """Fork an app for each task that the owner of an address has, until the owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides when to stop
    retry = make_simple_http_retry_invoker()
    retry.max_tries = 1  # between two tries we look whether the owner is still there
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
    while alive(owner):
        with suppress(HTTPError):
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types={kind}))
            if found.HasField("task") and found.token:
                running.add(fork_app(kind, [*words, "--token", found.token]))
        running = {child for child in running if os.waitpid(child, os.WNOHANG)[0] == 0}
        sleep(POLL)


def fork_app(kind: TaskType, words: Sequence[str]) -> int:
    """An app for one task, in a process of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = [str(kind), *words]
        APPS[kind]()
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
