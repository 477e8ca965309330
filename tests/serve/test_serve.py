"""The server over a real socket: right answers at any dial, plans, many at once, and the command that starts it."""

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
from base64 import b64decode

import httpx
import numpy as np
import pytest
import torch

from helpers.bundles import random_bundle
from helpers.serving import PICTURES, PIXELS, png, post, send_file, serving
from splitmix.core.errors import UserError
from splitmix.runtime.bundle import file_name, packaged
from splitmix.runtime.images import picture_from_file
from splitmix.runtime.model import Model
from splitmix.serve.server import bind

pytestmark = pytest.mark.slow  # a real server on a real socket


@pytest.fixture(scope="module")
def bundle(served):
    return served


@pytest.fixture(scope="module")
def model(bundle):
    return Model.load(bundle)


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
    shown = picture_from_file(b64decode(hit["picture"]), (28, 28, 3), most=10_000)
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
