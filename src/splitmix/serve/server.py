"""Running the app: a socket of our own, a deadline for half-sent requests, and a quiet end."""

import asyncio
import errno
import json
import signal
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from splitmix.core.errors import UserError
from splitmix.serve.limits import ServerLimits


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
        taken.listen(1024)
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


def serve_until_stopped(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; what has begun is finished within five seconds."""
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
        app,
        http=patient(limits.seconds),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,  # anyone could write another address there, and so escape the rate
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=5,
    )
    return Server(config, ready)


class Server(uvicorn.Server):
    """Says when it serves."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()


def patient(seconds: float) -> type[asyncio.Protocol]:
    """HTTP as uvicorn speaks it, but a request whose first lines do not all arrive in time is answered and closed."""

    class Patient(H11Protocol):
        head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_waiting()
            super().connection_lost(exc)

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
            self.head = self.loop.call_later(seconds, self.too_slow)

        def stop_waiting(self) -> None:
            if self.head is not None:
                self.head.cancel()
                self.head = None

        def too_slow(self) -> None:
            self.head = None
            if not self.transport.is_closing() and self.conn.our_state is h11.IDLE:
                self.hang_up(408, f"the request did not arrive within {seconds:g} seconds; send it anew")

        def send_400_response(self, msg: str) -> None:
            self.hang_up(400, "this is not a request in HTTP/1.1; see /docs")

        def hang_up(self, status: int, sentence: str) -> None:
            body = json.dumps({"error": sentence}).encode()
            headers: list[tuple[str, str]] = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            events: list[Any] = [
                h11.Response(status_code=status, headers=headers, reason=b""),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ]
            try:
                for event in events:
                    self.transport.write(self.conn.send(event) or b"")
            except h11.LocalProtocolError:  # an answer is on its way already
                pass
            self.transport.close()

    return Patient


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; give another --port, or --port 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} is for the administrator; give a --port from 1024 up"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; give 127.0.0.1, or 0.0.0.0 for all"
    return f"port {port} of {host} cannot be taken ({error.strerror or error}); give another --port"
