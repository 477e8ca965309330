"""The server over a real socket: right answers at any dial, plans, many at once, its pages, and the command."""

import asyncio
import json
import logging
import random
import signal
import socket
import sys
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from helpers.bundles import random_bundle
from helpers.serving import CLIENT, HANGS, ONCE, PICTURES, PIXELS, get, png, post, send_file, serving, started
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.core.inputs.pictures import picture_from_file
from splitmix.runtime.bundle import file_name
from splitmix.runtime.model import Model
from splitmix.serve.limits import STOPPING
from splitmix.serve.server import bind

pytestmark = pytest.mark.slow  # a real server on a real socket


@pytest.fixture(scope="module")
def model(served):
    return Model.load(served)


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


def test_a_file_is_answered_like_its_pixels_and_a_grey_picture_may_leave_its_channels_out(server):
    by_pixels = post(server, pixels=PIXELS, width="1/2", robust=0.2).json()
    by_file = send_file(server, png(PICTURES[0]), width="1/2", robust="0.2").json()
    assert by_file["probabilities"] == by_pixels["probabilities"]
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
    shown = picture_from_file(b64decode(hit["picture"]), (28, 28, 3), most=10_000)
    assert 0 < np.abs(shown.astype(int) - PICTURES[0]).max() <= 8
    torch.testing.assert_close(torch.tensor(hit["probabilities"]), expected(model, shown, "1/2", 0.5))
    away = model.classes.index(hit["target"])
    assert hit["probabilities"][away] < said["probabilities"][away]
    assert hit["target"] == said["label"]
    assert hit["fooled"] == (hit["label"] != hit["target"])
    wrong = next(name for name in model.classes if name not in (said["label"], hit["label"]))
    led = post(server, pixels=PIXELS, width="1/2", robust=0.5, attack=True, label=wrong).json()["attacked"]
    assert (led["target"], led["fooled"]) == (wrong, False)  # it was wrong before
    assert hit["attack"].startswith("L-inf PGD")
    for label in ("3", 4):  # it leads away from the true class if that is known
        assert post(server, pixels=PIXELS, attack=True, label=label).json()["attacked"]["target"] == str(label)


def test_the_server_tells_of_its_model_and_shows_the_manifest_on_disk(server, served, model):
    said = get(server, "/api/model").json()
    assert said["widths"] == [str(width) for width in model.widths]
    assert said["costs"][3] == model.manifest.costs[3].model_dump()
    assert len(said["table"]["rows"]) == 8 * 4
    assert said["dual"]
    assert get(server, "/api/manifest").json() == json.loads((served / "manifest.json").read_text())


def test_what_has_not_arrived_or_is_not_there_is_not_served(tmp_path):
    whole = random_bundle(tmp_path / "whole", atom="1/16", dual=False, bases=4).path
    (whole / file_name(3)).unlink()
    with serving(whole) as address:
        said = get(address, "/api/model").json()
        assert said["widths"] == ["1/16", "1/8", "3/16"]
        assert {row["width"] for row in said["table"]["rows"]} == {"1/16", "1/8", "3/16"}
        assert post(address, pixels=PIXELS, robust=0).json()["bases"] == 3
        assert post(address, pixels=PIXELS, width="1/4").status_code == 422
        refused = post(address, pixels=PIXELS, robust=0.5)
        assert refused.status_code == 422
        assert "no robustness dial" in refused.json()["error"]


# --- plans ---


def test_a_plan_keeps_to_its_limits_however_it_is_asked_for(server, model):
    limits = {"max_macs": 5e6, "min_clean": 0.5, "prefer": "robust"}
    said = get(server, "/api/plan", **limits).json()
    assert CLIENT.post(f"{server}/api/plan", json=limits).json() == said
    assert said["fits"]
    assert said["binding"] == ["max_macs"]
    assert (said["option"]["width"], said["option"]["robust"]) == ("1/2", 1.0)
    assert said["option"]["macs"] == model.manifest.costs[3].macs <= 5e6
    assert said["option"]["ms"] > 0
    said = get(server, "/api/plan", min_clean=0.999).json()  # which cannot be: it says what to relax
    assert not said["fits"]
    assert said["option"]["clean"] >= said["relax"]["min_clean"] > 0.8


@pytest.mark.parametrize("limits", [{"max_ms": "nan"}, {"max_ms": -1}, {"min_clean": 2}, {"prefer": "luck"}, {"x": 1}])
def test_limits_that_cannot_be_are_one_sentence(alive, limits):
    posted = CLIENT.post(f"{alive}/api/plan", json=limits)
    for refused in (get(alive, "/api/plan", **limits), posted):
        assert refused.status_code == 422
        assert next(iter(limits)) in refused.json()["error"]


# --- many at once ---


