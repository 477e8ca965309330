"""What a server cannot be asked: one sentence for each, and it goes on."""

import httpx
import pytest

from helpers.serving import PICTURES, PIXELS, png, post, raw, send_file

pytestmark = pytest.mark.slow  # a real server on a real socket

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
