"""Who may ask, what a request may cost, and what every answer says about itself."""

import asyncio
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitmix.core.errors import UserError, shown

LINGER = 16_000_000  # bytes that are still taken, and forgotten, of a request that has been refused
STOPPING = "the server is being stopped; try again in a moment"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True)
class ServerLimits:
    """Bounds that keep the server serving whatever it is sent."""

    body: int = 1_000_000  # bytes of a request; below this, uploads stay in memory and never touch a disk
    pixels: int = 4_000_000  # of a picture, looked at before it is decoded
    seconds: float = 10.0  # until a request has arrived in full
    rate: float = 100.0  # requests a second from one address, twice as many at once; 0: addresses have no limits
    threads: int = 2  # predictions that run at the same time
    waiting: int = 256  # predictions that may wait for a thread
    batch: int = 32  # of these, with the same dial, that are answered in one go
    connections: int = 512
    each: int = 64  # connections, and predictions that wait, from one address
    attacks: int = 4  # that wait, from one address: each takes as long as many predictions

    def of_one_address(self, most: int) -> float:
        """A limit for each address, unless these are off: behind a proxy all visitors have the same."""
        return most if self.rate else math.inf


@lru_cache(10_000)
def household(address: str) -> str:
    """Who asks: an address, or for IPv6 its /64, as one customer has that many.

    >>> household("2001:db8::1") == household("2001:db8::2"), household("::ffff:192.0.2.1")
    (True, '192.0.2.1')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or int(parsed) >> 64)
    return address


class RequestRates:
    """A bucket for each address: it holds two seconds' worth of requests and fills up again at the rate.

    >>> rates = RequestRates(2.0, clock=lambda: 0.0)
    >>> [rates.wait("192.0.2.1") for _ in range(5)]
    [0.0, 0.0, 0.0, 0.0, 0.5]
    """

    def __init__(self, rate: float, *, most: int = 10_000, clock: Callable[[], float] = monotonic) -> None:
        self.rate, self.most, self.clock = rate, most, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> requests left, at this time

    def wait(self, address: str) -> float:
        """Take one request out of the bucket of an address: 0, or the seconds until there is one."""
        if self.rate <= 0:
            return 0.0
        now, key = self.clock(), household(address)
        left, then = self._left.pop(key, (2 * self.rate, now))
        left = min(2 * self.rate, left + (now - then) * self.rate)
        allowed = left >= 1
        self._left[key] = (left - 1 if allowed else left, now)
        while len(self._left) > self.most:  # whoever has been quiet longest has a full bucket anyway
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self.rate


class Hosts:
    """The names under which a server may be asked: those of this machine to itself, and those that are allowed.

    A stranger's page can make a name of its own mean this machine; whoever asks by such a name is refused.
    """

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self.allowed = frozenset(map(_checked_name, allowed))

    def __contains__(self, header: str) -> bool:
        """Whether this is a Host that we answer to, with or without a port.

        >>> hosts = Hosts(["box.lan"])
        >>> [host in hosts for host in ("localhost:8000", "[::1]", "127.0.0.2", "Box.lan:80", "box.lan.example")]
        [True, True, True, True, False]
        """
        found = HOST.fullmatch(header.strip().lower())
        return found is not None and (found[1] in self.allowed or _is_loopback(found[1]))


HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/\[\]]+?)\.?(?::[0-9]{1,5})?")


class Guard:
    """Stands before the app: refuses what comes from elsewhere, too often, too slowly, or is too large."""

    def __init__(self, app: ASGIApp, limits: ServerLimits, hosts: Hosts) -> None:
        self.app, self.limits, self.hosts, self.rates = app, limits, hosts, RequestRates(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _with_headers(send)
        seconds = self.rates.wait((scope.get("client") or ("", 0))[0])
        if seconds:
            sentence = f"more than {self.limits.rate:g} requests a second from your address; wait a moment"
            await refuse(answer, 429, sentence, retry=math.ceil(seconds))
        elif stranger := self._stranger(scope):
            await refuse(answer, *stranger)
        else:
            await self._read(scope, receive, answer)

    def _stranger(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request looks like one of another site's page, if it does."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if host not in self.hosts:
            return 421, f"the host {shown(host)} is not served here; ask for localhost, or start with --allow-host"
        if scope["method"] not in ("GET", "HEAD") and headers.get(b"sec-fetch-site") == "cross-site":
            return 403, "a page of another site sent this; only pages of this server may"
        return None

    async def _read(self, scope: Scope, receive: Receive, answer: Send) -> None:
        """Hand on a request that has arrived in full, in time and within its limits."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await read_body(scope, receive, self.limits.body)
        except TimeoutError:
            sentence = f"the request did not arrive within {self.limits.seconds:g} seconds; send it anew"
            await refuse(answer, 408, sentence)
        except TooLargeError as error:
            sentence = f"the request has {error.size} bytes; at most {self.limits.body:,} are taken"
            await refuse(answer, 413, sentence, receive)
        else:
            if body is not None:
                await self.app(scope, _replay(body, receive), answer)


class TooLargeError(Exception):
    """A body of more bytes than are taken; `size` is in words."""

    def __init__(self, size: str) -> None:
        super().__init__(size)
        self.size = size


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """The whole body, or None if the client has gone; raises as soon as it is clear that it is too large."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > most:
        raise TooLargeError(f"{int(declared):,}")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise TooLargeError(f"more than {most:,}")
        if not message.get("more_body", False):
            return bytes(body)


async def refuse(send: Send, status: int, sentence: str, receive: Receive | None = None, *, retry: int = 0) -> None:
    """Answer with one sentence and hang up.

    Whoever is still sending would lose the answer if we hung up at once: with `receive`, listen a little longer.
    """
    body = json.dumps({"error": sentence}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if retry:
        headers.append((b"retry-after", b"%d" % retry))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is not None:
        await _listen(receive, seconds=1.0, most=LINGER)
        await send({"type": "http.response.body"})


async def _listen(receive: Receive, *, seconds: float, most: int) -> None:
    """Take what still comes and forget it, until it ends, or too long or too much of it has come."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while most > 0 and (message := await receive()).get("more_body", False):
                most -= len(message.get("body", b""))


def _with_headers(send: Send) -> Send:
    """Every answer carries the security headers, and nothing of the interface is cached."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            known = {name.lower() for name, _ in headers}
            headers += HEADERS
            if b"cache-control" not in known:
                headers.append((b"cache-control", b"no-cache" if b"etag" in known else b"no-store"))
            message = {**message, "headers": headers}
        await send(message)

    return answer


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand over a body that has been read already; after it, whatever comes."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def _checked_name(name: str) -> str:
    found = HOST.fullmatch(name.lower())
    if found is None or found[0] != found[1]:
        raise UserError(f"--allow-host {shown(name)} is no name of a host; give one such as box.lan, without a port")
    return found[1]


@lru_cache(1000)
def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
