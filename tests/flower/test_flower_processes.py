"""Flower for real: a SuperLink and SuperNodes as processes on this machine, killed, refused and restarted.

A plain federation runs the example. All else happens to one that is encrypted; the last test stops it, and looks for
what is left. Whatever is waited for here stays once it has come: lines of logs, rounds of a run.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors.torch import load

pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')

from helpers.flower_gate import MARK, close_gate, open_gate, rounds_of
from helpers.small_task import SETTINGS, small_folder
from helpers.toys import to_bytes
from splitmix.cli.flower import RemoteClients, train_remotely, up
from splitmix.core.errors import UserError
from splitmix.core.rounds import federate
from splitmix.engines.clients import Replay
from splitmix.flower.site import flwr, launch, marked, read_site, revive, stop
from splitmix.flower.tls import make_certificates, make_node_key
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.records import read_metrics, read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up

pytestmark = [pytest.mark.slow, pytest.mark.federation]
TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "flower_app"
HANGS = 1200  # seconds until we give up; a quiet machine needs a twentieth
BUDGETS = ["1/4", "1/2", "3/4", "1"]
COMMON = {**SETTINGS, "norm": "tracked", "order": "natural", "val_ratio": 0.25, "eval_every": 4}
GUARDED = {**COMMON, "rounds": 2, "budgets": BUDGETS}
ON_RAY = {**COMMON, "clients": 2, "rounds": 1, "budgets": ["1/4", "1"]}
KILLED = {
    **COMMON,
    "rounds": 4,
    "net": "helpers.flower_gate:gated",
    "repeats": 40,
}  # so that a busy machine ends no run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with images, where all processes are started, so that they find the tests' nets; none outlives it."""
    path = tmp_path_factory.mktemp("place")
    small_folder(path / "own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        patch.setenv(MARK, str(path))
        yield path
        kill(offspring(path))


@pytest.fixture(scope="module")
def secure(place):
    splitmix("flower", "up", "--nodes", "4", "--task", "own", "--state", "secure", "--tls", "--budgets", *BUDGETS)
    return place / "secure"


def offspring(place):
    """The processes that came of these tests, whoever started them, and have not ended."""
    return marked(place, variable=MARK)


def kill(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def splitmix(*words):
    """A command as a user gives it; what it says."""
    command = [sys.executable, "-m", "splitmix", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train_words(out, settings, *more):
    """The words of `splitmix train`; the nodes know their budgets."""
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={json.dumps(value)}")]
    return ["train", "own", *options, "--out", out, *more]


def on_nodes(settings):
    return {key: value for key, value in settings.items() if key != "budgets"}


def train_here(state, out, settings, *, resume=False, deadline=HANGS):
    """What `splitmix train --engine flower` does, without a process of its own."""
    where = RemoteClients("flower", state, deadline, 1, None)
    train_remotely(where, {"task": "own", **on_nodes(settings)}, Path(out), resume=resume, command="")


def wait_until(come, what):
    end = time.monotonic() + HANGS
    while not come():
        assert time.monotonic() < end, f"waited {HANGS} s in vain for: {what}"
        time.sleep(0.1)


def simulated(place, name, settings):
    run_in_folder(set_up(make_config({"task": "own", **settings})), place / name)
    return read_result(place / name)


def test_ray_learns_to_the_bit_what_the_simulator_learns(place):
    pytest.importorskip("ray", reason='Ray is not installed; pip install "splitmix[ray]"')
    splitmix(*train_words("ray", ON_RAY, "--engine", "ray", "--workers", "1", "--deadline", str(HANGS)))
    theirs = simulated(place, "ray-simulated", ON_RAY)["weights_sha256"]
    assert read_result(place / "ray")["weights_sha256"] == theirs


@pytest.fixture(scope="class")
def plain(place):
    """A small federation without encryption, which is gone before the other begins."""
    up(nodes=2, task="own", state=place / "plain", budgets=["1/4", "1"])
    yield place / "plain"
    stop(place / "plain")
    assert marked(place / "plain") == set()


class TestWithoutEncryption:
    def test_the_example_runs_as_a_flower_app(self, place, plain):
        app = shutil.copytree(EXAMPLE, place / "example")
        given = 'task="own" clients=2 net="helpers.toys:Tiny" atom="1/4" budgets="1/4 1" rounds=1 cohort=2 batch=8'
        text = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(text + 'net = "digit"\nbatch = 32\n')  # Flower overrides what is there
        said = flwr(read_site(plain), "run", str(app), "local", "--stream", "--run-config", given)
        assert "round 1: loss" in said
        assert "width 1: " in said

    def test_a_mistake_is_one_sentence(self, place, plain):
        with pytest.raises(UserError, match="started as one of 2 clients, but the run has 1"):
            train_here(plain, "wrong", {**GUARDED, "clients": 1})


# --- who is let in, and the same bits everywhere ------------------------------------------------------------------


def online(site):
    """The nodes that the SuperLink lets take part."""
    listed = json.loads(flwr(site, "supernode", "list", "local", "--format", "json"))["nodes"]
    return {node["node-id"] for node in listed if node["status"] == "online"}


@pytest.fixture(scope="module")
def intruders(place, secure):
    """Four nodes that must not be let in knock at a federation, which trains meanwhile."""
    from helpers.flower_intruders import LINKS, SuperLink  # here, as it imports all of Flower

    site = read_site(secure)
    make_certificates(place / "other")
    key = make_node_key(place / "revoked")
    make_node_key(place / "stranger")
    number = str(json.loads(flwr(site, "supernode", "register", str(key), "local", "--format", "json"))["node-id"])
    words = ["flower", "node", "--superlink", site.address, "--client", "3", "--clients", "4", "--task", "own"]
    words += ["--root-certificates", str(site.authority), "--key", str(place / "revoked")]
    launch(site, "revoked", [sys.executable, "-m", "splitmix", *words])
    links = {
        "stranger": SuperLink(site.address, site.authority, place / "stranger"),
        "deceived": SuperLink(site.address, place / "other" / "ca.crt", site.key(3)),
        "open": SuperLink(site.address),
    }
    found = LINKS.dump_json(links).decode()
    launch(site, "intruders", [sys.executable, "-m", "helpers.flower_intruders", str(secure), found])
    wait_until(
        lambda: f"SuperNode ID: {number}" in site.log("revoked").read_text(), "one more node, soon to be revoked"
    )
    flwr(site, "supernode", "unregister", number, "local")
    more = ("--engine", "flower", "--state", str(secure), "--deadline", str(HANGS))
    splitmix(*train_words("guarded", on_nodes(GUARDED), *more))
    return online(site)


REFUSALS = {
    "revoked": "SuperNode terminated gracefully",  # it was in, and is turned out
    "stranger": "Failed to activate SuperNode",
    "deceived": "certificate verify failed",
    "open": "Connection attempt failed",
}


def test_nodes_that_may_not_take_part_are_refused(secure, intruders):
    for who, words in REFUSALS.items():
        log = read_site(secure).log(who)
        wait_until(lambda log=log, words=words: log.exists() and words in log.read_text(), f"the refusal of {who}")
        assert "Receiving" not in log.read_text()
    assert len(intruders) == 4  # the SuperLink knows only those who belong to it


def test_meanwhile_processes_learn_to_the_bit_what_the_simulator_learns(place, secure, intruders):
    from splitmix.flower.server import STRANGERS  # here, as it imports all of Flower

    ours, theirs = read_result(place / "guarded"), simulated(place, "simulated", {**STRANGERS, **GUARDED})
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    files = [place / name / "model.safetensors" for name in ("guarded", "simulated")]
    assert to_bytes(load(files[0].read_bytes())) == to_bytes(load(files[1].read_bytes()))
    assert ours["clients"] == theirs["clients"]
    assert [client["budget"] for client in ours["clients"]] == BUDGETS
    rows = [row for row in read_metrics(place / "guarded") if row["kind"] == "round"]
    assert all(row["cohort"] == [0, 1, 2, 3] and not row["missing"] for row in rows)
    assert (place / "guarded" / "report.html").exists()
    told = read_toml(place / "guarded" / "config.toml")
    assert {key: told[key] for key in STRANGERS} == STRANGERS  # nodes may be anybody's


# --- kills --------------------------------------------------------------------------------------------------------


def serverside(path):
    """The processes of the SuperLink: itself, and what it started."""
    nodes = {node.pid for node in read_site(path).nodes}
    return {pid for pid in marked(path) if os.getpgid(pid) not in nodes}


def times_connected(path, client):
    return read_site(path).log(f"node-{client}").read_text().count("SuperNode ID: ")


def test_a_run_survives_the_death_of_nodes_and_of_the_server(place, secure):
    run, patience = place / "killed", 30.0
    close_gate(place, "killed", 1)
    words = train_words("killed", on_nodes(KILLED), "--engine", "flower", "--state", str(secure))
    command = [sys.executable, "-m", "splitmix", *words, "--deadline", str(patience)]
    first = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: rounds_of(run) >= 1, "the first round")
    victims = [client for client in read_metrics(run)[0]["cohort"] if client != 0][:2]
    before = {client: times_connected(secure, client) for client in victims}
    for client in victims:
        os.killpg(read_site(secure).nodes[client].pid, signal.SIGKILL)
    close_gate(place, "killed", 2)
    revive(read_site(secure))
    wait_until(lambda: rounds_of(run) >= 2, "a round without them")
    kill(serverside(secure))
    first.kill()
    first.wait()
    open_gate(place)
    revive(read_site(secure))
    train_here(secure, "killed", KILLED, resume=True, deadline=patience)
    for client in victims:
        wait_until(lambda c=client: times_connected(secure, c) > before[c], f"client {client}, back with the SuperLink")

    rows = [row for row in read_metrics(run) if row["kind"] == "round"]
    assert [row["round"] for row in rows] == list(range(4))
    assert {gone["client"] for gone in rows[1]["missing"]} >= set(victims)
    setup, again = set_up(make_config(read_toml(run / "config.toml"))), {}
    with setup.engine(1) as engine:
        replay, start = Replay.of(engine, rows), setup.fresh_weights()
        federate(
            setup.method, replay, setup.net, start, setup.how, on_round=lambda r: again.update({r.round: r.weights})
        )
    for round in (2, 3):  # a run keeps two checkpoints
        kept = load((run / "checkpoints" / f"round-{round + 1:06d}.safetensors").read_bytes())
        ours = {name[8:]: value for name, value in kept.items() if name.startswith("weights/")}
        assert to_bytes(ours) == to_bytes(again[round]), f"round {round}"


# --- the end ------------------------------------------------------------------------------------------------------


def test_after_down_no_process_is_left(place, secure):
    rows = json.loads(splitmix("flower", "status", "--state", "secure", "--json"))
    assert [row["running"] for row in rows] == ["yes"] * 5
    splitmix("flower", "down", "--state", "secure")
    assert offspring(place) == set()
