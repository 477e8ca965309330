"""A net at which nodes wait, until a test lets them go on: what it does to them meanwhile hits them at work."""

import json
import os
from pathlib import Path
from time import sleep

from helpers.toys import Tiny

MARK = "SPLITMIX_TEST"  # a variable that all processes have which come of a test: the folder where it takes place


def close_gate(place: Path, run: str, rounds: int) -> None:
    """From now on nobody gets a net for this run once it has so many rounds; none: anybody does."""
    (place / "next-gate").write_text(f"{run} {rounds}")
    (place / "next-gate").rename(place / "gate")


def open_gate(place: Path) -> None:
    (place / "gate").unlink()


def rounds_of(run: Path) -> int:
    """How many rounds a run has had: this only grows."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]  # without one that is being written
    except FileNotFoundError:
        return 0
    return sum(json.loads(line)["kind"] == "round" for line in lines)


def gated(width):
    """A tiny net, as soon as the gate is open."""
    place = Path(os.environ[MARK])
    while is_closed(place):
        sleep(0.05)
    return Tiny(width)


def is_closed(place: Path) -> bool:
    try:
        run, rounds = (place / "gate").read_text().split()
    except FileNotFoundError:
        return False
    return rounds_of(place / run) >= int(rounds)
