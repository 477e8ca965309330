"""Strangers at the door: other hosts and sites, one address that wants everything, and what errors repeat of it."""

import io
import json
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from PIL import Image

from helpers.serving import CLIENT, HANGS, PIXELS, Waiting, dial, get, heard, post, post_raw, raw, send_file, serving
from splitmix.core.errors import UserError
from splitmix.serve.limits import Hosts, ServerLimits
from splitmix.serve.server import Door, address_of, bind

pytestmark = pytest.mark.slow  # a real server on a real socket

OTHER = "127.0.0.2"  # an address of this machine that is not the visitor's
PLAIN = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


# --- hosts and sites ---


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "192.168.1.5", "", "[x"]
)
@pytest.mark.parametrize("path", ["/", "/api/manifest", "/health", "/static/app.js"])
def test_a_host_that_is_not_ours_reads_nothing(alive, host, path):
    refused = CLIENT.get(f"{alive}{path}", headers={"host": host})
    assert refused.status_code == 421
    assert "--allow-host" in refused.json()["error"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.", "a.localhost", "127.0.0.9:80", "[::1]:8000"]
)
def test_this_machine_may_call_itself_what_it_likes(alive, host):
    assert CLIENT.get(f"{alive}/health", headers={"host": host}).status_code == 200


def test_a_host_that_is_allowed_is_served(served):
    with serving(served, hosts=["box.lan"]) as address:
        found = {host: CLIENT.get(f"{address}/health", headers={"host": host}) for host in ("Box.lan:80", "ox.lan")}
    assert [answer.status_code for answer in found.values()] == [200, 421]


@pytest.mark.parametrize("name", ["", "box.lan:80", "http://box.lan", "a b", "*"])
def test_what_is_no_host_cannot_be_allowed(name):
    if name == "*":
        assert "evil.example" not in Hosts([name])
    else:
        with pytest.raises(UserError, match="--allow-host"):
            Hosts([name])


def test_a_page_of_another_site_may_not_post(alive):
    body = {"pixels": PIXELS}
    said = {
        site: CLIENT.post(f"{alive}/api/predict", json=body, headers={"sec-fetch-site": site}).status_code
        for site in ("cross-site", "same-origin", "none")
    }
    assert said == {"cross-site": 403, "same-origin": 200, "none": 200}
    assert CLIENT.get(f"{alive}/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to us


# --- one address ---


HEAD = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"pixels": PIXELS, "attack": True}).encode()
ABOUT = b"Connection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
QUESTION = HEAD + ABOUT + BODY


