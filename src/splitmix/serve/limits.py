"""What a request may cost, what every answer says about itself, and what Prometheus may ask."""

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitmix import __version__

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
    rate: float = 100.0  # requests a second from one address, twice as many at once; 0: no limit
    threads: int = 2  # predictions that run at the same time
    waiting: int = 256  # predictions that may wait for a thread
    connections: int = 512


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
        now, key = self.clock(), _neighbourhood(address)
        left, then = self._left.pop(key, (2 * self.rate, now))
        left = min(2 * self.rate, left + (now - then) * self.rate)
        allowed = left >= 1
        self._left[key] = (left - 1 if allowed else left, now)
        while len(self._left) > self.most:  # whoever has been quiet longest has a full bucket anyway
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self.rate


class Guard:
    """Stands before the app: refuses what comes too often, is too large or too slow, and never reads it all first."""

    def __init__(self, app: ASGIApp, limits: ServerLimits) -> None:
        self.app, self.limits, self.rates = app, limits, RequestRates(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _with_headers(send)
        seconds = self.rates.wait((scope.get("client") or ("", 0))[0])
        if seconds:
            sentence = f"more than {self.limits.rate:g} requests a second from your address; wait a moment"
            await refuse(answer, 429, sentence, retry=math.ceil(seconds))
            return
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await read_body(scope, receive, self.limits.body)
        except TimeoutError:
            await refuse(
                answer, 408, f"the request did not arrive within {self.limits.seconds:g} seconds; send it anew"
            )
            return
        except TooLargeError as error:
            sentence = f"the request has {error.size} bytes; at most {self.limits.body:,} are taken"
            await refuse(answer, 413, sentence, receive)
            return
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

    Whoever is still sending would lose the answer if we hung up at once: with `receive`, listen for a second more.
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
        try:
            async with asyncio.timeout(1.0):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body"})


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


def _neighbourhood(address: str) -> str:
    """An address, or for IPv6 its /64: one customer has that many."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(int(parsed) >> 64) if isinstance(parsed, IPv6Address) else address


BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Counters of one server; they hold numbers only, never anything of a picture."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        about = Info("splitmix", "What is running.", registry=self.registry)
        about.info({"version": __version__})
        self.requests = Counter(
            "splitmix_requests", "Answers sent, by path and status.", ("path", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "splitmix_prediction_seconds",
            "Time of a prediction in the model, by the width that answered.",
            ("width",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.attacks = Histogram(
            "splitmix_attack_seconds", "Time of an attack.", buckets=BUCKETS, registry=self.registry
        )
        self.waiting = Gauge(
            "splitmix_predictions_in_progress", "Predictions running or waiting for a thread.", registry=self.registry
        )

    def text(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self.registry)


class Counting:
    """Counts every answer under its route: a path that nobody knows is "other", so that names cannot pile up."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self.metrics.requests.labels(path=route, status=str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counted if scope["type"] == "http" else send)
