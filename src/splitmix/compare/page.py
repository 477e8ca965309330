"""A comparison for people and programs: one page, the tables as Markdown and LaTeX, the rows as JSON.

Every number is read from the files of the runs: results, metrics, and costs counted from their settings.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from splitmix.compare import figures as compare_figures
from splitmix.compare import maps as compare_maps
from splitmix.compare.standings import (
    GREYED,
    RULE,
    MethodRuns,
    check_alike,
    compared_widths,
    cost_table,
    overview_table,
    standings,
    summary_rows,
    winners,
)
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.report.drawing import Picture, drawn_pictures
from splitmix.report.pages import duration, render, share
from splitmix.report.tables import norm_text, percent
from splitmix.runs.records import config_text


@dataclass(frozen=True)
class Written:
    """The files of a comparison."""

    page: Path
    markdown: Path
    latex: Path
    rows: Path


def write_comparison(folder: Path, entries: Sequence[MethodRuns], *, command: str = "") -> Written:
    """Write `comparison.html`, `table.md`, `table.tex` and `rows.json`, and say where they are."""
    if not entries:
        raise UserError("there are no runs to compare; name some methods")
    check_alike(entries)
    files = Written(*(folder / name for name in ("comparison.html", "table.md", "table.tex", "rows.json")))
    tables = [overview_table(entries), cost_table(entries)]
    write_atomically(files.rows, (json.dumps(comparison_rows(entries, command), indent=1) + "\n").encode())
    write_atomically(files.markdown, "\n".join(table.to_markdown() for table in tables).encode())
    write_atomically(files.latex, "\n".join(table.to_latex() for table in tables).encode())
    write_atomically(files.page, comparison_page(entries, command).encode())
    return files


def comparison_rows(entries: Sequence[MethodRuns], command: str = "") -> dict[str, object]:
    """All that a program may want to know."""
    first = entries[0].runs[0].result
    runs = [
        {"method": e.label, "seed": run.seed, "folder": run.folder.name, "weights": run.result.get("weights_sha256")}
        for e in entries
        for run in e.runs
    ]
    return {
        "schema": 1,
        "command": command,
        "task": first.get("task"),
        "rounds": first.get("rounds"),
        "norm": norm_text(first),
        "rule": RULE,
        "winners": winners(entries),
        "runs": runs,
        "rows": summary_rows(entries),
    }


def comparison_headline(entries: Sequence[MethodRuns]) -> str:
    """Who leads where, in a sentence."""
    if len(entries[0].runs) < 2:
        width = compared_widths(entries)[-1]
        best = next((s for s in standings(entries, width) if not s.over_budget), None)
        told = f" Highest at {share(width)}: {best.label}, {percent(best.mean)} %." if best else ""
        return f"One seed names no winner.{told}"
    led: dict[str, list[str]] = {}
    for width, label in winners(entries).items():
        led.setdefault(label or "", []).append("full width" if width == "1" else width)
    open_at = _listed(led.pop("", []))
    leads = [f"at {_listed(widths)} {label} leads" for label, widths in led.items()]
    if not leads:
        return "No method leads clearly at any width."
    told = "; ".join([*leads, *([f"at {open_at} nobody does clearly"] if open_at else [])])
    return f"A{told[1:]}."


def comparison_page(entries: Sequence[MethodRuns], command: str) -> str:
    """The page, as HTML."""
    first = entries[0].runs[0]
    task = first.result.get("task", "a task")
    budgets = Counter(client["budget"] for client in first.result["clients"])
    seconds = [run.result["seconds"] for entry in entries for run in entry.runs if "seconds" in run.result]
    return render(
        "comparison.html.j2",
        "splitmix.compare",
        title=f"{task}: methods compared",
        kind=f"{len(entries)} methods on {task}",
        headline=comparison_headline(entries),
        entries=entries,
        result=first.result,
        rule=RULE,
        greyed=GREYED if any(entry.over_budget for entry in entries) else "",
        norm=norm_text(first.result),
        time=duration(sum(seconds)) if seconds else "",
        overview=overview_table(entries),
        costs=cost_table(entries),
        pictures=drawn_pictures(_draws(entries)),
        command=command or "-",
        budgets=", ".join(f"{count} clients {width}" for width, count in budgets.items()),
        folder=first.folder.name,
        config=config_text(first.folder),
    )


def _draws(entries: Sequence[MethodRuns]) -> Iterator[Callable[[], Picture]]:
    for price in compare_figures.PRICES:
        yield partial(compare_figures.price_tradeoff, entries, price)
    for by in ("round", "seconds"):
        yield partial(compare_figures.learning_race, entries, by)
    yield partial(compare_maps.client_boxes, entries)
    yield partial(compare_maps.domain_losses, entries)
    yield partial(compare_maps.coverage_map, entries)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
