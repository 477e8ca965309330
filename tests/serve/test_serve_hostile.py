"""What a server cannot be asked, hostile pictures and requests: one sentence for each, and it goes on."""

import asyncio
import io
import random
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import numpy as np
import pytest
from PIL import Image

from helpers.serving import (
    CLIENT,
    HANGS,
    OPEN,
    PICTURES,
    PIXELS,
    Waiting,
    get,
    png,
    post,
    post_raw,
    raw,
    send_file,
    serving,
)
from splitmix.core.inputs.pictures import picture_from_file
from splitmix.serve.app import make_app
from splitmix.serve.limits import Guard, Hosts, RequestRates, ServerLimits

pytestmark = pytest.mark.slow  # a real server on a real socket


# --- what cannot be asked ---

NAN, INF = float("nan"), float("inf")
IMPOSSIBLE = [
    *({"robust": value} for value in (NAN, INF, -INF, -0.1, 1.1, "much", [], {}, True)),
    *({"width": value} for value in (NAN, INF, 0, -1, 2, "1/3", "9/8", "1/16", "0/0", "wide", "", [], {}, True)),
    *({"deadline_ms": value} for value in (NAN, 0, -1, "soon", 1e9)),
    *({"confidence": value} for value in (NAN, -1, 2, "sure")),
    *({"label": value} for value in ("cat", 10, -1, [], 1.5)),
    *({"attack": value} for value in (2, "perhaps", [])),
    {"colour": "red"},
    *({"pixels": value} for value in (None, 1, "x", [], [[]], {}, [1, [2]], [[NAN] * 28] * 28, [[0.5] * 28] * 28)),
    *({"pixels": value} for value in ([[256] * 28] * 28, [[-1] * 28] * 28, [[True] * 28] * 28, [["1"] * 28] * 28)),
    *({"pixels": value} for value in ([[0] * 27] * 28, [[[0] * 4] * 28] * 28, [[2**70] * 28] * 28)),
]


@pytest.mark.parametrize("settings", IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_one_sentence(alive, settings):
    refused = post(alive, **{"pixels": PIXELS, **settings})
    assert refused.status_code in (400, 422), refused.text
    why = refused.json()["error"]
    assert refused.json().keys() == {"error"}
    assert 10 < len(why) < 400
    assert "\n" not in why
    assert "Traceback" not in why


BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "another kind": b"[1, 2]",
    "bytes": b"\xff\xfe\x00",
    "deep": b'{"pixels": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000,
    "a long number": b'{"pixels": ' + b"9" * 500_000 + b"}",
    "NaN": b'{"pixels": [[NaN]]}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_question_is_refused(alive, body):
    refused = post_raw(alive, body, "application/json")
    assert refused.status_code in (400, 422)
    assert len(refused.json()["error"]) < 400


def test_nan_is_no_json(alive):
    refused = post_raw(alive, BODIES["NaN"], "application/json")
    assert (refused.status_code, "no JSON" in refused.json()["error"]) == (400, True)


def test_countless_settings_are_counted_and_not_read(alive):
    assert post(alive, **{f"x{i}": i for i in range(10_000)}).json()["error"].startswith("10000 settings were sent")


@pytest.mark.parametrize("kind", ["text/plain", "image/png", "", "application/x-www-form-urlencoded"])
def test_other_kinds_of_body_are_named(alive, kind):
    assert post_raw(alive, b"x=1", kind).status_code == 415


def test_a_form_without_boundary_file_or_known_settings_is_refused(alive):
    assert post_raw(alive, b"--x", "multipart/form-data").status_code == 400
    other = {"other": ("x.png", png(PICTURES[0]))}
    assert CLIENT.post(f"{alive}/api/predict", files=other).status_code == 422
    assert send_file(alive, png(PICTURES[0]), colour="red").status_code == 422
    assert send_file(alive, png(PICTURES[0]), robust="nan").status_code == 422
    assert send_file(alive, png(PICTURES[0]), **{f"x{i}": "1" for i in range(50)}).status_code == 400


def test_unknown_paths_and_methods_are_sentences(alive):
    for method, path in (("GET", "/nothing"), ("DELETE", "/api/predict"), ("GET", "/static/../app.py")):
        refused = CLIENT.request(method, f"{alive}{path}")
        assert refused.status_code in (404, 405)
        assert "see /docs" in refused.json()["error"]
    answer = raw(alive, b"GET /static/../../app.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404")


# --- hostile pictures ---


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int, *, text: bytes = b"") -> bytes:
    """A small file that would be huge once it is decoded."""
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min(side, 2000) * (side // 8 + 1)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + text + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [2_001, 12_000, 50_000, 2**31 - 1])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(alive, side):
    data = bomb(side) if side < 2**30 else bomb(8).replace(struct.pack(">II", 8, 8), struct.pack(">II", side, side), 1)
    refused = send_file(alive, data)
    assert refused.status_code in (400, 413)
    assert refused.status_code == 413 or side > 2**30
    assert "picture" in refused.json()["error"]


def test_a_text_bomb_in_a_picture_does_no_harm(alive):
    text = chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(8_000_000), 9))
    assert send_file(alive, bomb(64, text=text)).status_code in (200, 400)


