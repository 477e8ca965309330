"""The server over a real socket: right answers at any dial, one sentence for whatever cannot be, and it goes on."""

import asyncio
import io
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from base64 import b64decode

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from bundles import random_bundle
from serving import OPEN, post, raw, serving
from splitmix.core.errors import UserError
from splitmix.models import packaged
from splitmix.runtime.bundle import file_name
from splitmix.runtime.model import Model
from splitmix.runtime.web.limits import Limits, Rates
from splitmix.runtime.web.pictures import from_file
from splitmix.runtime.web.server import bind

pytestmark = pytest.mark.slow  # a real server on a real socket
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (12, 28, 28, 3), dtype=np.uint8)
PIXELS = PICTURES[0].tolist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "digits.bundle"
    random_bundle(path, grid=True)
    return path


@pytest.fixture(scope="module")
def model(bundle):
    return Model.load(bundle)


@pytest.fixture(scope="module")
def server(bundle):
    with serving(bundle) as address:
        yield address


@pytest.fixture
def alive(server):
    """After whatever it was sent, the server still serves."""
    yield server
    assert httpx.get(f"{server}/health", timeout=60).json()["status"] == "ok"


def png(array, **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG", **options)
    return file.getvalue()


def send_file(address, data, **settings):
    return httpx.post(f"{address}/api/predict", files={"image": ("x.png", data)}, data=settings, timeout=60)


def expected(model, picture, width, robust):
    return model(picture[None], width, robust).softmax(-1)[0]


# --- right answers ---


@pytest.mark.parametrize(("width", "robust"), [("1/8", 0), ("3/8", 0.3), ("1", 1), (0.5, 0.77), (None, None)])
def test_an_answer_is_the_one_of_the_model_at_that_dial(server, model, width, robust):
    said = post(server, pixels=PIXELS, width=width, robust=robust).json()
    shares = expected(model, PICTURES[0], width, robust)
    torch.testing.assert_close(torch.tensor(said["probabilities"]), shares)
    assert said["label"] == model.classes[int(shares.argmax())]
    votes = model.logits_by_base(PICTURES[:1], width, robust)[:, 0].argmax(-1)
    assert [vote["label"] for vote in said["votes"]] == [model.classes[int(vote)] for vote in votes]
    assert said["bases"] == len(votes)
    assert said["macs"] == model.manifest.costs[len(votes) - 1].macs


def test_a_file_is_answered_like_its_pixels(server):
    by_pixels = post(server, pixels=PIXELS, width="1/2", robust=0.2).json()
    by_file = send_file(server, png(PICTURES[0]), width="1/2", robust="0.2").json()
    assert by_file["probabilities"] == by_pixels["probabilities"]


def test_a_grey_picture_may_leave_its_channels_out(server):
    grey = PICTURES[0, :, :, 0]
    rgb = np.repeat(grey[..., None], 3, -1)
    assert post(server, pixels=grey.tolist()).json()["label"] == post(server, pixels=rgb.tolist()).json()["label"]


@pytest.mark.parametrize("how", [{"deadline_ms": 5000}, {"confidence": 0.01}, {"deadline_ms": 0.001}])
def test_a_hurried_answer_says_which_width_it_has(server, model, how):
    said = post(server, pixels=PIXELS, **how).json()
    assert said["width"] == str(model.atom * said["bases"])
    shares = expected(model, PICTURES[0], said["width"], 0)
    torch.testing.assert_close(torch.tensor(said["probabilities"]), shares, rtol=1e-4, atol=1e-5)


def test_an_attacked_picture_is_near_the_given_one_and_answered_as_it_is_shown(server, model):
    said = post(server, pixels=PIXELS, width="1/2", robust=0.5, attack=True).json()
    hit = said["attacked"]
    shown = from_file(b64decode(hit["picture"]), (28, 28, 3), most=10_000)
    assert 0 < np.abs(shown.astype(int) - PICTURES[0]).max() <= 8
    torch.testing.assert_close(torch.tensor(hit["probabilities"]), expected(model, shown, "1/2", 0.5))
    away = model.classes.index(hit["target"])
    assert hit["probabilities"][away] < said["probabilities"][away]
    assert hit["target"] == said["label"]
    assert hit["fooled"] == (hit["label"] != hit["target"])
    assert hit["attack"].startswith("L-inf PGD")


def test_an_attack_leads_away_from_the_true_class_if_it_is_known(server):
    assert post(server, pixels=PIXELS, attack=True, label="3").json()["attacked"]["target"] == "3"
    assert post(server, pixels=PIXELS, attack=True, label=4).json()["attacked"]["target"] == "4"


def test_the_model_tells_its_widths_costs_and_table(server, model):
    said = httpx.get(f"{server}/api/model").json()
    assert said["widths"] == [str(width) for width in model.widths]
    assert said["costs"][3] == model.manifest.costs[3].model_dump()
    assert len(said["table"]["rows"]) == 8 * 4
    assert said["dual"]


def test_the_manifest_is_the_one_on_disk(server, bundle):
    assert httpx.get(f"{server}/api/manifest").json() == json.loads((bundle / "manifest.json").read_text())


def test_what_has_not_arrived_is_not_served(bundle, tmp_path):
    for name in ("manifest.json", *map(file_name, range(3))):
        (tmp_path / name).write_bytes((bundle / name).read_bytes())
    with serving(tmp_path) as address:
        said = httpx.get(f"{address}/api/model").json()
        assert said["widths"] == ["1/8", "1/4", "3/8"]
        assert {row["width"] for row in said["table"]["rows"]} == {"1/8", "1/4", "3/8"}
        assert post(address, pixels=PIXELS).json()["bases"] == 3
        assert post(address, pixels=PIXELS, width="1/2").status_code == 422


def test_a_model_without_the_robustness_dial_says_so(tmp_path):
    random_bundle(tmp_path / "plain", dual=False, bases=2)
    with serving(tmp_path / "plain") as address:
        assert post(address, pixels=PIXELS, robust=0).status_code == 200
        refused = post(address, pixels=PIXELS, robust=0.5)
    assert refused.status_code == 422
    assert "no robustness dial" in refused.json()["error"]


# --- plans ---


def test_a_plan_keeps_to_its_limits_however_it_is_asked_for(server, model):
    limits = {"max_macs": 5e6, "min_clean": 0.5, "prefer": "robust"}
    said = httpx.get(f"{server}/api/plan", params=limits, timeout=120).json()
    assert httpx.post(f"{server}/api/plan", json=limits, timeout=120).json() == said
    assert said["fits"]
    assert said["binding"] == ["max_macs"]
    assert (said["option"]["width"], said["option"]["robust"]) == ("1/2", 1.0)
    assert said["option"]["macs"] == model.manifest.costs[3].macs <= 5e6
    assert said["option"]["ms"] > 0


def test_a_plan_that_cannot_be_says_what_to_relax(server):
    said = httpx.post(f"{server}/api/plan", json={"min_clean": 0.999}, timeout=120).json()
    assert not said["fits"]
    assert said["option"]["clean"] >= said["relax"]["min_clean"] > 0.8


@pytest.mark.parametrize("limits", [{"max_ms": "nan"}, {"max_ms": -1}, {"min_clean": 2}, {"prefer": "luck"}, {"x": 1}])
def test_limits_that_cannot_be_are_one_sentence(alive, limits):
    for refused in (httpx.get(f"{alive}/api/plan", params=limits), httpx.post(f"{alive}/api/plan", json=limits)):
        assert refused.status_code == 422
        assert next(iter(limits)) in refused.json()["error"]


# --- what cannot be ---


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
    kind = {"content-type": "application/json"}
    refused = httpx.post(f"{alive}/api/predict", content=body, headers=kind, timeout=60)
    assert refused.status_code in (400, 422)
    assert len(refused.json()["error"]) < 400


@pytest.mark.parametrize("kind", ["text/plain", "image/png", "", "application/x-www-form-urlencoded"])
def test_other_kinds_of_body_are_named(alive, kind):
    refused = httpx.post(f"{alive}/api/predict", content=b"x=1", headers={"content-type": kind})
    assert refused.status_code == 415


def test_a_form_without_boundary_file_or_known_settings_is_refused(alive):
    form = {"content-type": "multipart/form-data"}
    assert httpx.post(f"{alive}/api/predict", content=b"--x", headers=form).status_code == 400
    no_file = httpx.post(f"{alive}/api/predict", files={"other": ("x.png", png(PICTURES[0]))})
    assert no_file.status_code == 422
    assert send_file(alive, png(PICTURES[0]), colour="red").status_code == 422
    assert send_file(alive, png(PICTURES[0]), robust="nan").status_code == 422
    assert send_file(alive, png(PICTURES[0]), **{f"x{i}": "1" for i in range(50)}).status_code == 400


def test_unknown_paths_and_methods_are_sentences(alive):
    for method, path in (("GET", "/nothing"), ("DELETE", "/api/predict"), ("GET", "/static/../app.py")):
        refused = httpx.request(method, f"{alive}{path}")
        assert refused.status_code in (404, 405)
        assert "see /docs" in refused.json()["error"]
    answer = raw(alive, b"GET /static/../../app.py HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
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
    assert from_file(png(clear), (28, 28, 3), most=10_000).min() == 255  # see-through is white
    palette = io.BytesIO()
    Image.fromarray(PICTURES[0]).convert("P").save(palette, format="GIF")
    assert from_file(palette.getvalue(), (28, 28, 3), most=10_000).shape == (28, 28, 3)
    assert from_file(png(PICTURES[0]), (28, 28, 1), most=10_000).shape == (28, 28, 1)


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
    with serving(bundle, Limits(rate=0, seconds=0.4)) as address:
        assert raw(address, half).startswith(b"HTTP/1.1 408")
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_second_request_on_the_same_line_has_its_own_deadline(bundle):
    whole = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(bundle, Limits(rate=0, seconds=0.4)) as address:
        answer = raw(address, whole + whole + b"GET /hea")
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 408") == 1


def test_more_than_the_rate_is_told_to_wait(bundle):
    with serving(bundle, Limits(rate=3)) as address, httpx.Client() as client:
        answers = [client.get(f"{address}/health") for _ in range(12)]
        assert {answer.status_code for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        time.sleep(0.7)
        assert client.get(f"{address}/health").status_code == 200


def test_rates_of_one_address_do_not_touch_another_and_memory_is_bounded():
    now = 0.0
    rates = Rates(1.0, most=3, clock=lambda: now)
    assert [rates.wait("192.0.2.1") for _ in range(3)] == [0, 0, 1]
    assert rates.wait("192.0.2.2") == 0
    assert rates.wait("2001:db8::1") == rates.wait("2001:db8::2") == 0
    assert rates.wait("2001:db8::3") > 0  # one household
    for i in range(50):
        rates.wait(f"198.51.100.{i}")
    assert len(rates._left) == 3


def test_when_too_many_wait_the_next_is_told_so(bundle):
    limits = Limits(rate=0, threads=1, waiting=0)

    async def crowd(address):
        async with httpx.AsyncClient(timeout=60) as client:
            asks = [client.post(f"{address}/api/predict", json={"pixels": PIXELS, "attack": True}) for _ in range(6)]
            return await asyncio.gather(*asks)

    with serving(bundle, limits, steps=40) as address:
        answers = asyncio.run(crowd(address))
        assert {answer.status_code for answer in answers} == {200, 503}
        assert post(address, pixels=PIXELS).status_code == 200


# --- pages ---


def test_every_answer_keeps_the_browser_to_ourselves(server):
    for path in ("/", "/docs", "/static/app.js", "/health", "/nothing"):
        headers = httpx.get(f"{server}{path}").headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_the_pages_need_nothing_from_elsewhere(server):
    for path in ("/", "/docs", "/static/app.js", "/static/views.js", "/static/pad.js", "/static/style.css"):
        text = httpx.get(f"{server}{path}").text.replace(server, "")
        assert "http://" not in text
        assert "https://" not in text


def test_the_description_names_every_path(server):
    page = httpx.get(f"{server}/docs").text
    paths = httpx.get(f"{server}/openapi.json").json()["paths"]
    assert {"/api/predict", "/api/plan", "/api/manifest", "/api/model", "/health", "/metrics"} == set(paths)
    assert all(path in page for path in paths)
    assert "deadline_ms" in page


def test_the_examples_are_the_first_test_pictures_of_each_domain(server):
    from splitmix.models.examples import sheet

    shown = np.asarray(Image.open(io.BytesIO(httpx.get(f"{server}/static/examples.png").content)))
    drawn, domains = sheet()
    about = httpx.get(f"{server}/static/examples.json").json()
    assert (about["domains"], about["labels"]) == (domains, list(range(10)))
    assert np.abs(shown.astype(int) - drawn).mean() < 3  # another Pillow draws edges a little differently


def test_prometheus_can_read_what_was_answered(server):
    from prometheus_client.parser import text_string_to_metric_families

    post(server, pixels=PIXELS, width="1/8")
    httpx.get(f"{server}/no/such/path")
    families = {family.name: family for family in text_string_to_metric_families(httpx.get(f"{server}/metrics").text)}
    counted = {(s.labels["path"], s.labels["status"]) for s in families["splitmix_requests"].samples if s.labels}
    assert {("/api/predict", "200"), ("other", "404")} <= counted
    assert any(s.labels.get("width") == "1/8" for s in families["splitmix_prediction_seconds"].samples)


# --- many at once ---


def test_many_clients_with_random_dials_get_the_answers_of_the_model(server, model):
    """The short version of benchmarks/serve.py: 64 clients, each with a few questions, all at once."""
    known: dict = {}

    async def client(number, web):
        rng = random.Random(number)
        for _ in range(6):
            asked = (rng.randrange(len(PICTURES)), rng.choice(model.widths), rng.choice([0, 0.3, 0.5, 1]))
            body = {"pixels": PICTURES[asked[0]].tolist(), "width": str(asked[1]), "robust": asked[2]}
            said = await web.post(f"{server}/api/predict", json=body)
            assert said.status_code == 200, said.text
            known.setdefault(asked, []).append(said.json()["probabilities"])

    async def crowd():
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=64)) as web:
            await asyncio.gather(*(client(i, web) for i in range(64)))

    asyncio.run(crowd())
    assert sum(map(len, known.values())) == 64 * 6
    for (picture, width, robust), answers in known.items():
        shares = expected(model, PICTURES[picture], width, robust)
        for answer in answers:
            torch.testing.assert_close(torch.tensor(answer), shares)


# --- the command ---


def command(*words):
    return [sys.executable, "-m", "splitmix", "serve", *map(str, words)]


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_told_to_stop(bundle, sign):
    with subprocess.Popen(
        command(bundle, "--port", 0), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        line = run.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://"))
        assert httpx.get(f"{address}/health", timeout=60).status_code == 200
        run.send_signal(sign)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out, err) == (0, "Stopped.\n", "")


@pytest.mark.slow
@pytest.mark.skipif(not packaged().is_dir(), reason="the package has no bundle to serve")
def test_without_a_bundle_it_serves_the_one_in_the_package():
    with subprocess.Popen(command("--port", 0), stdout=subprocess.PIPE, text=True) as run:
        address = next(word for word in run.stdout.readline().split() if word.startswith("http://"))
        said = httpx.get(f"{address}/api/model", timeout=60).json()
        run.terminate()
        run.communicate(timeout=60)
    assert said["dual"]
    assert any(row["attacked"] for row in said["table"]["rows"])


def test_a_port_in_use_is_a_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match="in use; give another --port"):
            bind("127.0.0.1", other.getsockname()[1])


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no.such.host.invalid", 0), ("192.0.2.1", 0)])
def test_an_address_that_cannot_be_is_a_sentence(host, port):
    with pytest.raises(UserError, match="give"):
        bind(host, port)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--rate", "nan"], ["--threads", "0"], ["/no/such/bundle"], ["--port", "-1"]])
def test_a_mistake_on_the_command_line_is_a_sentence(words):
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("splitmix: ")
    assert done.stderr.count("\n") == 1


def test_the_limits_keep_uploads_in_memory():
    from starlette.formparsers import MultiPartParser

    assert OPEN.body <= MultiPartParser.spool_max_size
