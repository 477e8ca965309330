"""Hostile pictures and requests: bombs, halves, floods and what is no HTTP; the server goes on."""

import asyncio
import io
import random
import struct
import time
import zlib

import httpx
import numpy as np
import pytest
from PIL import Image

from helpers.serving import OPEN, PICTURES, PIXELS, png, post, raw, send_file, serving
from splitmix.runtime.images import picture_from_file
from splitmix.serve.limits import RequestRates, ServerLimits

pytestmark = pytest.mark.slow  # a real server on a real socket


@pytest.fixture(scope="module")
def bundle(served):
    return served


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


@pytest.mark.slow
def test_mutated_pictures_never_break_the_server(alive):
    rng = random.Random(0)
    whole = png(PICTURES[0])
    with httpx.Client(timeout=60) as client:
        for _ in range(200):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            said = client.post(f"{alive}/api/predict", files={"image": ("x", bytes(data))})
            assert said.status_code in (200, 400, 413), said.text


def test_pictures_of_any_kind_and_size_fit():
    clear = np.zeros((40, 80, 4), np.uint8)
    assert picture_from_file(png(clear), (28, 28, 3), most=10_000).min() == 255  # see-through is white
    palette = io.BytesIO()
    Image.fromarray(PICTURES[0]).convert("P").save(palette, format="GIF")
    assert picture_from_file(palette.getvalue(), (28, 28, 3), most=10_000).shape == (28, 28, 3)
    assert picture_from_file(png(PICTURES[0]), (28, 28, 1), most=10_000).shape == (28, 28, 1)


# --- hostile requests ---


def test_a_body_of_a_gigabyte_is_refused_at_once(alive):
    head = (
        b"POST /api/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n"
    )
    began = time.monotonic()
    answer = raw(alive, head + b"x" * 100_000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"1,073,741,824" in answer
    assert time.monotonic() - began < 20


def test_an_endless_body_is_cut_off(alive):
    sent = 0

    def pieces():
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 16
            yield bytes(1 << 16)

    try:
        answer = httpx.post(f"{alive}/api/predict", content=pieces(), timeout=60)
        assert answer.status_code == 413
    except httpx.TransportError:  # we hung up while it was still sending
        pass
    assert sent < 1 << 30


NO_HTTP = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "words": b"hello\r\n\r\n",
    "a long path": b"GET /" + b"a" * 100_000,
    "bad chunks": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a length below zero": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_http_is_answered_and_closed(alive, data):
    assert raw(alive, data + b"\r\n").startswith(b"HTTP/1.1 400")


HALF = {
    "nothing": b"",
    "half a line": b"POST /api/pred",
    "half a head": b"POST /api/predict HTTP/1.1\r\nHost: x\r\n",
    "half a body": b"POST /api/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("half", HALF.values(), ids=HALF)
def test_a_half_sent_request_times_out(bundle, half):
    with serving(bundle, ServerLimits(rate=0, seconds=0.4)) as address:
        assert raw(address, half).startswith(b"HTTP/1.1 408")
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_second_request_on_the_same_line_has_its_own_deadline(bundle):
    whole = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(bundle, ServerLimits(rate=0, seconds=0.4)) as address:
        answer = raw(address, whole + whole + b"GET /hea")
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 408") == 1


def test_more_than_the_rate_is_told_to_wait(bundle):
    with serving(bundle, ServerLimits(rate=3)) as address, httpx.Client() as client:
        answers = [client.get(f"{address}/health") for _ in range(12)]
        assert {answer.status_code for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        time.sleep(0.7)
        assert client.get(f"{address}/health").status_code == 200


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


def test_when_too_many_wait_the_next_is_told_so(bundle):
    limits = ServerLimits(rate=0, threads=1, waiting=0)

    async def crowd(address):
        async with httpx.AsyncClient(timeout=60) as client:
            asks = [client.post(f"{address}/api/predict", json={"pixels": PIXELS, "attack": True}) for _ in range(6)]
            return await asyncio.gather(*asks)

    with serving(bundle, limits, steps=40) as address:
        answers = asyncio.run(crowd(address))
        assert {answer.status_code for answer in answers} == {200, 503}
        assert post(address, pixels=PIXELS).status_code == 200


def test_the_limits_keep_uploads_in_memory():
    from starlette.formparsers import MultiPartParser

    assert OPEN.body <= MultiPartParser.spool_max_size
