"""Commands for one run: train it, score it at any width and dial or under attack, and report it."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from splitmix.attacks import find_attack
from splitmix.cli.flower import RemoteClients, run_folder, train_remotely
from splitmix.cli.options import (
    HERE,
    Flag,
    Json,
    Machine,
    Option,
    Words,
    checked_workers,
    note,
    say,
    show_json,
    show_rows,
    show_table,
)
from splitmix.core.errors import UserError
from splitmix.core.width import parse_dial, parse_width
from splitmix.engines.stopwatch import STEPS, Stopwatch
from splitmix.report.grid_page import WEAK, grid_table, masking_table
from splitmix.report.run_page import summary, write_report
from splitmix.report.tables import NORM_WORDS, Column, percent, width_table
from splitmix.runs.checks import check_attacks
from splitmix.runs.config import parse_override, read_config, read_settings
from splitmix.runs.measure.evaluate import FinishedRun, evaluate_run, open_run
from splitmix.runs.measure.grid import Sweep, measure_grid
from splitmix.runs.measure.masking import check_masking
from splitmix.runs.progress import Board, Countdown, Watcher, terminal_watcher
from splitmix.runs.records import read_metrics, read_result, write_record
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up


def train(
    source: str = "mini",
    /,
    *,
    option: Option = None,
    out: Path | None = None,
    resume: Flag = False,
    machine: Machine = HERE,
    tensorboard: Flag = False,
    profile: Flag = False,
    engine: str = "simulator",
    state: Path = Path(".flower"),
    deadline: float = 600.0,
    as_json: Json = False,
) -> None:
    """Train a model that can be served at any width.

    Examples:

      splitmix train mini

      splitmix train mini -o rounds=12 -o "budgets=1/8 1" --out runs/two

      splitmix train my.toml -o seed=2 --out runs/mine --resume

      splitmix train digits --data-root DATA

      splitmix train pets -o "data={size=64}"

      splitmix train mini --engine flower

    Parameters
    ----------
    source
        A task (see `splitmix tasks`), a folder of pictures or .npz files, a table (CSV, Parquet), or a config file.
    option
        A setting as key=value (see `splitmix settings`); may be given several times.
    out
        Folder of the run; default: a name made of the settings, under runs/.
    resume
        Go on where the run in the folder stopped, or begin it.
    tensorboard
        Log for TensorBoard too.
    profile
        Tell where the time goes, step by step, and keep it in profile.json; for the simulator.
    engine
        Where clients are: simulator (here), flower (a federation, see `splitmix flower`), or ray (Flower's simulation).
    state
        Folder of the federation, from `splitmix flower up` or `splitmix flower link`.
    deadline
        Seconds after which an answer from a federation is late.
    as_json
        Print the result as JSON.
    """
    count, on, root = machine.processes(), machine.checked_device(), machine.data_root
    command = shlex.join(["splitmix", *sys.argv[1:]])
    if profile and engine != "simulator":
        raise UserError(f"--profile times simulated clients, not those of engine '{engine}'; leave it out")
    stopwatch = Stopwatch() if profile else None
    if engine != "simulator":
        where = RemoteClients(engine, state, deadline, count, root)
        folder = train_remotely(where, read_settings(source, option or ()), out, resume=resume, command=command)
    else:
        config = read_config(source, option or ())
        setup = set_up(config, root=root)
        folder = out or run_folder(config)
        watchers: list[Watcher] = [terminal_watcher(), *([Board(folder)] if tensorboard else [])]
        run_in_folder(
            setup,
            folder,
            resume=resume,
            workers=count,
            device=on,
            watchers=watchers,
            command=command,
            stopwatch=stopwatch,
        )
    page = write_report(folder)
    show_run(folder, as_json)
    if stopwatch is not None and any(stopwatch.seconds.values()):
        show_profile(stopwatch)
    if not as_json:
        say(f"Pictures and details: {page}")


def show_profile(stopwatch: Stopwatch) -> None:
    """Where the time went, beside the results."""
    shares, seconds = stopwatch.shares(), stopwatch.seconds
    for step, what in STEPS.items():
        note(f"{100 * shares[step]:5.1f} %  {seconds[step]:8.2f} s  {step}: {what}")


def report(run: Path, /, *, as_json: Json = False) -> None:
    """Write report.html for a finished run and print its table.

    Example: splitmix report runs/two

    Parameters
    ----------
    run
        Folder of a finished run.
    as_json
        Print the result as JSON.
    """
    page = write_report(run)
    show_run(run, as_json)
    if not as_json:
        say(f"Pictures and details: {page}")


def show_run(folder: Path, as_json: bool) -> None:
    """Print what a finished run found."""
    result = read_result(folder)
    if as_json:
        show_json(result)
    else:
        show_table(width_table(result))
        if told := summary(read_metrics(folder)):
            say(told)


def evaluate(
    run: Path,
    /,
    *,
    width: Words = None,
    robust: Words = None,
    attack: str | None = None,
    images: int | None = None,
    masking: Flag = False,
    split: str = "test",
    norm: str | None = None,
    out: Path | None = None,
    workers: int | None = None,
    data_root: Path | None = None,
    as_json: Json = False,
) -> None:
    """Score a finished run at any width on its clients' images.

    With --robust or --attack it measures a grid of widths and robustness dials, and keeps it in grid.json.

    Examples:

      splitmix eval runs/two

      splitmix eval runs/two --width 1/8 3/8 1 --norm batch --json

      splitmix eval runs/dual --robust 0 .2 .5 .8 1 --attack pgd20 --images 20

      splitmix eval runs/dual --attack autoattack --images 2 --out runs/dual/grid-autoattack.json

      splitmix eval runs/dual --masking

    Parameters
    ----------
    run
        Folder of a finished run.
    width
        Widths to score; default: all.
    robust
        Robustness dials from 0 (accurate) to 1 (robust); default for a run with a dial: 0 .2 .5 .8 1.
    attack
        fgsm, pgd7, pgd20, l2-pgd20, autoattack ..., or {name="pgd20", eps="4/255"}; white box, at the dial served.
    images
        At most so many images of each client, drawn once; default: all.
    masking
        Check for hidden gradients by PGD like --attack (default: pgd7), and keep what is found in masking.json.
    split
        Images: train, val or test.
    norm
        Statistics of the norms: batch, client or global; default: as trained.
    out
        File of the grid; default: grid.json in the run's folder.
    workers
        Client processes; default: one per core.
    data_root
        Folder of data sets; default: the variable SPLITMIX_DATA.
    as_json
        Print JSON.
    """
    widths, dials = [parse_width(text) for text in width or ()], [parse_dial(text) for text in robust or ()]
    count = checked_workers(workers)
    if masking or attack or dials:
        chosen = find_attack(parse_override(f"attack={attack}")[1]) if attack else None
        sweep = Sweep(widths, dials, chosen, images)
        opened = open_run(run, split=split, norm=norm, fixed=bool(masking or attack or any(dials)), root=data_root)
        if masking or attack:
            check_attacks(opened.setup.task)
        measure = check_run if masking else measure_run
        measure(opened, sweep, count, out, as_json)
        return
    if images is not None or out is not None:
        raise UserError("--images and --out belong to a grid; ask for one with --robust or --attack")
    rows = evaluate_run(run, widths, split, norm, workers=count, root=data_root)
    show_scores(run, rows, split, as_json)


def measure_run(opened: FinishedRun, sweep: Sweep, workers: int, out: Path | None, as_json: bool) -> None:
    """Measure the grid of a run, keep it, and show it."""
    with Countdown("answers of clients") as left:
        grid = measure_grid(opened, sweep, workers=workers, begin=left.begin, on_answer=left.step)
    path = out or opened.path / "grid.json"
    write_record(path, grid)
    show_json(grid) if as_json else show_table(grid_table(grid))
    if grid["weak"]:
        note(f"warning: {WEAK}", style="yellow")
    page = write_report(opened.path)
    if not as_json:
        say(f"Grid: {path}; pictures: {page}")


def check_run(opened: FinishedRun, sweep: Sweep, workers: int, out: Path | None, as_json: bool) -> None:
    """Check a run for hidden gradients, keep what was found, and show it."""
    if out is not None:
        raise UserError("--masking keeps what it finds in masking.json in the run's folder; leave out --out")
    with Countdown("answers of clients") as left:
        findings = check_masking(opened, sweep, workers=workers, begin=left.begin, on_answer=left.step)
    path = opened.path / "masking.json"
    write_record(path, findings)
    show_json(findings) if as_json else show_table(masking_table(findings))
    page = write_report(opened.path)
    if not as_json:
        say(f"Checks: {path}; page: {page}")


def show_scores(run: Path, rows: Sequence[Mapping[str, Any]], split: str, as_json: bool) -> None:
    """A row per width, with the accuracy in each domain."""
    flat = [{**row, **{f"in {name}": value for name, value in row["domains"].items()}} for row in rows]
    columns = [
        Column("width", "width"),
        Column("bases", "bases"),
        Column("accuracy", "accuracy %", percent),
        Column("pooled", "pooled %", percent),
        *(Column(f"in {name}", f"{name} %", percent) for name in rows[0]["domains"]),
    ]
    norms = NORM_WORDS.get(rows[0]["norm"], rows[0]["norm"])
    caption = (
        f"Accuracy is the mean over clients, each on its own {split} images; pooled: of all these images together. "
        f"Norms use {norms}."
    )
    show_rows(f"Accuracy of {run}", columns, flat if not as_json else rows, as_json, caption)
