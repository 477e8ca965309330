"""Rows of measurements, and the pages made of them: `results/rows/NAME.jsonl`, and `benchmarks/pages/NAME.md.j2`.

python benchmarks/evidence.py [NAME ...]              makes pages anew, from their rows alone
python benchmarks/evidence.py --add NAME FOLDER ...   adds what finished runs, tunings and grids say, as rows

A row is one number with all that is needed to get it again: task, data, method, settings, config hash, seed, split,
norm statistics, width, dial and attack; benchmarks add the machine. A row stays when the run's folder is gone.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from timing import ratio_text

from splitmix.compare.statistics import PairedDifference, clear_lead, mean_and_spread, paired_bootstrap, spread_text
from splitmix.core.files import write_atomically
from splitmix.core.width import parse_width
from splitmix.report.tables import human
from splitmix.runs.config import BEFORE, make_config, read_toml, to_toml
from splitmix.runs.finish import NORM_TEXT
from splitmix.runs.records import read_result

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
DIGITS = 6
Row = dict[str, Any]


def main() -> None:
    match sys.argv[1:]:
        case ["--add", name, *folders]:
            new = [row for folder in map(Path, folders) for row in rows_of(folder)]
            write_rows(name, [*read_rows(name), *({"study": name, **row} for row in new)])
        case names:
            for name in names or page_names():
                write_page(name)


def path_of(name: str) -> Path:
    return RESULTS / "rows" / f"{name}.jsonl"


def read_rows(name: str) -> list[Row]:
    """The rows of a study; of one that has none yet, none."""
    return [json.loads(line) for line in path_of(name).read_text().splitlines()] if path_of(name).exists() else []


def write_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """All rows of a study; equal ones count once."""
    lines = dict.fromkeys(json.dumps(rounded(row)) for row in rows)
    write_atomically(path_of(name), ("\n".join(lines) + "\n").encode())


def publish(name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Store what a benchmark measured, with the machine it ran on if the row does not name it, and make its page."""
    write_rows(name, ({**row, "machine": row.get("machine") or machine()} for row in rows))
    return write_page(name)


def rows_of(folder: Path) -> Iterator[Row]:
    """What a finished run, its grids, or a tuning says."""
    if (folder / "tuning.json").exists():
        yield from trials_of(json.loads((folder / "tuning.json").read_text()))
        return
    result, config = read_result(folder), make_config(read_toml(folder / "config.toml"), own=("task", "net"))
    about = {
        "task": result["task"],
        "data": result["data"],
        "command": result["command"],
        "method": result["method"],
        "settings": differing(config.model_dump(mode="json")),
        **{key: result[key] for key in ("rounds", "seed", "best_round", "order")},
        "lr": config.lr,
        "config": config.digest(),
        "weights": result["weights_sha256"],
        "clients": len(result["clients"]),
    }
    for score in result["scores"]:
        given = {key: value for key, value in score.items() if key not in ("accuracy", "clients")}
        yield {
            **about,
            "robust": 0.0,
            "attack": None,
            **given,
            "value": score["accuracy"],
            "by_client": score["clients"],
        }
    for file in sorted(folder.glob("grid*.json")):
        grid = json.loads(file.read_text())
        shared = {key: grid[key] for key in ("clients", "samples", "images", "split", "norm", "attack", "interval")}
        yield from ({**about, "part": file.stem, **shared, **row} for row in grid["rows"])


def trials_of(tuning: Mapping[str, Any]) -> Iterator[Row]:
    about = {key: tuning[key] for key in ("task", "command", "settings", "rounds")}
    for trial in tuning["trials"]:
        found = {key: trial[key] for key in ("method", "lr", "seed", "config", "widths", "seconds")}
        best = {"best_round": trial["round"] - 1, "value": trial["accuracy"]}
        yield {**about, "part": "trial", "split": "val", "robust": 0.0, **found, **best}


def differing(settings: Mapping[str, Any]) -> Row:
    """Settings that are not the defaults of the task, or, of norms, of the objective."""
    usual = make_config({"task": settings["task"]}).model_dump(mode="json")
    usual["norm"] = make_config({key: settings[key] for key in ("task", "objective")}, own=("task",)).norm
    return {key: value for key, value in settings.items() if key not in ("task", "seed") and value != usual[key]}


# --- pages ---------------------------------------------------------------------------------------------------------


def page_names() -> list[str]:
    return sorted(path.name.removesuffix(".md.j2") for path in (HERE / "pages").glob("*.md.j2"))