def test_many_clients_with_random_dials_get_the_answers_of_the_model(server, model):
    """The short version of benchmarks/serve.py: 64 clients, each with two questions, all at once."""
    known: dict = {}

    async def client(number, web):
        rng = random.Random(number)
        for _ in range(2):
            asked = (
                rng.randrange(len(PICTURES)),
                rng.choice(model.widths[::4]),
                rng.choice([0, 0.5]),
            )  # so that some go together
            body = {"pixels": PICTURES[asked[0]].tolist(), "width": str(asked[1]), "robust": asked[2]}
            said = await web.post(f"{server}/api/predict", json=body)
            assert said.status_code == 200, said.text
            known.setdefault(asked, []).append(said.json())

    async def crowd():
        async with httpx.AsyncClient(**ONCE) as web:
            await asyncio.gather(*(client(i, web) for i in range(64)))

    asyncio.run(crowd())
    assert sum(map(len, known.values())) == 64 * 2
    for (picture, width, robust), answers in known.items():
        shares = expected(model, PICTURES[picture], width, robust)
        for answer in answers:
            torch.testing.assert_close(torch.tensor(answer["probabilities"]), shares)
            assert answer["label"] == model.classes[int(shares.argmax())]


# --- its pages, which need nothing from elsewhere, its description and its metrics ---


def test_the_pages_keep_the_browser_to_ourselves(server):
    for path in ("/", "/docs", *(f"/static/{n}" for n in ("app.js", "views.js", "pad.js", "style.css")), "/nothing"):
        found = get(server, path)
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "server" not in found.headers
        text = found.text.replace(server, "")
        assert "http://" not in text
        assert "https://" not in text


def test_the_description_names_every_path(server):
    page = get(server, "/docs").text
    paths = get(server, "/openapi.json").json()["paths"]
    assert {f"/api/{name}" for name in ("predict", "plan", "manifest", "model", "examples")} <= set(paths)
    assert {"/health", "/metrics"} <= set(paths)
    assert all(path in page for path in paths)
    assert "deadline_ms" in page


def test_prometheus_can_read_what_was_answered(server):
    post(server, pixels=PIXELS, width="1/8")
    get(server, "/no/such/path")
    families = {family.name: family for family in text_string_to_metric_families(get(server, "/metrics").text)}
    counted = {(s.labels["path"], s.labels["status"]) for s in families["splitmix_requests"].samples if s.labels}
    assert {("/api/predict", "200"), ("other", "404")} <= counted
    assert any(s.labels.get("width") == "1/8" for s in families["splitmix_prediction_seconds"].samples)


# --- the command ---


def test_the_command_serves_a_bundle_until_it_is_told_to_stop(served):
    words = [sys.executable, "-m", "splitmix", "serve", served, "--port", "0"]
    with started(words) as run:
        line = run.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://"))
        said = get(address, "/api/model").json()
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=HANGS)
    assert (run.returncode, out, err) == (0, "Stopped.\n", "")
    assert said["dual"]
    assert any(row["attacked"] for row in said["table"]["rows"])


ENDLESS = """
from splitmix.cli import main
import splitmix.attacks.pgd as attacks

class Endless:
    name, weak = "endless", True

    def __init__(self, **_): pass

    def __call__(self, predict, x, y, rng):
        print("attacking", flush=True)
        while True:
            predict(x)

attacks.PGD = Endless
main(["serve", "--port", "0", "--threads", "2", "--rate", "0"])
"""


@pytest.mark.parametrize("signs", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]], ids=["once", "twice"])
def test_a_stop_gives_up_what_takes_too_long_without_a_word_of_it(signs):
    """One attack runs, which would never end, others wait; whoever sent them is told."""
    with ThreadPoolExecutor(3) as pool, started([sys.executable, "-c", ENDLESS]) as run:
        address = next(word for word in run.stdout.readline().split() if word.startswith("http://"))
        asked = [pool.submit(post, address, pixels=PIXELS, attack=True) for _ in range(3)]
        assert run.stdout.readline() == "attacking\n"
        while "splitmix_predictions_in_progress 3" not in get(address, "/metrics").text:
            assert post(address, pixels=PIXELS).status_code == 200  # it counts how many are under way
        for sign in signs:
            run.send_signal(sign)
            with suppress(httpx.TransportError):  # until it takes no more questions: it has heard us
                while True:
                    get(address, "/health")
        out, err = run.communicate(timeout=HANGS)
    assert (run.returncode, out, err) == (0, "Stopped.\n", "")
    assert [(each.result().status_code, each.result().json()) for each in asked] == [(503, {"error": STOPPING})] * 3


def test_a_server_leaves_the_logs_of_the_process_it_runs_in_as_they_are(served):
    closed = []
    handler = logging.Handler()
    handler.close = lambda: closed.append(True)
    with serving(served):
        assert not closed
    del handler.close


def test_an_address_that_cannot_be_taken_is_a_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match="in use; give another --port"):
            bind("127.0.0.1", other.getsockname()[1])
    for host, port in (("127.0.0.1", 70_000), ("no.such.host.invalid", 0), ("192.0.2.1", 0)):
        with pytest.raises(UserError, match="give"):
            bind(host, port)


WORDS = ["--rate nan", "--threads 0", "--batch 0", "--allow-host a:80", "--port -1", "/no/such/bundle"]


@pytest.mark.parametrize("words", WORDS)
def test_a_mistake_on_the_command_line_is_a_sentence(words, capsys):
    with pytest.raises(SystemExit) as left:
        main(["serve", *words.split()])
    said = capsys.readouterr().err
    assert (left.value.code, said.startswith("splitmix: "), said.count("\n")) == (2, True, 1)
