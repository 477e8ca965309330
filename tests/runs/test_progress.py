"""How a run is watched: plain lines, a bar on a terminal, and TensorBoard."""

import io

import pytest
from rich.console import Console

from helpers.commands import TRAIN
from helpers.tiny_task import stripes_task
from helpers.toys import METHOD
from splitmix.cli import main
from splitmix.runs.config import Config
from splitmix.runs.progress import terminal_watcher

pytestmark = pytest.mark.slow  # whole runs and commands

SCORES = [{"width": "1/4", "accuracy": 0.5, "round": 1}, {"width": "1", "accuracy": 0.75, "round": 1}]


class Setup:
    """As much of a set-up as progress looks at."""

    config = Config(rounds=4)
    task = stripes_task(name="[red]stripes")

    method = METHOD


def watched(console):
    watcher = terminal_watcher(console)
    watcher.note("checkpoint [red] is not used")
    watcher.begin(Setup, 0)
    watcher.round({"round": 1})
    watcher.scores(SCORES)
    watcher.end()
    return console.file.getvalue()


def test_progress_is_plain_lines_where_there_is_no_terminal():
    note, head, line = watched(Console(file=io.StringIO(), width=40)).splitlines()
    assert note == "checkpoint [red] is not used"
    assert head == "splitmix on [red]stripes: 4 clients, 4 x width 1/4, 4 rounds, seed 1"
    assert line.startswith("round 2/4  val 50.0 % at 1/4, 75.0 % at 1  0 s, 0 s left")


def test_progress_is_a_bar_on_a_terminal():
    shown = watched(Console(file=io.StringIO(), force_terminal=True, width=120))
    for words in ("checkpoint [red] is not used", "[red]stripes", "2/4", "val 50.0 % at 1/4, 75.0 % at 1"):
        assert words in shown


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # TensorBoard's own
def test_a_run_can_be_watched_with_tensorboard(here, tmp_path):
    main([*TRAIN, "--out", str(tmp_path / "run"), "--workers", "1", "--tensorboard", "-o", "rounds=1"])
    assert len(list((tmp_path / "run" / "tensorboard").glob("events*"))) == 1
