"""A training process is killed at one moment after another, and goes on each time as if nothing had been."""

import json
import multiprocessing
import os
import signal
import sys
import tomllib

import pytest
from safetensors import safe_open

from helpers.commands import OPTIONS
from helpers.runs import run, told
from splitmix.cli import main

pytestmark = pytest.mark.slow  # whole runs

FORK = multiprocessing.get_context("fork")  # has all imports done
MOMENTS = [  # (what the process is about to do, with which file, for the how manieth time)
    ("open", "config.toml", 1),
    ("open", "metrics.jsonl", 1),
    ("os.rename", "round-000001.safetensors", 1),
    ("os.rename", "round-000002.json", 1),
    ("open", "metrics.jsonl", 4),
    ("os.remove", "round-000001.json", 1),
    ("os.remove", "round-000001.safetensors", 1),
    ("open", "model.safetensors", 1),
    ("os.rename", "result.json", 1),
]


def train(own, out, moment, number, workers, alive):
    """Train in this process, which sends itself a signal when the moment comes, before anything of it is done."""
    event, name, left = moment or ("", "", 0)

    def watch(seen, arguments):
        nonlocal left
        if seen == event and any(name in str(argument) for argument in arguments):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)  # hears of all that is opened, renamed and removed
    if number == signal.SIGKILL:
        run(own, out, resume=True, workers=workers)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts tests in the background ignores it
        sys.stderr = (out.parent / "log.txt").open("w", buffering=1)
        main(["train", own, *OPTIONS, "--out", str(out), "--workers", str(workers)])


def ended(own, out, moment, number, workers, pipes):
    """The exit code of a training process; its pipe is open as long as it, or a worker of it, lives."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=train, args=(own, out, moment, number, workers, theirs))
    process.start()
    theirs.close()
    process.join()
    pipes.append(ours)
    return process.exitcode


def all_gone(pipes):
    """Wait until no process holds the other end of a pipe."""
    for pipe in pipes:
        with pytest.raises(EOFError):
            pipe.recv()


def whole_files(folder):
    """Check that no file is half written; returns how many there are."""
    read = {
        ".json": lambda file: json.loads(file.read_text()),
        ".toml": lambda file: tomllib.loads(file.read_text()),
        ".safetensors": lambda file: safe_open(file, "pt").keys(),
        ".jsonl": lambda file: [json.loads(line) for line in file.read_text().split("\n")[:-1]],
    }
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith((".tmp", ".lock"))]
    for file in files:
        read[file.suffix](file)
        assert file.suffix != ".jsonl" or file.read_text().endswith("\n")
    return len(files)


def test_a_run_killed_again_and_again_ends_with_the_same_weights(own, whole, tmp_path):
    expected, folder, pipes = told(whole()), tmp_path / "run", []  # the whole run first: all imports are then done
    for i, moment in enumerate(MOMENTS):  # the next one starts at once, while workers may still be there
        assert ended(own, folder, moment, signal.SIGKILL, 1 + i % 2, pipes) == -signal.SIGKILL, moment
        whole_files(folder)
    run(own, folder, resume=True)
    all_gone(pipes)
    assert told(folder) == expected
    assert (folder / "model.safetensors").read_bytes() == (whole() / "model.safetensors").read_bytes()
    assert whole_files(folder) >= whole_files(whole())  # old checkpoints may be left
    assert not list(folder.rglob("*.tmp"))


def test_an_interrupted_run_says_how_to_go_on(own, whole, tmp_path):
    folder, pipes = tmp_path / "run", []
    assert ended(own, folder, ("open", "metrics.jsonl", 7), signal.SIGINT, 2, pipes) == 130
    all_gone(pipes)
    assert (tmp_path / "log.txt").read_text().endswith("splitmix: stopped; go on with --resume\n")
    run(own, folder, resume=True)
    assert told(folder) == told(whole())
