"""Commands that set methods side by side: compare them over seeds, and tune each with the same effort."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from splitmix.cli.options import HERE, Json, Machine, Numbers, Option, Rates, Words, note, say, show_json, show_table
from splitmix.compare.compare import compare as compare_methods
from splitmix.compare.compare import parse_contenders, with_rates
from splitmix.compare.page import comparison_rows
from splitmix.compare.standings import cost_table, overview_table
from splitmix.compare.suite import Workshop
from splitmix.compare.tuning import RATES, RatesToTry, read_rates, tuning_table
from splitmix.compare.tuning import tune as tune_methods
from splitmix.core.errors import UserError
from splitmix.runs.config import make_config, read_settings
from splitmix.runs.progress import terminal_watcher

COMPARED = ("splitmix", "heterofl", "sheterofl", "fedavg")
Source = Annotated[
    str,
    Parameter(
        help="A task (see `splitmix tasks`), a folder of pictures or .npz files, a table, or a config file (.toml)."
    ),
]
SharedOption = Annotated[
    Option,
    Parameter(help="A setting for all methods, as key=value (see `splitmix settings`); may be given several times."),
]


def compare(
    source: Source = "mini",
    /,
    *,
    option: SharedOption = None,
    methods: Words = None,
    seeds: Numbers = None,
    tuned: Path | None = None,
    out: Path | None = None,
    machine: Machine = HERE,
    as_json: Json = False,
) -> None:
    """Run several methods over several seeds under the same budgets, and write one table and page.

    Nothing is run twice: repeat the command after a crash, or with more methods or seeds, and it goes on.

    Examples:

      splitmix compare mini --methods splitmix heterofl fedavg:width=1/8 --seeds 1 2

      splitmix compare digits -o rounds=100 --seeds 1 2 3 --tuned runs/tuned --out runs/digits

      splitmix compare my.toml --methods splitmix fedavg:width=1/2,mode=strict splitmix:lr=0.03 --json

    Parameters
    ----------
    methods
        Names (see `splitmix methods`), each with settings of its own as name:key=value,key=value; lr= is its own rate.
    seeds
        Seeds, each with data, budgets and draws of its own; default: 1 2 3.
    tuned
        Take each method's learning rate from this record of `splitmix tune` (tuning.json or its folder).
    out
        Folder of the comparison; default: a name made of the settings, under runs/.
    as_json
        Print the rows as JSON.
    """
    given = shared_settings(read_settings(source, option or ()), tuned is not None)
    contenders = parse_contenders(methods or COMPARED)
    if tuned is not None:
        contenders = with_rates(contenders, read_rates(tuned, str(given.get("task", "mini"))))
    workshop = make_workshop(machine)
    folder = out or suite_folder("compare", given)
    found, files = compare_methods(given, contenders, checked_seeds(seeds, (1, 2, 3)), folder, workshop)
    if as_json:
        show_json(comparison_rows(found, workshop.command))
        return
    for table in (overview_table(found), cost_table(found)):
        show_table(table)
        say("")
    say(f"Pictures and details: {files.page}; tables: {files.markdown.name}, {files.latex.name}, {files.rows.name}")


def tune(
    source: Source = "mini",
    /,
    *,
    option: SharedOption = None,
    methods: Words = None,
    rates: Rates = None,
    seeds: Numbers = None,
    rounds: int | None = None,
    out: Path | None = None,
    machine: Machine = HERE,
    as_json: Json = False,
) -> None:
    """Try the same learning rates for every method, judged on validation images only, and record them.

    Nothing is run twice: repeat the command after a crash, or with more methods, rates or seeds, and it goes on.

    Examples:

      splitmix tune mini --methods splitmix heterofl --rates 0.03 0.1 0.3

      splitmix tune digits --rounds 30 --seeds 1 2 --out runs/tuned

    Parameters
    ----------
    methods
        Names (see `splitmix methods`), each with settings of its own as name:key=value,key=value.
    rates
        Learning rates; default: 0.01 0.03 0.1 0.3.
    seeds
        Seeds; default: 1.
    rounds
        Rounds of a trial; default: as set for the task.
    out
        Folder of the tuning; default: a name made of the settings, under runs/.
    as_json
        Print the record as JSON.
    """
    given = shared_settings(read_settings(source, option or ()), True)
    if rounds is not None:
        given["rounds"] = rounds
    tried = RatesToTry(parse_contenders(methods or COMPARED), rates or RATES, checked_seeds(seeds, (1,)))
    folder = out or suite_folder("tune", given)
    found = tune_methods(given, tried, folder, make_workshop(machine))
    if as_json:
        show_json(found)
        return
    show_table(tuning_table(found))
    say(f"\nRecord: {folder / 'tuning.json'}; compare with these rates by: splitmix compare ... --tuned {folder}")


def shared_settings(given: Mapping[str, Any], rates: bool) -> dict[str, Any]:
    """What all methods share: methods and seeds are named on the command line, and so may be the rates."""
    return {key: value for key, value in given.items() if key not in ("method", "seed", *(["lr"] if rates else []))}


def make_workshop(machine: Machine) -> Workshop:
    """What many runs share: the machine, the command, and how they tell of themselves."""
    console = Console(stderr=True)
    command = shlex.join(["splitmix", *sys.argv[1:]])
    count, device = machine.processes(), machine.checked_device()
    return Workshop(count, device, machine.data_root, command, watch=lambda: [terminal_watcher(console)], say=note)


def suite_folder(kind: str, given: Mapping[str, Any]) -> Path:
    """A name made of the settings, so that the same command finds its folder again."""
    config = make_config(given)
    return Path("runs") / f"{kind}-{Path(config.task).absolute().name}-{config.digest()[:8]}"


def checked_seeds(seeds: Sequence[int] | None, default: Sequence[int]) -> list[int]:
    """Seeds that can be, each once."""
    bad = [seed for seed in seeds or () if seed < 0]
    if bad:
        raise UserError(f"the seed {bad[0]} is below 0; give whole numbers from 0 on")
    return list(dict.fromkeys(seeds or default))
