"""A server for the tests: the real one, in a thread, on a free port of this machine; and what it is asked."""

import io
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import httpx
import numpy as np
from PIL import Image
from starlette.types import ASGIApp
from torch import nn

from splitmix.attacks.pgd import PGD
from splitmix.core.objective import Attack
from splitmix.runtime.model import Model
from splitmix.serve.app import make_app
from splitmix.serve.limits import ServerLimits
from splitmix.serve.server import address_of, bind, make_server

HANGS = 300  # seconds until something is taken to hang; a busy machine is no failure
ONCE = {
    "timeout": HANGS,
    "verify": False,
    "limits": httpx.Limits(max_keepalive_connections=0),
}  # a line for each question
CLIENT = httpx.Client(**ONCE)  # one for all: to make one takes longer than to ask
ATTACK = PGD(steps=4)
OPEN = ServerLimits(rate=0, seconds=HANGS)  # tests come often, and machines are busy
PICTURES = np.random.default_rng(0).integers(0, 256, (12, 28, 28, 3), dtype=np.uint8)
PIXELS = PICTURES[0].tolist()


@contextmanager
def started(words: Sequence[str | Path], **settings) -> Iterator[subprocess.Popen[str]]:
    """A command that serves until it is told to stop, or the test is over."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, **settings) as run:
        try:
            yield run
        finally:
            run.kill()  # nothing to one that has ended


@contextmanager
def serving(bundle: Path, limits: ServerLimits = OPEN, *, attack: Attack = ATTACK, hosts=()) -> Iterator[str]:
    """The address of a server of a bundle, which stops at the end."""
    with TemporaryDirectory() as cache, patch.dict(os.environ, SPLITMIX_CACHE=cache):
        app = make_app(Model.load(bundle), name="test", attack=attack, limits=limits, hosts=hosts)
        yield from _serve(app, limits)


def _serve(app: ASGIApp, limits: ServerLimits) -> Iterator[str]:
    ready = threading.Event()
    with bind("127.0.0.1", 0) as listening:
        server = make_server(app, limits, ready=ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert ready.wait(HANGS), "the server did not start"
        try:
            yield address_of(listening)
        finally:
            server.should_exit = True
            thread.join(HANGS)
            assert not thread.is_alive(), "the server did not stop"


def get(address: str, path: str, **params) -> httpx.Response:
    return CLIENT.get(f"{address}{path}", params=params or None)


def post(address: str, **body) -> httpx.Response:
    """A question in JSON; NaN and infinity are written as Python does, which is not JSON."""
    return post_raw(address, json.dumps(body), "application/json")


def post_raw(address: str, data: str | bytes, kind: str) -> httpx.Response:
    return CLIENT.post(f"{address}/api/predict", content=data, headers={"content-type": kind})


def png(array, **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG", **options)
    return file.getvalue()


def send_file(address, data, **settings):
    return CLIENT.post(f"{address}/api/predict", files={"image": ("x.png", data)}, data=settings)


def dial(address: str, source: str = "127.0.0.1") -> socket.socket:
    """A line to the server, from one of the addresses that this machine has for itself."""
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=HANGS, source_address=(source, 0))


def heard(line: socket.socket) -> bytes:
    """Whatever comes back on a line, until the other side hangs up."""
    answer = b""
    while piece := line.recv(65536):
        answer += piece
    return answer


def raw(address: str, data: bytes, source: str = "127.0.0.1") -> bytes:
    """Whatever comes back for these bytes."""
    with dial(address, source) as line:
        line.sendall(data)
        return heard(line)


def table_net(width):
    """A net of one's own for rows of four features and three classes."""
    hidden = int(16 * width)
    return nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 3))


class Waiting:
    """An attack that goes on until it is released, at the latest when its `with` ends."""

    name, weak = "waiting", True

    def __init__(self):
        self.began, self.released = threading.Event(), threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.released.set()

    def __call__(self, predict, x, y, rng):
        self.began.set()
        self.released.wait(HANGS)
        return x
