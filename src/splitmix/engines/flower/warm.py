"""A SuperNode that is warm: Flower starts a new process for every message, and ours has all imports done already.

Flower lets somebody else start those processes (`--isolation process`). Here that is a child of the SuperNode which
forks, so that a message costs a few hundredths of a second instead of several for importing PyTorch and Flower.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from time import sleep

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.runtime.run_clientapp import run_clientapp
from httpx import HTTPError

POLL = 0.3  # seconds between two looks for work


def run_supernode(arguments: Sequence[str], port: int) -> None:
    """Be a SuperNode, with these arguments of `flower-supernode`, until a signal ends it."""
    node = os.getpid()
    if os.fork() == 0:
        try:
            execute_tasks(f"127.0.0.1:{port}", node)
        finally:
            os._exit(1)
    sys.argv = ["flower-supernode", *arguments, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    flower_supernode()
    print("the SuperLink does not know this node, or no longer", file=sys.stderr, flush=True)
    os._exit(1)  # Flower's own threads would keep us


def execute_tasks(address: str, node: int) -> None:
    """Fork a client app for each message, until the node is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when to stop
    retry = make_simple_http_retry_invoker()
    retry.max_tries = 1  # between two tries we look whether the node is still there
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    client = RuntimeHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, interceptors=[version], retry_invoker=retry
    )
    request = AcquireTaskRequest(supported_task_types={TaskType.CLIENT_APP})
    running: set[int] = set()
    while os.getppid() == node:
        with suppress(HTTPError):
            found = client.AcquireTask(request)
            if found.HasField("task") and found.token:
                running.add(fork_client(address, found.token, node))
        running = {child for child in running if os.waitpid(child, os.WNOHANG)[0] == 0}
        sleep(POLL)


def fork_client(address: str, token: str, node: int) -> int:
    """A client app for one message, in a process of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_clientapp(address, token, insecure=True, parent_pid=node)
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