BROKEN = {
    "empty": b"",
    "text": b"hello" * 100,
    "half": png(PICTURES[0])[:200],
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "16 bits": png(np.full((28, 28), 40_000, np.uint16)),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_picture_is_refused(alive, data):
    refused = send_file(alive, data)
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("the ")


def test_mutated_pictures_never_break_the_server(alive):
    rng = random.Random(0)
    whole = png(PICTURES[0])
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        assert send_file(alive, bytes(data)).status_code in (200, 400, 413)


def test_pictures_of_any_kind_and_size_fit():
    clear = np.zeros((40, 80, 4), np.uint8)
    assert picture_from_file(png(clear), (28, 28, 3), most=10_000).min() == 255  # see-through is white
    palette = io.BytesIO()
    Image.fromarray(PICTURES[0]).convert("P").save(palette, format="GIF")
    assert picture_from_file(palette.getvalue(), (28, 28, 3), most=10_000).shape == (28, 28, 3)
    assert picture_from_file(png(PICTURES[0]), (28, 28, 1), most=10_000).shape == (28, 28, 1)


# --- hostile requests ---


def test_a_body_of_a_gigabyte_is_refused_at_once(alive):
    head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n"
    answer = raw(alive, head + b"x" * 100_000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"1,073,741,824" in answer


def test_an_endless_body_is_cut_off(alive):
    sent = 0

    def pieces():
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 16
            yield bytes(1 << 16)

    try:
        answer = CLIENT.post(f"{alive}/api/predict", content=pieces())
        assert answer.status_code == 413
    except httpx.TransportError:  # we hung up while it was still sending
        pass
    assert sent < 1 << 30


NO_HTTP = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "words": b"hello\r\n\r\n",
    "a long path": b"GET /" + b"a" * 100_000,
    "bad chunks": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a length below zero": b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_http_is_answered_and_closed(alive, data):
    assert raw(alive, data + b"\r\n").startswith(b"HTTP/1.1 400")


HALF = {
    "nothing": b"",
    "half a line": b"POST /api/pred",
    "half a head": b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\n",
    "half a body": b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
}


def test_a_half_sent_request_times_out_and_a_second_on_the_same_line_has_its_own_deadline(served):
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(served, ServerLimits(rate=0, seconds=4)) as address, ThreadPoolExecutor() as pool:  # all wait at once
        *halves, second = pool.map(partial(raw, address), [*HALF.values(), whole + whole + b"GET /hea"])
        assert get(address, "/health").status_code == 200
    assert [answer[:12] for answer in halves] == [b"HTTP/1.1 408"] * len(HALF)
    assert (second.count(b"HTTP/1.1 200"), second.count(b"HTTP/1.1 408")) == (2, 1)


def in_process(app):
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=HANGS, verify=False
    )


def test_more_than_the_rate_is_told_to_wait():
    now = 0.0

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def visit():
        nonlocal now
        async with in_process(guard) as client:
            answers = [await client.get("/health") for _ in range(7)]
            now += 0.4
            return [*answers, await client.get("/health")]

    guard = Guard(app, ServerLimits(rate=3), Hosts())
    guard.rates.clock = lambda: now
    answers = asyncio.run(visit())
    assert [answer.status_code for answer in answers] == [200] * 6 + [429, 200]
    assert answers[6].headers["retry-after"] == "1"


def test_rates_of_one_address_do_not_touch_another_and_memory_is_bounded():
    now = 0.0
    rates = RequestRates(1.0, most=3, clock=lambda: now)
    assert [rates.wait("192.0.2.1") for _ in range(3)] == [0, 0, 1]
    assert rates.wait("192.0.2.2") == 0
    assert rates.wait("2001:db8::1") == rates.wait("2001:db8::2") == 0
    assert rates.wait("2001:db8::3") > 0  # one household
    for i in range(50):
        rates.wait(f"198.51.100.{i}")
    assert len(rates._left) == 3


def test_when_too_many_wait_the_next_is_told_so(model):
    attack = Waiting()
    app = make_app(model, attack=attack, limits=ServerLimits(rate=0, threads=1, waiting=0))

    async def crowd():
        async with in_process(app) as client:
            first = asyncio.create_task(client.post("/api/predict", json={"pixels": PIXELS, "attack": True}))
            await asyncio.to_thread(attack.began.wait, HANGS)
            refused = await client.post("/api/predict", json={"pixels": PIXELS})
            attack.released.set()
            return [refused, await first, await client.post("/api/predict", json={"pixels": PIXELS})]

    answers = asyncio.run(crowd())
    assert [answer.status_code for answer in answers] == [503, 200, 200]
    assert answers[0].headers["retry-after"] == "1"


def test_the_limits_keep_uploads_in_memory():
    from starlette.formparsers import MultiPartParser

    assert OPEN.body <= MultiPartParser.spool_max_size
