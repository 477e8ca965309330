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
from splitmix.report.pages import Fact, duration, render, share
from splitmix.report.tables import Table, norm_text, percent, plain, width_table
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
    return render(
        "run.html.j2",
        title=f"{task}: a Split-Mix report",
        kind=f"{result.get('method', 'federated')} on {task}",
        headline=run_headline(result),
        facts=[*_facts(result)],
        widths=width_table(result),
        pictures=[picture for picture in pictures if picture.name != "domains" or len(domain_names(result)) > 1],
        notes=[*_notes(result)],
        grids=grids,
        masking=None if masking is None else masking_table(masking),
        turnout=turnout(metrics),
        failures=failures(metrics),
        command=plain(result.get("command")),
        settings=[*_settings(result)],
        sha256=plain(result.get("weights_sha256")),
        config=read_config(folder),
    )


def _grid_section(number: int, grid: GridRecord) -> GridSection:
    """Its pictures have names of their own: a page may have several grids."""
    heading = f"Robustness, {grid['attack']}" if grid["attack"] else "Accuracy by dial"
    pictures = [replace(picture, name=f"{picture.name}-{number}") for picture in drawn_pictures(grid_pictures(grid))]
    return GridSection(heading, grid_table(grid), [*grid_notes(grid)], pictures)


def _facts(result: Result) -> Iterator[Fact]:
    """A line of key numbers under the headline."""
    yield "", len(result["clients"]), "clients"
    yield "", plain(result.get("rounds")), "rounds"
    if "seconds" in result:
        yield "trained in", duration(result["seconds"]), ""
    yield "seed", plain(result.get("seed")), ""


def _draws(result: Result, metrics: list[MetricRow]) -> Iterator[Callable[[], Picture]]:
    """The pictures of a run."""
    yield partial(figures.convergence, metrics, best_round=result.get("best_round"))
    if len(main_scores(result)) > 1:
        yield partial(figures.tradeoff, result)
    yield partial(figures.by_domain, result)
    yield partial(figures.per_client, result)
    yield partial(figures.budgets, result)


def _notes(result: Result) -> Iterator[str]:
    """What a careful reader should know."""
    last, clients = main_scores(result)[-1], result["clients"]
    note = "Accuracy is a mean over clients: each client counts the same, however many images it has."
    if last.get("pooled") is not None:
        note += f" If each image counts the same, {share(last['width'])} reaches {percent(last['pooled'])} %."
    yield note
    batch = " An answer may then depend on the other images in the batch, and single images may fare worse."
    yield f"The norm layers use {norm_text(result)}." + batch * (last.get("norm") == "batch")
    images = sum(client.get("test", 0) for client in clients)
    if images:
        mean = images / len(clients)
        yield (
            f"A client has {mean:.0f} test images on average, so one image is {100 / mean:.1f} points of its accuracy; "
            "look at groups of clients before single ones."
        )
    if _kept(result):
        judged = ", clean and under the training attack" * (result.get("objective", "plain") not in ("plain", "masked"))
        kept = result["best_round"] + 1
        yield f"The weights of round {kept} were kept, by their accuracy on validation images{judged}."
    yield "This is one run with one seed. Another seed moves every number a little; compare methods over several."
    yield "Milliseconds are those of one image at a time on the computer of this run; parameters and MACs are counted."


def _settings(result: Result) -> Iterator[tuple[str, str]]:
    """All that is needed to make the run again."""
    get = result.get
    yield "Data", plain(get("data"))
    yield "Method", f"{plain(get('method'))}, atom {plain(get('atom'))}; net {plain(get('net'))}"
    yield "Norms", f"{plain(get('norm'))}; the table uses {norm_text(result)}"
    yield "Rounds", plain(get("rounds")) + (f", of which {result['best_round'] + 1} was kept" if _kept(result) else "")
    yield "Seed", plain(get("seed"))
    if "bases" in result:
        yield "Order of bases", f"{plain(get('order'))}: {', '.join(map(str, result['bases']))}"
    if "seconds" in result:
        work = f"workers: {plain(get('workers'))}, threads in each: {plain(get('threads'))}"
        yield "Time", f"{duration(result['seconds'])} ({work})"
    if "versions" in result:
        yield "Versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())


def _kept(result: Result) -> bool:
    return result.get("best_round", -1) >= 0
