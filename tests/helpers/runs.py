"""Runs for the tests: of the stripes, in folders of their own, watched and stopped where they are told to."""

import sys
from importlib.util import find_spec

import pytest

from helpers.small_task import SETTINGS
from splitmix.runs.config import make_config
from splitmix.runs.progress import Watcher
from splitmix.runs.records import read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up

LEVERS = {"name": "splitmix", "fork": 0.5, "draws": "anchored", "mutual": 0.2}
ADAMW = {"optimizer": {"name": "adamw", "beta2": 0.99}, "proximal": 0.1, "lr": 0.01}
VARIANTS = {
    "post": {"norm": "post"},
    "chosen": {"statistics": "chosen"},
    "global": {"statistics": "global", "method": "heterofl"},
    "fitted": {"mix": "fitted", "norm": "tracked"},
    "batch": {"norm": "batch", "order": "validation"},
    "tracked": {"norm": "tracked"},
    "local": {"norm": "local", "cohort": 3},
    "cohort": {"cohort": 2},
    "redrawn": {"budgets": {"name": "groups", "widths": "1/4 1/2 1", "redraw": True}},
    "sparse": {"eval_every": 3, "checkpoint_every": 2},
    "levers": {"method": LEVERS, "server": {"name": "momentum", "beta": 0.5}, "average": 0.5, "cohort": 2},
    "adam, tracked": {"server": "adam", "norm": "tracked", "average": 0.3, "eval_every": 3, **ADAMW},
    "nested": {"method": "heterofl"},
    "nested, tracked": {"method": "sheterofl", "norm": "tracked"},
    "dual": {"objective": {"name": "adversarial", "steps": 2}},
    "dual, post": {"objective": {"name": "adversarial", "steps": 2}, "norm": "post", "norm_rate": 3.0},
    "single": {"objective": {"name": "adversarial", "steps": 2, "dual": False}, "norm": "post"},
}

if find_spec("dp_accounting"):
    VARIANTS["private"] = {"privacy": {"clip": 0.5, "noise": 0.5}, "order": "natural", "cohort": 2}


class Watch(Watcher):
    """Takes notes, and stops the run where it is told to."""

    def __init__(self, event="", number=0):
        self.event, self.number = event, number
        self.notes, self.start = [], None

    def begin(self, setup, start):
        self.start = start

    def round(self, row):
        self._stop("round", row["round"])

    def scores(self, rows):
        self._stop("scores", rows[0]["round"])

    def note(self, text):
        self.notes.append(text)

    def end(self):
        if sys.exception() is None:
            self._stop("end", self.number)

    def _stop(self, event, number):
        if (event, number) == (self.event, self.number):
            raise KeyboardInterrupt


def run(own, path, *, resume=False, workers=1, watch=None, **changed):
    setup = set_up(make_config({"task": own, **SETTINGS, **changed}))
    return run_in_folder(setup, path, resume=resume, workers=workers, watchers=[watch or Watch()])


def stop(own, path, event, number, *, resume=False, **changed):
    with pytest.raises(KeyboardInterrupt):
        run(own, path, resume=resume, watch=Watch(event, number), **changed)


def told(path):
    """A result without what differs from machine to machine."""
    result = read_result(path)
    scores = [{key: value for key, value in row.items() if key != "ms"} for row in result["scores"]]
    return {**{k: v for k, v in result.items() if k not in ("seconds", "workers", "command")}, "scores": scores}


def names(path):
    return sorted(file.name for file in (path / "checkpoints").iterdir())
