"""Flower for real: a SuperLink and SuperNodes as processes on this machine, killed, refused and restarted.

All tests share two federations, and the last of them stops these and looks for what is left.
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

from helpers.tiny_task import SETTINGS, stripes_folder
from helpers.toys import to_bytes
from splitmix.core.rounds import federate
from splitmix.engines.replay import Replay
from splitmix.flower.site import flwr, launch, marked, read_site, revive
from splitmix.flower.tls import make_certificates, make_node_key
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.records import read_metrics, read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up

pytestmark = [pytest.mark.slow, pytest.mark.federation]
TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "flower_app"
PATIENCE = 600  # seconds until we give up; a quiet machine needs a tenth
COMMON = {**SETTINGS, "norm": "tracked", "order": "natural", "val_ratio": 0.25}
SIX = {**COMMON, "clients": 6, "rounds": 3, "eval_every": 3, "budgets": ["1/4", "1/2", "3/4", "1"]}
FOUR = {**COMMON, "clients": 4, "rounds": 6, "eval_every": 6, "repeats": 20}  # so that a busy machine ends no run
GUARDED = {**FOUR, "rounds": 2, "eval_every": 2}
BUDGETS = {"plain": ["1/4", "1/2", "3/4", "1"], "secure": ["1/4", "1/2", "1"]}
MARK = "SPLITMIX_TEST"  # a variable that all processes have which come of these tests


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with images, where all processes are started, so that they find the tests' nets; none outlives it."""
    path = tmp_path_factory.mktemp("place")
    stripes_folder(path / "own", rows=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        patch.setenv(MARK, str(path))
        yield path
        for pid in offspring(path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def offspring(place):
    """The processes that came of these tests, whoever started them, and have not ended."""
    return marked(place, variable=MARK)


@pytest.fixture(scope="module")
def plain(place):
    splitmix("flower", "up", "--nodes", "6", "--task", "own", "--state", "plain", "--budgets", *BUDGETS["plain"])
    return place / "plain"


@pytest.fixture(scope="module")
def secure(place):
    splitmix(
        *("flower", "up", "--nodes", "4", "--task", "own", "--state", "secure", "--tls"),
        *("--budgets", *BUDGETS["secure"]),
    )
    return place / "secure"


def splitmix(*words):
    """A command as a user gives it; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "splitmix", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def options(settings):
    return [word for key, value in settings.items() for word in ("-o", f"{key}={json.dumps(value)}")]


def train(state, out, settings, *more, deadline=PATIENCE):
    """`splitmix train --engine flower`, as a user runs it; the nodes know their budgets."""
    given = {key: value for key, value in settings.items() if key != "budgets"}
    command = [sys.executable, "-m", "splitmix", "train", "own", *options(given), "--engine", "flower"]
    command += ["--state", str(state), "--out", out, "--deadline", str(deadline), *more]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(process):
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


def wait_until(come, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not (found := come()):
        assert time.monotonic() < end, f"waited {seconds} s in vain for: {what}"
        time.sleep(0.1)
    return found


def simulated(place, name, settings):
    run_in_folder(set_up(make_config({"task": "own", **settings})), place / name, workers=1)
    return read_result(place / name)


# --- the same bits everywhere -------------------------------------------------------------------------------------


def test_six_processes_learn_to_the_bit_what_the_simulator_learns(place, plain):
    said = finished(train(plain, "six", SIX))
    ours, theirs = read_result(place / "six"), simulated(place, "six-simulated", SIX)
    assert ours["weights_sha256"] == theirs["weights_sha256"], said
    files = [place / name / "model.safetensors" for name in ("six", "six-simulated")]
    assert to_bytes(load(files[0].read_bytes())) == to_bytes(load(files[1].read_bytes()))
    assert ours["clients"] == theirs["clients"]
    assert len({client["budget"] for client in ours["clients"]}) == 4
    assert (place / "six" / "report.html").exists()
    assert read_toml(place / "six" / "config.toml")["clip"] == 5.0  # nodes may be anybody's


def test_ray_learns_to_the_bit_what_the_simulator_learns(place):
    pytest.importorskip("ray", reason='Ray is not installed; pip install "splitmix[ray]"')
    splitmix(
        *("train", "own", *options(SIX), "--engine", "ray", "--workers", "2"),
        *("--out", "six-ray", "--deadline", str(PATIENCE)),
    )
    if not (place / "six-simulated" / "result.json").exists():
        simulated(place, "six-simulated", SIX)
    assert read_result(place / "six-ray")["weights_sha256"] == read_result(place / "six-simulated")["weights_sha256"]


def test_the_example_runs_as_a_flower_app(place, plain):
    app = shutil.copytree(EXAMPLE, place / "example")
    given = 'task="own" clients=6 net="helpers.toys:Tiny" atom="1/4" budgets="1/4 1/2 1" rounds=1 cohort=2 batch=8'
    text = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text + 'net = "digit"\nbatch = 32\n')  # Flower overrides only what is there
    said = flwr(read_site(plain), "run", str(app), "local", "--stream", "--run-config", given)
    assert "round 1: loss" in said
    assert "width 1: " in said


def test_a_mistake_is_one_sentence(place, plain):
    process = train(plain, "wrong", {**SIX, "clients": 5})
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, said
    assert "started as one of 6 clients, but the run has 5" in " ".join(said.split())


# --- who is let in ------------------------------------------------------------------------------------------------


def node_command(site, *security):
    """One more node that says it is client 3."""
    words = ["flower", "node", "--superlink", site.address, "--client", "3", "--clients", "4", "--task", "own"]
    return [sys.executable, "-m", "splitmix", *words, *map(str, security)]


def online(site):
    """The nodes that the SuperLink lets take part."""
    listed = json.loads(flwr(site, "supernode", "list", "local", "--format", "json"))["nodes"]
    return {node["node-id"] for node in listed if node["status"] == "online"}


@pytest.fixture(scope="module")
def intruders(place, secure):
    """Four nodes that must not be let in knock at a federation, which trains meanwhile."""
    site = read_site(secure)
    trusted = ("--root-certificates", site.authority)
    key = make_node_key(place / "revoked")
    number = str(json.loads(flwr(site, "supernode", "register", str(key), "local", "--format", "json"))["node-id"])
    launch(site, "revoked", node_command(site, *trusted, "--key", place / "revoked"))
    wait_until(
        lambda: f"SuperNode ID: {number}" in site.log("revoked").read_text(), "one more node, soon to be revoked"
    )
    flwr(site, "supernode", "unregister", number, "local")
    make_node_key(place / "stranger")
    launch(site, "stranger", node_command(site, *trusted, "--key", place / "stranger"))
    make_certificates(place / "other")
    deceived = ("--root-certificates", place / "other" / "ca.crt", "--key", site.key(3))
    launch(site, "deceived", node_command(site, *deceived))
    launch(site, "open", node_command(site, "--insecure"))
    finished(train(secure, "guarded", GUARDED))
    return online(site)


REFUSALS = {
    "revoked": "SuperNode terminated gracefully",  # it was in, and is turned out
    "stranger": "Failed to activate SuperNode",
    "deceived": "certificate verify failed",
    "open": "Connection attempt failed",
}


@pytest.mark.parametrize("who", REFUSALS)
def test_a_node_that_may_not_take_part_is_refused(place, secure, intruders, who):
    log = read_site(secure).log(who)
    wait_until(lambda: REFUSALS[who] in log.read_text(), f"the refusal of {who}")
    assert "Receiving" not in log.read_text()
    assert len(intruders) == 4  # the SuperLink knows only those who belong to it


def test_the_run_goes_on_meanwhile(place, secure, intruders):
    guarded = json.loads((place / "guarded" / "result.json").read_text())
    assert guarded["weights_sha256"] == simulated(place, "guarded-simulated", GUARDED)["weights_sha256"]
    rows = [json.loads(line) for line in (place / "guarded" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["cohort"] == [0, 1, 2, 3] and not row["missing"] for row in rows if row["kind"] == "round")


# --- kills --------------------------------------------------------------------------------------------------------


class Keeper:
    """Keeps the weights of each round: a run itself keeps two checkpoints."""

    def __init__(self, run):
        self.run, self.kept = run, {}

    def look(self):
        for manifest in (self.run / "checkpoints").glob("round-*.json"):
            round = int(manifest.stem.removeprefix("round-")) - 1
            if round not in self.kept:
                with suppress(OSError):
                    self.kept[round] = load(manifest.with_suffix(".safetensors").read_bytes())
        return self.kept

    def until(self, rounds):
        wait_until(lambda: len(self.look()) >= rounds, f"{rounds} rounds")

    def weights(self, round):
        return {name[8:]: value for name, value in self.kept[round].items() if name.startswith("weights/")}


def serverside(path):
    """The processes of the SuperLink: itself, and what it started."""
    nodes = {node.pid for node in read_site(path).nodes}
    return {pid for pid in marked(path) if os.getpgid(pid) not in nodes}


def kill_node(path, client):
    os.killpg(read_site(path).nodes[client].pid, signal.SIGKILL)


def test_a_run_survives_the_death_of_nodes_and_of_the_server(place, secure):
    keeper, patience = Keeper(place / "killed"), 20
    first = train(secure, "killed", FOUR, deadline=patience)
    keeper.until(1)
    kill_node(secure, 2)
    revive(read_site(secure))
    keeper.until(3)
    kill_node(secure, 1)
    revive(read_site(secure))
    keeper.until(4)
    for pid in serverside(secure):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    first.kill()
    first.communicate()
    revive(read_site(secure))
    second = train(secure, "killed", FOUR, "--resume", deadline=patience)
    keeper.until(6)
    finished(second)
    wait_until(lambda: len(online(read_site(secure))) == 4, "all nodes, back with the SuperLink")

    config = make_config(read_toml(place / "killed" / "config.toml"))
    rows = [row for row in read_metrics(place / "killed") if row["kind"] == "round"]
    assert [row["round"] for row in rows] == list(range(6))
    assert any(row["missing"] for row in rows)
    assert all(row["cohort"] == [0, 1, 2, 3] for row in rows)
    setup, again = set_up(config), {}
    with setup.engine(1) as engine:
        replay, start = Replay.of(engine, rows), setup.fresh_weights()
        federate(
            setup.method, replay, setup.net, start, setup.how, on_round=lambda r: again.update({r.round: r.weights})
        )
    for round in range(6):
        assert to_bytes(keeper.weights(round)) == to_bytes(again[round]), f"round {round}"


# --- the end ------------------------------------------------------------------------------------------------------


def test_after_down_no_process_is_left(place, plain, secure):
    for state, nodes in (("plain", 6), ("secure", 4)):
        rows = json.loads(splitmix("flower", "status", "--state", state, "--json"))
        running = [row["running"] for row in rows]
        assert running == ["yes"] * (1 + nodes)
        splitmix("flower", "down", "--state", state)
    assert offspring(place) == set()