def page(name: str) -> str:
    """A page as its template makes it of its rows."""
    import charts  # both draw rows, and so import this module
    import tradeoff

    environment = Environment(
        loader=FileSystemLoader(HERE / "pages"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown of our own rows
    )
    environment.globals.update(where=where, values=values, distinct=distinct, spread=spread, mean=fmean, lead=lead)
    environment.globals.update(
        beyond_chance=lambda one, other: clear_lead(one, other) or clear_lead(other, one),
        clear_lead=clear_lead,
        by_width=by_width,
        by_order=by_order,
        by_seed=by_seed,
        common_seeds=common_seeds,
        difference=difference,
        one_lever_apart=one_lever_apart,
        turned=turned,
        beside=beside,
        human=human,
        toml=toml,
        norms=NORM_TEXT,
        kinds=tradeoff.NAMES,
        half_widths=lambda rows, what: [row[f"{what}_high"] - row[what] for row in rows],
        averaged=tradeoff.averaged,
        gaps=tradeoff.gaps,
        covered=tradeoff.covered,
        verdict=tradeoff.verdict,
        wrong_steps=tradeoff.wrong_steps,
        ratio=ratio_text,
        power=charts.fitted,
        sizes=charts.GROWS,
    )
    environment.filters.update(
        add1=lambda value: value + 1,
        zip=zip,
        pct=lambda value: f"{100 * value:.1f}",
        points=lambda value: f"{100 * value:+.1f}",
    )
    text = environment.get_template(f"{name}.md.j2").render(rows=read_rows(name))
    return text.strip() + "\n"


def write_page(name: str) -> str:
    text = page(name)
    write_atomically(RESULTS / f"{name}.md", text.encode())
    return text


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have all these values; a value may be a list of such."""
    return [
        row
        for row in rows
        if all(row.get(k) in v if isinstance(v, list | tuple) else row.get(k) == v for k, v in wanted.items())
    ]


def values(rows: Iterable[Row], key: str = "value", **wanted: Any) -> list[Any]:
    return [row[key] for row in where(rows, **wanted)]


def distinct(rows: Iterable[Row], key: str, **wanted: Any) -> list[Any]:
    """The different values of a key, in their order."""
    return list({json.dumps(value): value for value in values(rows, key, **wanted)}.values())


def by_width(rows: Iterable[Row]) -> list[str]:
    return sorted({row["width"] for row in rows}, key=parse_width)


def by_order(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by the order of their runs' budgets, those in order first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        budgets = row["settings"].get("budgets")
        order = budgets.get("order", "in order") if isinstance(budgets, Mapping) else "in order"
        found.setdefault(order, []).append(row)
    return dict(sorted(found.items()))


def by_seed(rows: Iterable[Row], **wanted: Any) -> list[float]:
    """The mean value of each seed."""
    some = where(rows, **wanted)
    return [fmean(values(some, seed=seed)) for seed in distinct(some, "seed")]


def spread(found: Sequence[float]) -> str:
    """Mean and standard deviation in per cent.

    >>> spread([0.5, 0.52]), spread([0.5])
    ('51.0 ± 1.4', '50.0')
    """
    return spread_text(mean_and_spread(found))


def common_seeds(rows: Iterable[Row], *parts: str) -> list[int]:
    """The seeds that all these parts have."""
    some = list(rows)
    return sorted(set.intersection(*(set(values(some, "seed", part=part)) for part in parts)))


def difference(rows: Iterable[Row], one: str, other: str, width: str, norm: str = "client") -> str:
    """How many points one part has more than another at a width, with the interval of a paired bootstrap."""
    some = where(rows, width=width, norm=norm)
    seeds = common_seeds(some, one, other)
    if not seeds:
        return "-"
    first, second = (
        {seed: values(some, "by_client", part=part, seed=seed)[0] for seed in seeds} for part in (one, other)
    )
    return difference_text(paired_bootstrap(first, second))


def one_lever_apart(names: Iterable[str], recommended: str) -> dict[str, str]:
    """The models that have one lever more or less than the recommended one, by that step.

    >>> one_lever_apart(["Net", "Net, late", "Net, fast", "Net, fast, late", "Net, wide"], "Net, fast")
    {'without fast': 'Net', 'with late': 'Net, fast, late'}
    """
    title, *levers = recommended.split(", ")
    found = {}
    for name in names:
        other, *own = name.split(", ")
        changed = set(own) ^ set(levers)
        if other == title and len(changed) == 1:
            found[f"{'with' if len(own) > len(levers) else 'without'} {changed.pop()}"] = name
    return found


def difference_text(found: PairedDifference) -> str:
    """A difference with its interval; bold where it is beyond chance."""
    text = f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def turned(rows: Iterable[Row], width: str, what: str) -> str:
    """What a turn of the dial from 0 to 1 changes, by client and seed."""
    rows = list(rows)
    return beside(where(rows, width=width, robust=1.0), where(rows, width=width, robust=0.0), what)


def beside(some: Iterable[Row], others: Iterable[Row], what: str) -> str:
    """How far one model is from another, as text."""
    return difference_text(paired(some, others, what))


def paired(some: Iterable[Row], others: Iterable[Row], what: str) -> PairedDifference:
    """How far one model is from another, by client and those seeds that both have, in two grids of the same images."""
    one, other = ({row["seed"]: row[f"{what}_clients"] for row in rows} for rows in (some, others))
    seeds = sorted(one.keys() & other.keys())
    return paired_bootstrap(*({seed: found[seed] for seed in seeds} for found in (one, other)))


def lead(one: Sequence[float], other: Sequence[float]) -> float:
    return fmean(one) - fmean(other)


def toml(row: Row) -> str:
    """The settings of a row as TOML; keys that came later and change nothing are left out."""
    config = make_config({"task": row["task"], **row["settings"], "seed": row["seed"]})
    later = {key for key, value in BEFORE.items() if getattr(config, key) == value}
    return "\n".join(line for line in to_toml(config).splitlines() if line.partition(" = ")[0] not in later)


# --- numbers and machines ------------------------------------------------------------------------------------------


def rounded(value: Any) -> Any:
    """The same with floats of six digits after the point."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def machine() -> dict[str, str]:
    """What a time was measured on."""
    import torch

    from splitmix.runtime.probe import processor_name

    return {
        "processor": processor_name() or platform.machine(),
        "load": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def in_turns(
    ways: Mapping[str, Callable[[], object]], clock: Callable[[], float], turns: int
) -> dict[str, list[float]]:
    """The seconds of each way in each turn, all ways in turns; two more turns at the start only warm up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 2):
        for name, way in ways.items():
            began = clock()
            way()
            if turn >= 2:
                times[name].append(clock() - began)
    return times


if __name__ == "__main__":
    main()