@pytest.mark.parametrize("half", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"], ids=["line", "head", "body"])
def test_half_sent_requests_of_one_address_shut_nobody_out(served, half):
    with (
        serving(served, ServerLimits(rate=1000, connections=12, each=4, seconds=HANGS)) as address,
        ExitStack() as held,
    ):
        lines = [held.enter_context(dial(address, OTHER)) for _ in range(20)]
        for line in lines:
            with suppress(OSError):  # the oldest have given way
                line.sendall(half)
        assert raw(address, PLAIN).startswith(b"HTTP/1.1 200")
        assert raw(address, PLAIN, OTHER).startswith(b"HTTP/1.1 200")
        with suppress(ConnectionError):
            assert heard(lines[0])[:12] in (b"", b"HTTP/1.1 429")


def test_who_comes_too_often_is_shut_out_before_anything_is_made_of_the_line():
    with bind("127.0.0.1", 0) as listening, ExitStack() as held:
        address = address_of(listening)
        door = held.enter_context(Door.of(listening.dup(), rate=1))
        door.rates.clock = lambda: 0.0
        door.setblocking(False)
        lines = [held.enter_context(dial(address, source)) for source in (*[OTHER] * 5, "127.0.0.1")]
        heard_of = [held.enter_context(door.accept()[0]).getpeername()[0] for _ in range(3)]
        assert heard_of == [OTHER, OTHER, "127.0.0.1"]
        with pytest.raises(BlockingIOError):
            door.accept()
        assert [heard(line) for line in lines[2:5]] == [b""] * 3  # hung up on


def test_a_line_whose_answer_is_under_way_does_not_give_way(served):
    attack, limits = Waiting(), ServerLimits(rate=1000, each=1, seconds=HANGS)
    with serving(served, limits, attack=attack) as address, ThreadPoolExecutor(1) as pool, attack:
        asked = pool.submit(raw, address, QUESTION, OTHER)
        assert attack.began.wait(HANGS)
        with suppress(ConnectionError):  # it may hang up before it has heard us out
            assert raw(address, PLAIN, OTHER)[:12] in (b"", b"HTTP/1.1 429")
        attack.released.set()
        assert asked.result().startswith(b"HTTP/1.1 200")


def test_attacks_of_one_address_leave_a_thread_to_the_others(served):
    attack = Waiting()
    limits = ServerLimits(rate=1000, threads=2, attacks=2, seconds=HANGS)
    with serving(served, limits, attack=attack) as address, ThreadPoolExecutor(10) as pool, attack:
        asked = [pool.submit(raw, address, QUESTION, OTHER) for _ in range(10)]
        refused = [next(done) for done in [as_completed(asked)] for _ in range(7)]  # one runs, two wait
        assert {answer.result()[:12] for answer in refused} == {b"HTTP/1.1 429"}
        assert b"retry-after: 1" in refused[0].result()
        assert post(address, pixels=PIXELS).status_code == 200  # while the attack goes on
        attack.released.set()
        assert sorted(answer.result()[:12] for answer in asked)[:3] == [b"HTTP/1.1 200"] * 3


# --- pictures that take long, and forms that are none ---


def progressive(side: int, *, more: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(file, format="JPEG", progressive=True)
    whole = file.getvalue()
    return whole[:-2] + whole[whole.rfind(b"\xff\xda") : -2] * more + whole[-2:]


def test_a_jpeg_of_a_thousand_scans_is_refused_before_it_is_decoded(alive):
    assert send_file(alive, progressive(64, more=10)).status_code == 200
    refused = send_file(alive, progressive(64, more=1000))
    assert (refused.status_code, "40 scans" in refused.json()["error"]) == (413, True)


def test_scans_are_counted_where_a_decoder_finds_them(alive):
    whole = progressive(64, more=0)
    inside = b"\xff\xe5" + (2002).to_bytes(2) + b"\xff\xda" * 1000  # a thumbnail's, say
    assert send_file(alive, whole[:2] + inside + whole[2:] + b"\xff\xda" * 1000).status_code == 200
    filled = whole.replace(b"\xff\xda", b"\xff\xff\xff\xda")
    assert send_file(alive, filled[:-2] + filled[filled.rfind(b"\xff\xff\xff\xda") : -2] * 100).status_code == 413


@pytest.mark.parametrize("piece", [b"\xff\xfe\x00\x02", b"\xff\xe1\x00\x08Exif\0\0", b"\xff\xfe\x00\x00"])
def test_a_picture_of_countless_pieces_is_refused(alive, piece):
    whole = progressive(64, more=0)
    refused = send_file(alive, whole[:2] + piece * 60_000 + whole[2:])
    assert (refused.status_code, "too many pieces" in refused.json()["error"]) == (400, True)


PART = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
FORMS = {
    "no boundary in it": b"hello",
    "a head without a colon": b"--x\r\nno colon\r\n\r\n",
    "a head without end": b"--x\r\nA: " + b"b" * 100_000,
    "heads without end": b"--x\r\n" + b"A: b\r\n" * 10_000,
    "a part without a name": b"--x\r\n\r\n\r\n--x--\r\n",
    "no end": PART + b"abc",
    "nothing": b"",
}
KINDS = ["boundary=" + "x" * 5000, "boundary=", "a=b", "boundary=x; charset=undefined", "boundary=x; charset=idna"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file of the parser, in memory
@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
def test_a_form_that_is_none_is_a_sentence(alive, body):
    refused = post_raw(alive, body, "multipart/form-data; boundary=x")
    assert refused.status_code in (400, 422)
    assert 10 < len(refused.json()["error"]) < 400


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[:30])
def test_a_kind_of_form_that_cannot_be_is_a_sentence(alive, kind):
    body = PART.replace(b"filename", b"file") + b"..\xff\r\n--x--\r\n"
    refused = post_raw(alive, body, f"multipart/form-data; {kind}")
    assert refused.status_code in (400, 422)
    assert 10 < len(refused.json()["error"]) < 400


# --- what errors repeat ---

LONG = "\x1b[31m" + "y" * 300_000
REPEATED = [
    {"width": LONG},
    {"robust": LONG},
    {"label": LONG},
    {"attack": LONG},
    {LONG: 1},
    {f"{i}{'z' * 60}": i for i in range(10_000)},
    {"width": [[1] * 100_000]},
    {"width": "1e-300000"},
    {"width": "1e20000000"},
    {"width": int("9" * 4000)},
]


@pytest.mark.parametrize("settings", REPEATED, ids=lambda value: str(value)[:20].encode("unicode_escape").decode())
def test_an_error_repeats_little_of_what_was_sent(alive, settings):
    refused = post(alive, **{"pixels": PIXELS, **settings})
    assert refused.status_code in (400, 422)
    assert 10 < len(refused.json()["error"]) < 400
    assert refused.json()["error"].isprintable()


def test_an_error_repeats_little_of_a_path_a_query_or_a_kind(alive):
    for answer in (
        get(alive, "/" + "y" * 20_000),
        get(alive, "/api/plan", **{f"y{i}": "y" * 90 for i in range(200)}),
        get(alive, "/api/plan", max_ms="y" * 20_000),
        post_raw(alive, b"x", "y" * 20_000),
    ):
        assert answer.status_code in (404, 415, 422)
        assert len(answer.json()["error"]) < 400
