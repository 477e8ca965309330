"""Running the app: a socket of our own, few lines for each address, a deadline for half-sent requests, a quiet end."""

import asyncio
import errno
import gc
import json
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, ClassVar, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from splitmix.core.errors import UserError
from splitmix.serve.limits import STOPPING, RequestRates, ServerLimits, household

ACCEPTED = 16  # connections that are let in at a time, before those that are in are looked after again
QUEUE = 1024  # connections that wait to be let in
GRACE = 2  # seconds in which what has been asked is answered, once the server is told to stop
SWITCH = 0.001  # seconds after which a busy thread makes way: predictions must not keep the others from being heard


def bind(host: str, port: int) -> socket.socket:
    """Take a port of this machine (0: any free one), or say in one sentence why not."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is no port; give a number from 1 to 65535, or 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host {host} is no address of this machine; give 127.0.0.1, or 0.0.0.0 for all") from None
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(QUEUE)
    except OSError as error:
        taken.close()
        raise UserError(_why_not(host, port, error)) from None
    return taken


def address_of(listening: socket.socket) -> str:
    """What to type into a browser.

    >>> with bind("127.0.0.1", 0) as listening:
    ...     address_of(listening).rpartition(":")[0]
    'http://127.0.0.1'
    """
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_private(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ip_address(listening.getsockname()[0]).is_loopback


def own_names(listening: socket.socket) -> tuple[str, ...]:
    """The address that it listens on, as browsers write it; none if it listens on all."""
    host = listening.getsockname()[0]
    return () if ip_address(host).is_unspecified else (f"[{host}]" if ":" in host else host,)


def serve_until_stopped(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; what has been asked is answered within two seconds, or given up."""
    sys.setswitchinterval(SWITCH)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises the signal again once it has stopped
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def make_server(app: ASGIApp, limits: ServerLimits, *, ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server that is not running yet; `ready` is called when it is."""
    config = uvicorn.Config(
        may_be_given_up(app),
        http=patient(limits),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,  # handlers of the process it runs in are not closed; errors still reach stderr
        log_level="error",
        access_log=False,
        proxy_headers=False,  # anyone could write another address there, and so escape the rate
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE + 1,  # by then we have given up ourselves
        backlog=ACCEPTED,
    )
    return Server(config, limits.rate, ready)


class Server(uvicorn.Server):
    """Lets few in at a time, as many as want to may wait; says when it serves."""

    def __init__(self, config: uvicorn.Config, rate: float, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.rate, self.ready = rate, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        doors: list[socket.socket] = [Door.of(listening.dup(), self.rate) for listening in sockets or ()]
        await super().startup(doors)
        for door in doors:
            door.listen(QUEUE)  # asyncio has set the length of the queue to what it accepts at a time
        gc.freeze()  # what is here stays: to look through all of it again and again would keep visitors waiting
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(GRACE, self.give_up)
        await super().shutdown(sockets)
        if self.force_exit:  # a second Ctrl-C waits for nobody
            self.give_up()
            await self.lifespan.shutdown()

    def give_up(self) -> None:
        """Tell whoever still waits that there will be no answer; nobody's reading slowly keeps us."""
        for line in list(self.server_state.connections):
            cast(Patient, line).give_up()  # the only protocol that it was given
        for task in list(self.server_state.tasks):
            asyncio.get_running_loop().call_soon(task.cancel)  # after its line is known to be closed


def may_be_given_up(app: ASGIApp) -> ASGIApp:
    """The same app; a request of it that is cancelled just ends, which uvicorn would take for a failure."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return serve


class Door(socket.socket):
    """A listening socket that shuts whoever comes more often than the rate, before anything is made of the line."""

    rates: RequestRates

    @classmethod
    def of(cls, listening: socket.socket, rate: float) -> "Door":
        door = cls(fileno=listening.detach())
        door.rates = RequestRates(rate)
        return door

    def accept(self) -> tuple[socket.socket, Any]:
        """The next line that may be heard; raises, as any socket does, when nobody is there."""
        while True:
            line, address = super().accept()
            if not self.rates.wait(address[0]):
                return line, address
            line.close()


class Patient(H11Protocol):
    """HTTP as uvicorn speaks it, but nobody holds lines that others need.

    A request whose first lines do not all arrive in time is answered and closed. Where an address has too many lines,
    the oldest on which nothing is being answered gives way to the new one.
    """

    limits: ClassVar[ServerLimits]
    lines: ClassVar[dict[str, dict["Patient", None]]]  # of this server: by address, the oldest first
    stopping: ClassVar[bool] = False
    head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, InOneGo(transport, self.loop)))
        self.wait_for_head()
        self.address = household(self.client[0] if self.client else "")
        mine, most = self.lines.setdefault(self.address, {}), self.limits.of_one_address(self.limits.each)
        mine[self] = None
        if self.stopping:  # it was on its way in
            self.shutdown()
        elif len(mine) > most:
            last = next((line for line in mine if not line.answering), self)
            last.hang_up(429, f"more than {most} connections from your address; close some")
            last.forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        self.stop_waiting()
        super().connection_lost(exc)

    def forget(self) -> None:
        mine = self.lines.get(self.address, {})
        mine.pop(self, None)
        if not mine:
            self.lines.pop(self.address, None)

    @property
    def answering(self) -> bool:
        """Whether a request has arrived in full and its answer has not gone yet."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self.head is None and self.conn.our_state is h11.IDLE:
            self.wait_for_head()  # the first byte of another request
        super().data_received(data)
        if self.conn.our_state is not h11.IDLE:
            self.stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self.wait_for_head()  # another request has begun to arrive already

    def wait_for_head(self) -> None:
        self.stop_waiting()
        self.head = self.loop.call_later(self.limits.seconds, self.too_slow)

    def stop_waiting(self) -> None:
        if self.head is not None:
            self.head.cancel()
            self.head = None

    def too_slow(self) -> None:
        self.head = None
        if not self.transport.is_closing() and self.conn.our_state is h11.IDLE:
            self.hang_up(408, f"the request did not arrive within {self.limits.seconds:g} seconds; send it anew")

    def send_400_response(self, msg: str) -> None:
        self.hang_up(400, "this is not a request in HTTP/1.1; see /docs")

    def shutdown(self) -> None:
        """Answer what has been asked in full; whoever has sent half a request need not be waited for."""
        type(self).stopping = True
        if self.answering:
            super().shutdown()
        else:
            self.hang_up(503, STOPPING)

    def give_up(self) -> None:
        """Say that there will be no answer, and end the line even if what was sent on it is not taken."""
        self.hang_up(503, STOPPING)
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def hang_up(self, status: int, sentence: str) -> None:
        """Say why, unless an answer is on its way already; by hand, as this must cost little when many are sent off."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": sentence}).encode()
            head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class InOneGo:
    """A transport that sends what is written to it in one turn of the loop at once: head and body of an answer."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._written = transport, loop, bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written += data

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._written:
            self._transport.write(bytes(self._written))
            self._written.clear()


def patient(limits: ServerLimits) -> type[Patient]:
    """The protocol of one server."""
    return type("PatientWithin", (Patient,), {"limits": limits, "lines": {}})


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; give another --port, or --port 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} is for the administrator; give a --port from 1024 up"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; give 127.0.0.1, or 0.0.0.0 for all"
    return f"port {port} of {host} cannot be taken ({error.strerror or error}); give another --port"
