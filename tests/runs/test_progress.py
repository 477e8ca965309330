"""How a run is watched: plain lines, a bar on a terminal, and TensorBoard."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from helpers.commands import TRAIN
from helpers.runs import run
from helpers.small_task import small_task
from helpers.toys import METHOD, Tiny
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.runs.config import Config
from splitmix.runs.progress import Board, Watcher, terminal_watcher
from splitmix.runs.setup import Setup as RunSetup

SCORES = [{"width": "1/4", "accuracy": 0.5, "round": 1}, {"width": "1", "accuracy": 0.75, "round": 1}]


class Setup:
    """As much of a set-up as progress looks at."""

    config = Config(rounds=4)
    task = small_task(name="[red]stripes")

    method = METHOD
    net = Net(Tiny)


Setup.about = RunSetup.about.fget(Setup)


def watched(watcher, row=None):
    watcher.note("checkpoint [red] is not used")
    watcher.begin(Setup, 0)
    watcher.round(row or {"round": 1})
    watcher.scores(SCORES)
    watcher.end()


def shown(**settings):
    console = Console(file=io.StringIO(), **settings)
    watched(terminal_watcher(console))
    return console.file.getvalue()


def test_progress_is_plain_lines_where_there_is_no_terminal():
    note, head, line = shown(width=40).splitlines()
    assert note == "checkpoint [red] is not used"
    assert head == "splitmix on [red]stripes: 4 clients, 4 x width 1/4, 4 rounds, seed 1"
    assert line.startswith("round 2/4  val 50.0 % at 1/4, 75.0 % at 1  0 s, 0 s left")


def test_progress_is_a_bar_on_a_terminal():
    bar = shown(force_terminal=True, width=120)
    for words in ("checkpoint [red] is not used", "[red]stripes", "2/4", "val 50.0 % at 1/4, 75.0 % at 1"):
        assert words in bar


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # TensorBoard's own
def test_a_run_can_be_watched_with_tensorboard(tmp_path):
    watched(Board(tmp_path), {"round": 1, "loss": 0.5, "lr": 0.1, "seconds": 1.0})
    assert len(list((tmp_path / "tensorboard").glob("events*"))) == 1


@pytest.mark.slow
def test_the_command_lets_tensorboard_watch(here, monkeypatch, capsys):
    def asked(*given, watchers, **more):
        raise UserError(f"watched by {', '.join(type(watcher).__name__ for watcher in watchers)}")

    monkeypatch.setattr("splitmix.cli.run.run_in_folder", asked)
    with pytest.raises(SystemExit):
        main([*TRAIN, "--out", "watched", "--tensorboard"])
    assert "watched by Lines, Board" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_what_clients_and_files_are_called_does_not_steer_the_terminal(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None)
    terminal_watcher(console).note("client 'a\x1b]0;b\x07[red]c'\nis late")
    assert console.file.getvalue() == "client 'a\ufffd]0;b\ufffd[red]c'\nis late\n"


class Counts(Watcher):
    """Counts the answers that it is told of."""

    def __init__(self):
        self.total, self.came, self.over = 0, 0, 0

    def scoring(self, total):
        self.total = total

    def answer(self):
        self.came += 1

    def scored(self):
        self.over += 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"norm": "tracked"}, {"statistics": "chosen", "order": "greedy"}])
def test_scoring_tells_how_many_answers_it_needs(own, settings, tmp_path):
    watcher = Counts()
    run(own, tmp_path / "run", watch=watcher, rounds=1, **settings)
    assert watcher.came == watcher.total > 0
    assert watcher.over == 1


def test_a_bar_counts_down_while_a_run_is_scored():
    watcher = terminal_watcher(Console(file=(file := io.StringIO()), force_terminal=True, width=100))
    watcher.scoring(4)
    watcher.answer()
    watcher.scored()
    assert "scoring" in file.getvalue()


@pytest.mark.slow
def test_a_profile_is_printed_and_kept(here, capsys):
    main([*TRAIN, "--profile", "--out", "timed"])
    kept = json.loads(Path("timed/profile.json").read_text())
    assert kept["seconds"]["forward"] > 0
    assert "backward: gradients" in capsys.readouterr().err
