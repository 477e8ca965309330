"""A training process is killed at random moments, again and again, and goes on each time as if nothing had been."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from safetensors import safe_open

from helpers.tiny_task import SETTINGS, stripes_folder
from helpers.toys import within
from splitmix.runs.records import read_result

ROUNDS, KILLS = 20, 20
OPTIONS = [word for key, value in {**SETTINGS, "rounds": ROUNDS}.items() for word in ("-o", f"{key}={value}")]
TRAIN = ["train", "own", *OPTIONS]

# Has all imports done, then runs each command it is told in a process of its own: a fork takes no time to start.
DRIVER = """
import json, os, signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests in the background ignores it
torch.set_num_threads(1)
from splitmix.cli import main

def run(arguments):
    sys.stdout = sys.stderr = open("log.txt", "a", buffering=1)
    try:
        main(arguments)
    except SystemExit as left:
        return left.code
    return 0

main(json.loads(sys.stdin.readline()))
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.setsid()
        os._exit(run(json.loads(line)))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Driver:
    """Starts training processes."""

    def __init__(self, place):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-c", DRIVER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd=place, env=environment, text=True, **pipes)
        self.sessions = []
        self.tell([*TRAIN, "--out", "whole"])
        while self.hear() != "ready":
            pass

    def tell(self, arguments):
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, "the driver has ended"
        return line.strip()

    def start(self, out, workers=2):
        self.tell([*TRAIN, "--out", out, "--resume", "--workers", str(workers)])
        self.sessions.append(int(self.hear()))
        return self.sessions[-1]

    def stop(self, number):
        os.kill(self.sessions[-1], number)
        return int(self.hear())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("place")
    stripes_folder(path / "own")
    return path


@pytest.fixture(scope="module")
def driver(place):
    with within(120):
        made = Driver(place)
    yield made
    made.process.kill()
    made.process.communicate()


def whole_files(folder):
    """Check that no file is half written; returns how many there are."""
    read = {
        ".json": lambda file: json.loads(file.read_text()),
        ".toml": lambda file: tomllib.loads(file.read_text()),
        ".safetensors": lambda file: safe_open(file, "pt").keys(),
        ".jsonl": lambda file: [json.loads(line) for line in file.read_text().split("\n")[:-1]],
        ".html": lambda file: file.read_text().rindex("</html>"),
        ".png": lambda file: file.read_bytes().rindex(b"IEND"),
    }
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith((".tmp", ".lock"))]
    for file in files:
        read[file.suffix](file)
        assert file.suffix != ".jsonl" or file.read_text().endswith("\n")
    return len(files)


def alive(session):
    """Processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended just now
            continue
        if int(its) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def gone(session, seconds=5):
    end = time.monotonic() + seconds
    while alive(session) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(session)


# --- moments to kill at: each says whether it has come ------------------------------------------------------------


def lines(folder):
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def begun(folder):
    return lambda: True


def trained(folder, more=1):
    before = lines(folder)
    return lambda: lines(folder) >= before + more


def scored(folder):
    return trained(folder, more=3)


def saving(folder):
    before = {*(folder / "checkpoints").glob(".*.tmp")}
    return lambda: any(file not in before for file in (folder / "checkpoints").glob(".*.tmp"))


def tensors_without_manifest(folder):
    def come():
        names = [file.name for file in (folder / "checkpoints").glob("round-*")]
        return any(name.removesuffix(".safetensors") + ".json" not in names for name in names if "safe" in name)

    return come


def rounds_done(folder):
    return lambda: (folder / "checkpoints" / f"round-{ROUNDS:06d}.json").exists()


def model_there(folder):
    return lambda: (folder / "model.safetensors").exists() or any(folder.glob(".model*"))


def result_there(folder):
    return lambda: (folder / "result.json").exists() or any(folder.glob(".re*"))


EARLY = (trained, saving, scored, trained, begun, tensors_without_manifest, scored, saving)  # a round further each
LATE = (rounds_done, rounds_done, model_there, result_there)
PAUSE = {begun: 0.06, trained: 0.06, scored: 0.06, saving: 0.002, tensors_without_manifest: 0.002}  # seconds, at most


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_with_the_same_weights(driver, place):
    draws, run = random.Random(7), place / "killed"
    moments = [*(EARLY[i % len(EARLY)] for i in range(KILLS - len(LATE))), *LATE]
    with within(150):
        for i, moment in enumerate(moments):
            come, process = moment(run), Path(f"/proc/{driver.start('killed')}")
            while not come() and process.exists():
                time.sleep(0.0005)
            time.sleep(draws.uniform(0, PAUSE.get(moment, 0.02)))
            assert driver.stop(signal.SIGKILL) == -signal.SIGKILL
            whole_files(run)
            assert i % 2 or gone(driver.sessions[-1])  # every other time the next one starts at once
        driver.start("killed")
        assert int(driver.hear()) == 0, (place / "log.txt").read_text()
    assert read_result(run)["weights_sha256"] == read_result(place / "whole")["weights_sha256"]
    assert (run / "model.safetensors").read_bytes() == (place / "whole" / "model.safetensors").read_bytes()
    assert whole_files(run) == whole_files(place / "whole")
    assert not list(run.rglob("*.tmp"))
    assert all(gone(session) for session in driver.sessions)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(driver, place):
    with within(60):
        come = trained(place / "interrupted")
        driver.start("interrupted", workers=1)
        while not come():
            time.sleep(0.001)
        assert driver.stop(signal.SIGINT) == 130
    assert (place / "log.txt").read_text().endswith("splitmix: stopped; go on with --resume\n")
    assert gone(driver.sessions[-1])
    driver.start("interrupted")
    assert int(driver.hear()) == 0
    assert read_result(place / "interrupted")["weights_sha256"] == read_result(place / "whole")["weights_sha256"]
