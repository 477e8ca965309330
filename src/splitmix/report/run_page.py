"""A run as one page: headline, table, pictures, how it was made, and what the numbers do and do not say.

The page needs nothing but itself: no script, no font, no file beside it. The same files give the same bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path

from splitmix.core.files import write_atomically
from splitmix.report import figures
from splitmix.report.attendance import attendance_sections
from splitmix.report.grid_page import grid_notes, grid_pictures, grid_table, masking_table
from splitmix.report.pages import cards, described, duration, folded, framed, page, section, share
from splitmix.report.tables import norm_text, percent, plain, width_table
from splitmix.runs.grid import GridRecord, stored_grids
from splitmix.runs.masking import MaskingRecord, read_masking
from splitmix.runs.records import MetricRow, Result, domain_names, main_scores, read_config, read_metrics, read_result

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def write_report(folder: Path) -> Path:
    """Write `report.html` and the two main pictures into a finished run's folder, and say where the page is."""
    result, metrics = read_result(folder), read_metrics(folder)
    grids, masking = stored_grids(folder), read_masking(folder / "masking.json")
    file = folder / "report.html"
    write_atomically(file, _page(result, metrics, read_config(folder), [*_robustness(grids, masking)]).encode())
    with suppress(figures.NothingToDrawError):
        figures.save(figures.convergence(metrics, best_round=result.get("best_round")), folder / "convergence.png")
    with suppress(figures.NothingToDrawError):
        figures.save(figures.by_domain(result), folder / "by-domain.png")
    for draw in (draw for grid in grids[:1] for draw in grid_pictures(grid)):
        with suppress(figures.NothingToDrawError):
            figures.save(picture := draw(), folder / f"{picture.name}.png")
    return file


def headline(result: Result) -> str:
    """The essential sentence of a run."""
    scores = main_scores(result)
    count = _NUMBERS[len(scores)] if len(scores) < len(_NUMBERS) else str(len(scores))
    ends = dict.fromkeys((scores[0]["width"], scores[-1]["width"]))
    reached = {score["width"]: f"{percent(score['accuracy'])} % at {share(score['width'])}" for score in scores}
    widths = "width" if len(scores) == 1 else "widths"
    return f"One training run, {count} {widths}: {' to '.join(reached[width] for width in ends)}."


def _page(result: Result, metrics: list[MetricRow], config: str, robustness: Sequence[str]) -> str:
    task = result.get("task", "a task")
    return page(
        title=f"{task}: a Split-Mix report",
        kind=f"{result.get('method', 'federated')} on {task}",
        headline=headline(result),
        facts=_facts(result),
        sections=[
            section("What each width reaches and costs", framed(width_table(result), strong_third=True)),
            section("How it learned, and where it is good", cards(_draws(result, metrics), _notes(result))),
            *robustness,
            *attendance_sections(metrics),
            section("How it was made", described(_origin(result)), folded("config.toml", config)),
        ],
    )


def _robustness(grids: Sequence[GridRecord], masking: MaskingRecord | None) -> Iterator[str]:
    """What was measured at other dials and under attack, if it was."""
    for number, grid in enumerate(grids):
        name = f"Robustness, {grid['attack']}" if grid["attack"] else "Accuracy by dial"
        draws = (partial(_apart, draw, number) for draw in grid_pictures(grid))
        yield section(name, framed(grid_table(grid)), cards(draws, grid_notes(grid)))
    if masking is not None:
        yield section("Are gradients hidden?", framed(masking_table(masking)))


def _apart(draw: Callable[[], figures.Picture], number: int) -> figures.Picture:
    """A picture under a name of its own: a page may have several grids."""
    picture = draw()
    return replace(picture, name=f"{picture.name}-{number}")


def _facts(result: Result) -> Iterator[str]:
    """A line of key numbers under the headline."""
    yield f"<b>{len(result['clients'])}</b> clients"
    yield f"<b>{escape(plain(result.get('rounds')))}</b> rounds"
    if "seconds" in result:
        yield f"trained in <b>{duration(result['seconds'])}</b>"
    yield f"seed <b>{escape(plain(result.get('seed')))}</b>"


def _draws(result: Result, metrics: list[MetricRow]) -> Iterator[Callable[[], figures.Picture]]:
    """The pictures of a run."""
    yield partial(figures.convergence, metrics, best_round=result.get("best_round"))
    if len(main_scores(result)) > 1:
        yield partial(figures.tradeoff, result)
    if len(domain_names(result)) > 1:
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


def _origin(result: Result) -> Iterator[tuple[str, str]]:
    """All that is needed to make the run again, and to know its weights when they are found; as HTML."""
    yield "Command", f"<code>{escape(plain(result.get('command')))}</code>"
    yield from ((name, escape(text)) for name, text in _settings(result))
    yield "SHA-256 of the weights", f"<code>{escape(plain(result.get('weights_sha256')))}</code>"


def _settings(result: Result) -> Iterator[tuple[str, str]]:
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
