"""The report: one page and one Markdown file with every entry, the paper's values beside ours, and a verdict in words.

Every number is read from the folders of the runs; `report.json` has them for programs, and for the next report: a run
whose folder is gone by then is known by its numbers there.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.data.tasks import task_about
from splitmix.report.drawing import NothingToDrawError, Picture, save
from splitmix.report.grid_page import WEAK
from splitmix.report.pages import described, duration, framed, page, section
from splitmix_paper.catalogue import in_order_of_the_paper
from splitmix_paper.claims import FAILS, HOLDS, OPEN
from splitmix_paper.found import Found
from splitmix_paper.memory import SCHEMA
from splitmix_paper.needs import AS_LISTED, REPORT, Change, Store
from splitmix_paper.pictures import pictures_of
from splitmix_paper.queue import spent
from splitmix_paper.studies import SCALES
from splitmix_paper.views import SIGNS, View, cost_table, entry_table, seeds_of, verdict_table

Pictures = Mapping[str, Sequence[Picture]]  # by entry
FIGURES = "figures"  # where those of the Markdown file are
NOTES = (
    "Accuracy is a mean over clients, each on its own test images; the norm layers use the statistics of the test "
    "batch, as in the paper, unless said otherwise.",
    "A difference below half a point counts as none. With one seed a difference below a point or two may be chance.",
    "Each run kept the weights of its best validation round; test images were scored once, at the end.",
)


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    markdown: Path
    rows: Path
    headline: str


def write_report(scale: str, out: Path, root: Path | None = None, change: Change = AS_LISTED) -> Written:
    """Read all that has been run at a scale, and write what it says."""
    store = Store(out)
    views = read_views(scale, store, change)
    if lost := {*store.reported} - {view.name for view in views if not view.found.lost}:
        raise UserError(
            f"'{out / REPORT}' has numbers of {', '.join(sorted(lost))} that this report would not have (of another "
            "scale, other seeds or older settings), and the folders of these runs are gone; move it away, or give "
            "another --out"
        )
    files = Written(out / "report.html", out / "report.md", out / REPORT, headline(views))
    pictures = {view.name: [*_drawn(view, root)] for view in views}
    write_atomically(files.rows, (json.dumps(as_json(scale, views), indent=1, ensure_ascii=False) + "\n").encode())
    write_atomically(files.markdown, ("\n".join(markdown(scale, views, pictures)) + "\n").encode())
    write_atomically(files.page, html(scale, views, pictures).encode())
    for picture in (picture for view in views for picture in _shared(view, pictures)):
        save(picture, out / FIGURES / f"{picture.name}.svg")
    return files


def _drawn(view: View, root: Path | None) -> Iterator[Picture]:
    """Each picture for which there is enough to draw."""
    for draw in pictures_of(view.found, view.rows, root) if view.found.begun else ():
        with suppress(NothingToDrawError):
            yield draw()


def _shared(view: View, pictures: Pictures) -> Sequence[Picture]:
    """Those that may stand in a repository: others hold images of the data."""
    return pictures[view.name] if view.found.entry.shown != "samples" else ()


def read_views(scale: str, store: Store, change: Change = AS_LISTED) -> list[View]:
    """Every entry with all that is known of it, in the order of the paper."""
    return [View(Found(entry, scale, store, change)) for entry in in_order_of_the_paper()]


def headline(views: Sequence[View]) -> str:
    """What it all comes to, in a sentence."""
    if views[0].found.scale == "smoke":
        done = sum(view.found.complete for view in views)
        return f"{done} of {len(views)} entries pass; the numbers of this scale mean nothing."
    holds, fails, close = (sum(view.count(word) for view in views) for word in (HOLDS, FAILS, OPEN))
    if not holds + fails + close:
        return "Nothing has been run yet."
    told = [f"{holds} of {holds + fails + close} claims hold", f"{fails} do not"]
    told += [f"{close} {'is' if close == 1 else 'are'} too close to call"] if close else []
    return ", ".join(told) + "."


def as_json(scale: str, views: Sequence[View]) -> dict[str, Any]:
    """All that a program may want to know."""
    return {"schema": SCHEMA, "scale": scale, "entries": [_entry_json(view) for view in views]}


def _entry_json(view: View) -> dict[str, Any]:
    entry, scale = view.found.entry, view.found.scale
    return {
        "name": entry.name,
        "place": entry.place,
        "title": entry.title,
        "state": view.state,
        "unit": entry.unit,
        "reduced": entry.reduced(scale),
        "substitutes": view.found.substitutes,
        "rows": [
            {
                "series": row.series,
                "key": row.key,
                "seeds": {str(seed): value for seed, value in row.values.items()},
                "mean": row.mean,
                "paper": row.printed,
                "difference": row.difference,
            }
            for row in view.rows
        ],
        "claims": [
            {"claim": claim.text, "ours": mine.word, "evidence": mine.evidence, "paper": theirs.word}
            for claim, mine, theirs in view.verdicts
        ],
        "runs": [*_runs(view)],
        "seconds": seconds(view),
        **({"attack": told} if (told := attack(view)) else {}),
    }


def _runs(view: View) -> Iterator[Mapping[str, Any]]:
    """All runs whose numbers are known; those without a folder as the last report has them."""
    for job in view.found.known:
        if job.done:
            known = {"folder": job.folder.name, "config": job.config.digest()}
            yield {"label": job.label, "seed": job.config.seed, **known}
    if view.found.memory:
        yield from (run for run in view.found.memory["runs"] if run["config"] in view.found.remembered)


def html(scale: str, views: Sequence[View], pictures: Pictures) -> str:
    """The page; sample images are part of it, so it may show images that it holds itself."""
    made = page(
        title="Split-Mix: the paper's evidence",
        kind=f"Every table and figure of the paper, at the scale {scale}: {SCALES[scale]}",
        headline=headline(views),
        facts=_facts(views),
        sections=[
            section("Overview", _contents(views)),
            *(f'<div id="{view.name}">{_section(view, pictures[view.name])}</div>\n' for view in views),
        ],
    )
    made = made.replace("default-src 'none'; style-src", "default-src 'none'; img-src data:; style-src", 1)
    return made.replace("</style>", f"{_CSS}</style>", 1)


_CSS = """
:root { --good: #0a6b4f; --bad: #a8430a }
@media (prefers-color-scheme: dark) { :root { --good: #6fd3b0; --bad: #f0a070 } }
.good { color: var(--good) }
.bad { color: var(--bad) }
.contents td { white-space: normal }
.contents td:nth-child(3) { white-space: nowrap }
.claims td, .claims th { white-space: normal; vertical-align: top }
.claims td:nth-child(2) { min-width: 10.5em }
.numbers th[scope="row"] { min-width: 9em; white-space: normal }
.numbers td, .numbers thead th { padding-inline: .45rem }
.cards, dl, .note + .scroll, .numbers + .scroll { margin-top: 1.1rem }
.claims td:last-child { color: var(--grey); font-size: .88rem }
h2 small { color: var(--grey); font-weight: 400; margin-left: .6em }
a { color: var(--accent) }
.cards:has(figure:only-of-type) { max-width: 720px; columns: 1 }
.waiting { color: var(--grey) }
"""


def _facts(views: Sequence[View]) -> Iterator[str]:
    done = sum(view.found.complete for view in views)
    yield f"<b>{done}</b> of <b>{len(views)}</b> entries are done"
    jobs = {job.config.digest(): job for view in views for job in view.found.known}
    yield f"<b>{len(jobs)}</b> runs"
    if not any(view.found.remembered for view in views):
        yield f"trained in <b>{duration(spent(jobs.values()))}</b>"


def _contents(views: Sequence[View]) -> str:
    lines = [
        f'<tr><th scope="row"><a href="#{view.name}">{escape(view.found.entry.place)}</a></th>'
        f"<td>{escape(view.found.entry.title)}</td><td>{escape(view.state)}</td><td>{escape(view.verdict)}</td></tr>"
        for view in views
    ]
    head = "<tr><th>in the paper</th><th>what it shows</th><th>runs</th><th>its claims here</th></tr>"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in NOTES)
    table = f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll contents">{table}</div>{notes}\n'


def _section(view: View, pictures: Sequence[Picture]) -> str:
    entry = view.found.entry
    title = f"{entry.place}: {entry.title}"
    if not view.found.begun:
        told = f'<p class="waiting">Not run yet. Run it with: <code>{escape(command(view))}</code></p>'
        return section(title, told)
    content = []
    if view.verdicts:
        content.append(f'<div class="claims">{_coloured(_bare(verdict_table(view)))}</div>')
    if view.rows:
        content.append(f'<div class="numbers">{framed(entry_table(view))}</div>')
    if (costs := cost_table(view)) is not None:
        content.append(framed(costs))
    if pictures:
        figures = "".join(f"<figure>{picture.svg()}</figure>\n" for picture in pictures)
        content.append(f'<div class="cards">\n{figures}</div>\n')
    elif entry.shown == "samples":
        content.append('<p class="waiting">The data is not at hand; set SPLITMIX_DATA or --data-root.</p>')
    return section(title, *content, described(_origin(view)))


def _bare(table: Any) -> str:
    return framed(table).replace('<p class="note"></p>\n', "<p></p>")


def _coloured(claims: str) -> str:
    """What holds and what does not can be told at a glance."""
    for word, colour in ((HOLDS, "good"), (FAILS, "bad")):
        claims = claims.replace(f"<td>{SIGNS[word]}</td>", f'<td class="{colour}">{SIGNS[word]}</td>')
    return claims


def _origin(view: View) -> Iterator[tuple[str, str]]:
    """All that is needed to make it again, as HTML."""
    yield "Command", f"<code>{escape(command(view))}</code>"
    for name, text in origin(view):
        yield name, escape(text)


def origin(view: View) -> Iterator[tuple[str, str]]:
    """Scale, data, seeds and time, in words."""
    entry, scale = view.found.entry, view.found.scale
    yield "State", view.state
    if reduced := entry.reduced(scale):
        yield "Reduced", "; ".join(reduced)
    if data := [*_data(view), *view.found.substitutes]:
        yield "Data", "; ".join(data)
    if view.found.change.mixed and view.found.jobs:
        yield "Precision", "local training in mixed precision (bfloat16)"
    if told := attack(view):
        yield "Attack", told
    if seeds := seeds_of(view):
        yield "Seeds", ", ".join(map(str, seeds))
        yield "Time", f"{duration(seconds(view))} for the runs, some of which other entries share"
    if gone := len(view.found.remembered):
        yield "Records", f"of {gone} of the {len(view.found.known)} runs only these numbers are left, no curves"


def seconds(view: View) -> float:
    """How long the runs took: what the last report tells of its own, and all others that are here."""
    told = view.found.memory
    known = {run["config"] for run in told["runs"]} if told else set()
    new = spent(job for job in view.found.known if job.config.digest() not in known)
    return round(new + (told["seconds"] if told else 0.0), 1)


def attack(view: View) -> str:
    """What the numbers under attack were measured with, if there are any."""
    if view.found.entry.shown != "dials":
        return ""
    for _, grid in view.found.grids():
        return f"{grid['attack']}, on {grid['samples']:,} test images. {WEAK if grid['weak'] else ''}".strip()
    return view.found.memory.get("attack", "") if view.found.memory else ""


def _data(view: View) -> list[str]:
    if view.found.scale == "smoke":
        return ["a few tiny pictures, made on the spot"] if view.found.jobs else []
    tasks = dict.fromkeys(job.config.task for job in view.found.known)
    return [task_about(task).removesuffix("; needs a data root") for task in tasks]


def command(view: View) -> str:
    return f"splitmix paper run {view.name} --scale {view.found.scale}"


def markdown(scale: str, views: Sequence[View], pictures: Pictures) -> Iterator[str]:
    """The same for a repository, with pictures in files beside it."""
    yield f"# The paper's evidence, at the scale {scale}\n"
    yield f"{SCALES[scale][0].upper()}{SCALES[scale][1:]}. {headline(views)}\n"
    yield from (f"- {note}" for note in NOTES)
    yield "\n| in the paper | what it shows | runs | its claims here |"
    yield "|---|---|---|---|"
    for view in views:
        entry = view.found.entry
        yield f"| {entry.place} | {entry.title} | {view.state} | {view.verdict} |"
    for view in views:
        yield f"\n## {view.found.entry.place}: {view.found.entry.title}\n"
        if not view.found.begun:
            yield f"Not run yet. Run it with: `{command(view)}`"
            continue
        if view.verdicts:
            yield _untitled(verdict_table(view).to_markdown())
        if view.rows:
            yield _untitled(entry_table(view).to_markdown())
        if (costs := cost_table(view)) is not None:
            yield _untitled(costs.to_markdown())
        if view.found.entry.shown == "samples":
            yield "They are images of the data, so they are only on the page that `splitmix paper report` writes.\n"
        yield from (f"![{one.alt}]({FIGURES}/{one.name}.svg)\n" for one in _shared(view, pictures))
        yield f"- Command: `{command(view)}`"
        yield from (f"- {name}: {text}" for name, text in origin(view))


def _untitled(table: str) -> str:
    """A table below a heading needs no title of its own."""
    return table.partition("\n\n")[2]
