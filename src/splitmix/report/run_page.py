"""A run as one page: headline, table, pictures, how it was made, and what the numbers do and do not say.

The page needs nothing but itself: no script, no font, no file beside it. The same files give the same bytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from splitmix.core.files import write_atomically
from splitmix.report import figures
from splitmix.report.attendance import failures, turnout
from splitmix.report.drawing import Picture, drawn_pictures, save
from splitmix.report.grid_page import grid_notes, grid_pictures, grid_table, masking_table
from splitmix.report.pages import duration, render, share
from splitmix.report.tables import Table, norm_text, percent, width_table
from splitmix.runs.grid import GridRecord, stored_grids
from splitmix.runs.masking import read_masking
from splitmix.runs.records import MetricRow, Result, domain_names, main_scores, read_config, read_metrics, read_result

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class GridSection:
    """What was measured at other dials and under one attack."""

    heading: str
    table: Table
    notes: list[str]
    pictures: list[Picture]


def write_report(folder: Path) -> Path:
    """Write `report.html` and the main pictures into a finished run's folder, and say where the page is."""
    result, metrics, file = read_result(folder), read_metrics(folder), folder / "report.html"
    pictures = drawn_pictures(_draws(result, metrics))
    grids = [_grid_section(number, grid) for number, grid in enumerate(stored_grids(folder))]
    write_atomically(file, _page(folder, result, metrics, pictures, grids).encode())
    named = {"convergence": "convergence.png", "domains": "by-domain.png", "ra-sa-0": "ra-sa.png"}
    named["by-dial-0"] = "by-dial.png"
    for picture in [*pictures, *(picture for grid in grids for picture in grid.pictures)]:
        if picture.name in named:
            save(picture, folder / named[picture.name])
    return file


def run_headline(result: Result) -> str:
    """The essential sentence of a run."""
    scores = main_scores(result)
    count = _NUMBERS[len(scores)] if len(scores) < len(_NUMBERS) else str(len(scores))
    ends = dict.fromkeys((scores[0]["width"], scores[-1]["width"]))
    reached = {score["width"]: f"{percent(score['accuracy'])} % at {share(score['width'])}" for score in scores}
    widths = "width" if len(scores) == 1 else "widths"
    return f"One training run, {count} {widths}: {' to '.join(reached[width] for width in ends)}."


def _page(
    folder: Path, result: Result, metrics: list[MetricRow], pictures: list[Picture], grids: list[GridSection]
) -> str:
    task, masking = result.get("task", "a task"), read_masking(folder / "masking.json")
    clients, last = result["clients"], main_scores(result)[-1]
    return render(
        "run.html.j2",
        title=f"{task}: a Split-Mix report",
        kind=f"{result.get('method', 'federated')} on {task}",
        headline=run_headline(result),
        result=result,
        kept=result.get("best_round", -1) + 1,
        time=duration(result["seconds"]) if "seconds" in result else "",
        widths=width_table(result),
        pictures=[picture for picture in pictures if picture.name != "domains" or len(domain_names(result)) > 1],
        widest=share(last["width"]),
        pooled=percent(last.get("pooled")),
        last_norm=last.get("norm"),
        images=sum(client.get("test", 0) for client in clients) / max(1, len(clients)),
        norm=norm_text(result),
        grids=grids,
        masking=None if masking is None else masking_table(masking),
        turnout=turnout(metrics),
        failures=failures(metrics),
        config=read_config(folder),
    )


def _grid_section(number: int, grid: GridRecord) -> GridSection:
    """Its pictures have names of their own: a page may have several grids."""
    heading = f"Robustness, {grid['attack']}" if grid["attack"] else "Accuracy by dial"
    pictures = [replace(picture, name=f"{picture.name}-{number}") for picture in drawn_pictures(grid_pictures(grid))]
    return GridSection(heading, grid_table(grid), [*grid_notes(grid)], pictures)


def _draws(result: Result, metrics: list[MetricRow]) -> Iterator[Callable[[], Picture]]:
    """The pictures of a run."""
    yield partial(figures.convergence, metrics, best_round=result.get("best_round"))
    if len(main_scores(result)) > 1:
        yield partial(figures.tradeoff, result)
    yield partial(figures.by_domain, result)
    yield partial(figures.per_client, result)
    yield partial(figures.budgets, result)
