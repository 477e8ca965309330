"""The command line: what it prints, and one sentence for each mistake."""

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from splitmix import __version__
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.experiments.config import Config
from splitmix.experiments.folder import RunFolder
from splitmix.experiments.progress import terminal_watcher
from splitmix.experiments.records import read_result
from stripes import SETTINGS, stripes, stripes_folder, stripes_task
from toys import METHOD

pytestmark = pytest.mark.slow  # whole runs and commands

OPTIONS = [word for key, value in SETTINGS.items() for word in ("-o", f"{key}={value}")]
LISTS = ("tasks", "methods", "nets", "budgets", "settings")
COMMANDS = ((), ("train",), ("eval",), ("report",), ("cost",), ("data",), *((name,) for name in LISTS))
COMMANDS += (("data", "list"), ("data", "show"), ("data", "prepare"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with good and bad data, configs and runs."""
    path = tmp_path_factory.mktemp("place")
    x, y = stripes(60, 2)
    stripes_folder(path / "own")
    stripes_folder(path / "nan", x=np.where(x == x.max(), np.nan, x / 255))
    stripes_folder(path / "negative", y=y - 1)
    stripes_folder(path / "far", y=np.where(np.arange(60) == 7, 10**9, y))
    stripes_folder(path / "mixed", x=np.zeros((60, 7, 6, 1), np.uint8))
    stripes_folder(path / "objects", x=np.array([None] * 60))
    stripes_folder(path / "half")
    os.truncate(path / "half" / "south.npz", 700)
    (path / "empty").mkdir()
    (path / "file").write_text("")
    (path / "broken.toml").write_text("rounds = = 3")
    (path / "two.toml").write_text('task = "own"\nrond = 3\nlr = -1\n')
    (path / "lame.py").write_text("def build(width):\n    raise RuntimeError('no net today')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        main(["train", "own", *OPTIONS, "--out", "run", "--workers", "1"])
    for name in ("unfinished", "corrupt"):
        shutil.copytree(path / "run", path / name)
        (path / name / "result.json").unlink()
    for file in (path / "corrupt" / "checkpoints").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    return path


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("SPLITMIX_DATA", raising=False)
    return place


def files(folder):
    """Everything in a folder, and when it was last written."""
    return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in folder.rglob("*") if file.is_file()}


def refused(capsys, *arguments):
    """The one line on standard error that a command answers with."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    assert left.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("splitmix: ")
    assert printed.err.count("\n") == 1
    return printed.err


def told(capsys, *arguments):
    """What a command prints as JSON."""
    capsys.readouterr()
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


# --- mistakes -----------------------------------------------------------------------------------------------------

TRAIN = ("train", "own", *OPTIONS)
MISTAKES = [
    # names
    (("train", "digts"), "did you mean 'digits'?"),
    (("train", "no/such/folder"), "there is no folder 'no/such/folder'"),
    ((*TRAIN, "-o", "method=splitmx"), "did you mean 'splitmix'?"),
    ((*TRAIN, "-o", "method={name='splitmix', colour=3}"), "does not take these settings"),
    ((*TRAIN, "-o", "net=digt"), "did you mean 'digit'?"),
    ((*TRAIN, "-o", "net=nowhere:build"), "cannot import net 'nowhere:build'"),
    ((*TRAIN, "-o", "net=lame:built"), "module 'lame' has no function 'built'"),
    ((*TRAIN, "-o", "net=lame:build"), "no net today"),
    ((*TRAIN, "-o", "rond=3"), "unknown key 'rond'; did you mean 'rounds'?"),
    ((*TRAIN, "-o", "objective=plian"), "did you mean 'plain'?"),
    ((*TRAIN, "-o", "norm=bacth"), "did you mean 'batch'?"),
    ((*TRAIN, "-o", "budgets=exponentail"), "did you mean 'exponential'?"),
    ((*TRAIN, "-o", "partition=iidd"), "did you mean 'iid'?"),
    (("train", "two.toml"), "unknown key 'rond'"),
    (("train", "two.toml"), "lr: input should be greater than 0"),
    (("cost", "digti"), "did you mean 'digit'?"),
    (("budgets", "lognorml"), "did you mean 'lognormal'?"),
    (("data", "prepare", "digist"), "did you mean 'digits'?"),
    (("data", "show", "minni"), "did you mean 'mini'?"),
    (("eval", "run", "--split", "tset"), "did you mean 'test'?"),
    (("eval", "run", "--norm", "tracked"), "choose client, global, batch"),
    (("eval", "run", "--attack", "pgd2"), "did you mean 'pgd20'?"),
    (
        ("eval", "run", "--attack", "{name='pgd20', ep=0.1}"),
        "unknown setting of attack pgd20 'ep'; did you mean 'eps'?",
    ),
    (("eval", "run", "--attack", "pgd20", "--norm", "batch"), "choose --norm client or global"),
    (("eval", "run", "--robust", "0", "0.5"), "the run in 'run' has no robustness dial"),
    (("eval", "run", "--robust", "1.5"), "robustness dial 1.5 is outside [0, 1]"),
    (("eval", "run", "--robust", "-0.5"), "robustness dial -0.5 is outside [0, 1]"),
    (("eval", "run", "--robust", "nan"), "'nan' is not a robustness dial"),
    (("eval", "run", "--images", "3"), "belong to a grid"),
    (("eval", "run", "--attack", "pgd7", "--images", "0"), "--images 0 leaves nothing to score"),
    (("eval", "run", "--masking", "--attack", "autoattack"), "steps are counted of PGD"),
    (("eval", "run", "--masking", "--out", "m.json"), "leave out --out"),
    ((*TRAIN, "-o", "objective={name='adversarial', weigth=1}"), "did you mean 'weight'?"),
    ((*TRAIN, "-o", "objective={name=adversarial}"), "is not TOML; write text in quotes and 0.5 with its zero"),
    ((*TRAIN, "-o", "objective=adversarial", "-o", "norm=post"), "norm 'post' keeps no statistics of attacked images"),
    # words
    (("trian",), 'Did you mean "train"?'),
    (("data", "shwo", "mini"), 'Did you mean "show"?'),
    (("train", "--wrokers", "2"), "Did you mean --workers?"),
    (("train", "mini", "more"), "more"),
    (("eval",), "requires an argument"),
    (("train", "-o"), "requires an argument"),
    (("train", "-o", "rounds"), "write key=value"),
    ((*TRAIN, "--workers", "some"), "--workers"),
    # numbers
    (("cost", "digit", "--width", "3/16"), "not a multiple of the atom 1/8"),
    (("cost", "digit", "--width", "1/16"), "not a multiple of the atom 1/8"),
    (("cost", "digit", "--width", "1/2", "--atom", "1/3"), "not a multiple of the atom 1/3"),
    (("cost", "digit", "--width", "2"), "outside (0, 1]"),
    (("cost", "digit", "--atom", "thin"), "'thin' is not a width"),
    (("cost", "digit", "--image", "28x28"), "'28x28' is not the size of an image"),
    (("cost", "digit", "--image", "0x0x3"), "'0x0x3' is not the size of an image"),
    (("cost", "digit", "--image", "33x33x3"), "cannot be run on images of 33x33x3"),
    (("cost", "lame:build"), "the net 'lame:build' cannot be run: no net today"),
    (("cost", "toys:plain_build"), "give --image"),
    (("eval", "run", "--width", "1/8"), "not a multiple of the atom 1/4"),
    (("eval", "run", "--width", "1", "3/8"), "not a multiple of the atom 1/4"),
    (("eval", "run", "--workers", "0"), "--workers 0 is too few"),
    ((*TRAIN, "-o", "budgets=1/8 1"), "client 0 has a budget of 1/8, below the atom 1/4"),
    ((*TRAIN, "-o", "atom=3/8"), "one over a whole number"),
    ((*TRAIN, "-o", "rounds=-1"), "rounds: "),
    ((*TRAIN, "-o", "lr=nan"), "lr: "),
    ((*TRAIN, "-o", "seed=-1"), "seed: "),
    ((*TRAIN, "--workers", "-1"), "--workers -1 is too few"),
    (("budgets", "exponential", "--clients", "0"), "0 clients is too few"),
    (("budgets", "--out", "b.png"), "name the budgets to draw"),
    # data
    ((*TRAIN, "-o", "clients=61"), "as some would have no data; ask for fewer clients"),
    ((*TRAIN, "-o", "clients=24"), "no client of the task 'own' has 2 validation images"),
    ((*TRAIN, "-o", "clients=1"), "1 clients cannot cover 2 domains"),
    (("train", "nan", *OPTIONS), "south.npz: training data of domain 'south': there are NaN or infinite pixels"),
    (("train", "negative", *OPTIONS), "run from -1 to 1, out of range"),
    (("train", "far", *OPTIONS), "labels in 'far' run up to 1000000000, out of range"),
    (
        ("train", "own", *OPTIONS, "-o", "net=digit"),
        "the net takes images of shape (28, 28, 3), but the task 'own' has",
    ),
    (("train", "own", *OPTIONS, "-o", "net=preresnet18"), "the net takes images of shape"),
    (("train", "mixed", *OPTIONS), "have shape (7, 6, 1), those of 'north' (6, 6, 1)"),
    (("train", "objects", *OPTIONS), "Object arrays cannot be loaded"),
    (("train", "half", *OPTIONS), "cannot read half/south.npz"),
    (("train", "empty", *OPTIONS), "has no .npz file"),
    (("data", "show", "nan"), "NaN or infinite pixels"),
    (("data", "prepare", "half"), "cannot read half/south.npz"),
    (("train", "digits"), "no data root is set; name one by --data-root or the environment variable SPLITMIX_DATA"),
    (("train", "digits", "--data-root", "empty"), "digits/mnist.npz, digits/svhn.npz, digits/usps.npz"),
    (("train", "digits", "--data-root", "empty"), "each file is an .npz with x_train, y_train, x_test, y_test"),
    (("train", "cifar10", "--data-root", "empty"), "data is missing under empty"),
    (("data", "prepare", "digits", "--data-root", "nowhere"), "data is missing under nowhere"),
    (("train", "digits", "-o", "clients=7"), "give a multiple of 5"),
    # files
    (("train", "nowhere.toml"), "there is no config file 'nowhere.toml'"),
    (("train", "broken.toml"), "the config file 'broken.toml' cannot be read"),
    ((*TRAIN, "--out", "file"), "cannot write to the output folder 'file'"),
    ((*TRAIN, "--out", "file/run"), "cannot write to the output folder 'file/run'"),
    ((*TRAIN, "--out", "run"), "'run' already holds a run; go on with --resume or choose another --out"),
    ((*TRAIN, "--out", "run", "--resume", "-o", "lr=0.3"), "lr = 0.1 (now 0.3)"),
    ((*TRAIN, "--out", "corrupt", "--resume"), "no checkpoint in 'corrupt/checkpoints' can be used"),
    (("eval", "own"), "'own' holds no finished run"),
    (("eval", "nowhere"), "'nowhere' holds no finished run"),
    (("eval", "unfinished"), "'unfinished' holds no finished run"),
    (("report", "own"), "'own' is not a run's folder"),
    (("report", "unfinished"), "is not finished"),
    (("data", "show", "own", "--out", "file/own.png"), "cannot be written"),
    (("budgets", "full", "--out", "file/b.png"), "file"),
    (("budgets", "full", "--out", "b.jpeg"), "choose a name that ends in .png, .svg or .pdf"),
    # machines
    ((*TRAIN, "--device", "gpu"), "unknown device 'gpu'"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=map(str, range(len(MISTAKES))))
def test_a_mistake_is_one_sentence_and_nothing_is_written(here, capsys, arguments, words):
    before = files(here)
    assert words in refused(capsys, *arguments)
    assert files(here) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(here, capsys):
    assert "sees no GPU here; use --device cpu" in refused(capsys, *TRAIN, "--device", "cuda")


def test_a_folder_in_use_is_one_sentence(here, capsys, tmp_path):
    with RunFolder(tmp_path).held():
        assert "is in use by another run" in refused(capsys, *TRAIN, "--out", str(tmp_path))
        assert "is in use by another run" in refused(capsys, *TRAIN, "--out", str(tmp_path), "--resume")
    assert not (tmp_path / "config.toml").exists()


def test_a_bad_checkpoint_is_spoken_of_and_the_one_before_is_used(here, capsys, tmp_path):
    shutil.copytree("unfinished", tmp_path / "run")
    (newest,) = (tmp_path / "run" / "checkpoints").glob("*4.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    main([*TRAIN, "--out", str(tmp_path / "run"), "--resume", "--workers", "1"])
    assert "checkpoint round-000004 is not used: its bytes do not match their hash" in capsys.readouterr().err
    assert read_result(tmp_path / "run")["weights_sha256"] == read_result(Path("run"))["weights_sha256"]


# --- what is printed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_an_example(capsys, command):
    main([*command, "--help"])
    printed = capsys.readouterr().out
    assert f"splitmix {' '.join(command)}".strip() in printed.split("Usage:")[-1].split("\n", 1)[1]


def test_every_command_is_listed_in_the_help(capsys):
    main(["--help"])
    printed = capsys.readouterr().out
    assert all(command[0] in printed for command in COMMANDS if command)


@pytest.mark.parametrize("command", [*LISTS, "data"])
def test_lists_come_as_tables_and_as_json(capsys, command):
    words = [command, "list"] if command == "data" else [command]
    main(words)
    table = capsys.readouterr().out
    rows = told(capsys, *words)
    assert rows
    assert all(str(next(iter(row.values()))) in table for row in rows)


def test_the_settings_are_all_listed(capsys):
    rows = told(capsys, "settings")
    assert [row["key"] for row in rows] == ["recipe", *Config.model_fields]
    assert all(row["about"] for row in rows)


def test_costs_come_as_json(capsys):
    rows = told(capsys, "cost", "digit", "--width", "1/8", "1")
    assert [(row["width"], row["bases"], row["parameters"]) for row in rows] == [("1/8", 1, 224194), ("1", 8, 1793552)]
    assert all(row["macs"] > 0 for row in rows)


def test_costs_of_ones_own_net_need_the_size_of_an_image(here, capsys):
    (row,) = told(capsys, "cost", "toys:plain_build", "--image", "6x6x1", "--width", "1/2")
    assert (row["bases"], row["parameters"]) == (4, 4 * (9 + 1 + 2 + 16 * 3 + 3))


def test_budgets_are_counted_and_drawn(here, capsys, tmp_path):
    (row,) = told(capsys, "budgets", "1/8 1", "--clients", "4", "--out", str(tmp_path / "b.svg"))
    assert row["clients"] == "2 x 1/8, 2 x 1"
    assert (tmp_path / "b.svg").read_text().lstrip().startswith("<?xml")


def test_data_is_shown_and_prepared(here, capsys, tmp_path):
    rows = told(capsys, "data", "show", "own", "--out", str(tmp_path / "own.png"))
    assert [(row["domain"], row["clients"]) for row in rows] == [("north", 4), ("south", 4)]
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    assert told(capsys, "data", "prepare", "own") == rows
    main(["data", "show", "own", "--out", str(tmp_path / "again.png")])
    assert f"Contact sheet: {tmp_path / 'again.png'}" in capsys.readouterr().out


def test_a_run_is_scored_again_at_any_width(here, capsys):
    result = read_result(Path("run"))
    rows = told(capsys, "eval", "run", "--width", "1/4", "3/4", "--workers", "1")
    known = {row["width"]: row["accuracy"] for row in result["scores"] if row["norm"] == "client"}
    assert {row["width"]: row["accuracy"] for row in rows} == {width: known[width] for width in ("1/4", "3/4")}
    main(["eval", "run", "--split", "val", "--norm", "batch", "--workers", "1"])
    printed = capsys.readouterr().out
    assert "batch statistics in the norms, val images" in " ".join(printed.split())
    assert "north" in printed


def test_a_run_is_attacked_and_the_grid_is_kept(here, capsys, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree("run", folder)
    asked = ("eval", str(folder), "--width", "1/4", "1", "--images", "3", "--workers", "1")
    main([*asked, "--attack", "fgsm"])
    printed, warned = capsys.readouterr()
    grid = json.loads((folder / "grid.json").read_text())
    assert (grid["attack"], grid["weak"], len(grid["rows"])) == ("L-inf FGSM, eps 8/255", True, 2)
    assert "L-inf FGSM, eps 8/255" in " ".join(printed.split())
    assert "warning: Only a weak attack was run" in warned
    assert "answers of clients: 4/4" in warned
    assert "L-inf FGSM, eps 8/255" in (folder / "report.html").read_text()
    assert told(capsys, *asked, "--robust", "0", "--out", str(folder / "grid-clean.json"))["attack"] is None


def test_a_finished_run_prints_its_result_again(here, capsys):
    before = read_result(Path("run"))
    assert told(capsys, *TRAIN, "--out", "run", "--resume") == before
    main(["report", "run"])
    printed = capsys.readouterr().out
    assert "accuracy %" in printed
    assert "run/report.html" in printed


def test_a_run_finds_its_own_place(here, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(here / "own", tmp_path / "[bold]own")
    result = told(capsys, "train", "[bold]own", *OPTIONS, "-o", "rounds=1", "--workers", "1")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("[bold]own-splitmix-s1-")
    assert read_result(folder)["weights_sha256"] == result["weights_sha256"]
    main(["eval", f"runs/{folder.name}", "--workers", "1"])
    assert f"Accuracy of runs/{folder.name}" in " ".join(capsys.readouterr().out.split())


# --- progress -----------------------------------------------------------------------------------------------------


class Setup:
    """As much of a set-up as progress looks at."""

    config = Config(rounds=4)
    task = stripes_task(name="[red]stripes")

    method = METHOD


SCORES = [{"width": "1/4", "accuracy": 0.5, "round": 1}, {"width": "1", "accuracy": 0.75, "round": 1}]


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


# --- real processes -----------------------------------------------------------------------------------------------


def process(*arguments, **settings):
    """Run the real command, where every warning is an error."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "error", "-m", "splitmix", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, **settings)


def test_a_mistake_ends_a_process_with_2_and_no_traceback(here):
    ended = process("train", "own", "-o", "net=digit")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("splitmix: the net takes images of shape")
    assert ended.stderr.count("\n") == 1


def test_the_installed_command_tells_its_version():
    command = Path(sys.executable).with_name("splitmix")
    assert subprocess.run([command, "--version"], capture_output=True, text=True).stdout == f"{__version__}\n"


@pytest.mark.slow
def test_a_process_trains_to_the_same_bytes_and_says_so_plainly(here, tmp_path):
    ended = process(*TRAIN, "--out", str(tmp_path / "run"), "--workers", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["weights_sha256"] == read_result(Path("run"))["weights_sha256"]
    assert [line.split("  ")[0] for line in ended.stderr.splitlines()[1:]] == [f"round {n}/4" for n in (1, 2, 3, 4)]
    assert "\x1b" not in ended.stderr
    assert json.loads(ended.stdout)["command"].startswith("splitmix train own -o net=toys:Tiny")


# --- a full disk --------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder / "run"
    finally:
        subprocess.run(["umount", folder], check=True)


def enlarge(disk):
    subprocess.run(["mount", "-o", "remount,size=50m", "tmpfs", disk.parent], check=True)


def test_metrics_never_hold_half_a_line(tmp_path):
    with small_disk(tmp_path / "disk", "8k") as path:
        path.mkdir()
        folder = RunFolder(path)
        with pytest.raises(UserError, match="No space left on device; free some space and use --resume"):
            [folder.append_metric({"row": i}) for i in range(9999)]
        rows = [json.loads(line)["row"] for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert rows == list(range(len(rows)))
        enlarge(path)
        folder.append_metric({"row": "next"})
        assert (path / "metrics.jsonl").read_text().endswith('\n{"row": "next"}\n')


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [4, 16, 32, 48, 96])
def test_a_run_on_a_full_disk_goes_on_when_there_is_room(here, capsys, tmp_path, kilobytes):
    with small_disk(tmp_path / "disk", f"{kilobytes}k") as run:
        with pytest.raises(SystemExit) as left:
            main([*TRAIN, "--out", str(run), "--workers", "1"])
        assert left.value.code == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("splitmix: ")
        assert "disk is full" in last or "No space left" in last
        enlarge(run)
        main([*TRAIN, "--out", str(run), "--workers", "1", "--resume"])
        assert read_result(run)["weights_sha256"] == read_result(Path("run"))["weights_sha256"]
        assert [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert not list(run.rglob("*.tmp"))


@pytest.mark.slow
def test_a_process_on_a_full_disk_ends_with_one_sentence(here, tmp_path):
    with small_disk(tmp_path / "disk", "2m") as run:
        run.parent.joinpath("filler").write_bytes(bytes(2_000_000))
        ended = process(*TRAIN, "--out", str(run), "--workers", "2")
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr
        assert [line for line in ended.stderr.splitlines() if line.startswith("splitmix: ")] == [
            ended.stderr.splitlines()[-1]
        ]
        enlarge(run)
        main([*TRAIN, "--out", str(run), "--workers", "2", "--resume"])
        assert read_result(run)["weights_sha256"] == read_result(Path("run"))["weights_sha256"]


def test_a_full_disk_is_told_wherever_it_happens(tmp_path):
    with small_disk(tmp_path / "disk", "4k") as run, pytest.raises(UserError, match="the disk is full"):
        write_atomically(run / "much", bytes(9000))
