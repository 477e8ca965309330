"""A run as one page: headline, table, pictures, who took part, how it was made, and what the numbers do not say.

The page needs nothing but itself: no script, no font, no file beside it. The same files give the same bytes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from splitmix.core.files import write_atomically
from splitmix.report import figures
from splitmix.report.drawing import Picture, drawn_pictures, save
from splitmix.report.grid_page import grid_notes, grid_pictures, grid_table, masking_table
from splitmix.report.pages import duration, render, share
from splitmix.report.tables import Column, Table, human, norm_choice, norm_text, percent, width_table
from splitmix.runs.measure.grid import GridRecord, stored_grids
from splitmix.runs.measure.masking import read_masking
from splitmix.runs.records import (
    AttendanceRow,
    MetricRow,
    Result,
    config_text,
    domain_names,
    main_scores,
    read_metrics,
    read_result,
)

Try = MetricRow | AttendanceRow  # of a round: the one that counted, or one before it
SHOWN = 20  # clients in a table of those who failed
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
        sample=sample_text(result),
        kept=result.get("best_round", -1) + 1,
        time=duration(result["seconds"]) if "seconds" in result else "",
        widths=width_table(result),
        pictures=[picture for picture in pictures if picture.name != "domains" or len(domain_names(result)) > 1],
        widest=share(last["width"]),
        pooled=percent(last.get("pooled")),
        last_norm=last.get("norm"),
        images=sum(client.get("test", 0) for client in clients) / max(1, len(clients)),
        norm=norm_text(result),
        norm_choice=norm_choice(result),
        grids=grids,
        masking=None if masking is None else masking_table(masking),
        turnout=turnout(metrics),
        failures=failures(metrics),
        config=config_text(folder),
    )


def sample_text(result: Result) -> str:
    """What a sample is, what the classes are called, and how features were scaled, as far as the run says."""
    sides = " x ".join(map(str, result.get("image", [])))
    told = [f"{result.get('kind', 'image')} of {sides}"] if sides else []
    if names := result.get("classes"):
        told.append(f"classes {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}")
    if "scaling" in result:
        told.append("each feature standardised by the training rows")
    return "; ".join(told)


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
    yield partial(figures.budgets, result["clients"], domain_names(result))


def rounds(metrics: Iterable[MetricRow]) -> list[MetricRow]:
    """The rows of rounds that tell who was asked; those of older versions do not."""
    return [row for row in metrics if row["kind"] == "round" and "cohort" in row]


def tries(seen: Iterable[MetricRow]) -> list[Try]:
    """Every try of these rounds."""
    found: list[Try] = []
    for row in seen:
        found += [row, *row.get("repeated", [])]
    return found


def summary(metrics: Iterable[MetricRow]) -> str:
    """In a sentence, who failed; nothing if nobody did."""
    seen = rounds(metrics)
    tried = tries(seen)
    counts = {
        "answer did not come": sum(len(one.get("missing", [])) for one in tried),
        "update was rejected": sum(len(one.get("rejected", [])) for one in tried),
        "update was shortened": sum(len(one.get("clipped", [])) for one in seen),
        "round was repeated": sum(len(one.get("repeated", [])) for one in seen),
    }
    told = [_counted(what, count) for what, count in counts.items() if count]
    return f"In {len(seen)} round{'s' * (len(seen) > 1)}, {', '.join(told)}." if told else ""


def turnout(metrics: Iterable[MetricRow]) -> str:
    """In a sentence, how many clients took part at least once, and the bytes each way; nothing if no row tells."""
    seen = rounds(metrics)
    down, up = sum(one.get("bytes_down", 0) for one in seen), sum(one.get("bytes_up", 0) for one in seen)
    if not down:
        return ""
    asked = {client for one in seen for client in one.get("cohort", [])}
    absent = [{client for kind, client, _ in _failed(one) if kind != "clipped"} for one in seen]
    came = {client for one, away in zip(seen, absent, strict=True) for client in {*one.get("cohort", [])} - away}
    return (
        f"In {len(seen)} round{'s' * (len(seen) > 1)}, {len(came)} of the {len(asked)} clients that were asked took "
        f"part. {human(down)}B of tensors went to clients, {human(up)}B came back."
    )


def failures(metrics: Iterable[MetricRow]) -> Table | None:
    """How often each client failed, and why, most often first; None if nobody did."""
    seen = rounds(metrics)
    why: dict[int, Counter[str]] = {}
    totals = {kind: Counter[int]() for kind in ("missing", "rejected", "clipped")}
    for tried in tries(seen):
        for kind, client, reason in _failed(tried):
            totals[kind][client] += 1
            why.setdefault(client, Counter())[reason] += 1
    if not why:
        return None
    asked = Counter(client for one in seen for client in one.get("cohort", []))
    worst = sorted(why, key=lambda client: (-why[client].total(), client))
    rows = [
        [client, asked[client], *(total[client] for total in totals.values()), _reasons(why[client])]
        for client in worst[:SHOWN]
    ]
    more = f" {len(worst) - SHOWN} more clients failed less often." if len(worst) > SHOWN else ""
    keys = ("client", "rounds", "missing", "rejected", "shortened")
    columns = [Column(key, "rounds asked" if key == "rounds" else key) for key in keys]
    return Table("Who failed", [*columns, Column("why", "why", number=False)], rows, summary(metrics) + more)


def _failed(tried: Try) -> Iterator[tuple[str, int, str]]:
    yield from (("missing", one["client"], one["reason"]) for one in tried.get("missing", []))
    yield from (("rejected", one["client"], one["kind"]) for one in tried.get("rejected", []))
    yield from (("clipped", client, "too far") for client in tried.get("clipped", []))


def _reasons(found: Mapping[str, int]) -> str:
    return ", ".join(f"{reason[:60]} ({count})" if count > 1 else reason[:60] for reason, count in found.items())


def _counted(what: str, count: int) -> str:
    """
    >>> _counted("round was repeated", 1), _counted("answer did not come", 2), _counted("round was repeated", 2)
    ('1 round was repeated', '2 answers did not come', '2 rounds were repeated')
    """
    noun, verb, rest = what.split(" ", 2)
    return f"{count} {what}" if count == 1 else f"{count} {noun}s {verb.replace('was', 'were')} {rest}"
