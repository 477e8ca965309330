"""The report: one page and one Markdown file with every exhibit, the paper's values beside ours, and verdicts in words.

Every number is made of the rows in `rows.jsonl`; `report.json` has what is shown, for programs.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.report.drawing import save
from splitmix.report.pages import duration, render
from splitmix.report.tables import Table
from splitmix_paper.claims import WORDS
from splitmix_paper.exhibit import AS_LISTED, Change, Evidence
from splitmix_paper.exhibits import EXHIBITS, in_order_of_the_paper
from splitmix_paper.rows import SECONDS, Rows
from splitmix_paper.runs import Store, jobs_of
from splitmix_paper.shown import SIGNS, Shown
from splitmix_paper.studies import SCALES

SCHEMA = 2
REPORT, FIGURES = "report.json", "figures"
NOTES = (
    "Accuracy is a mean over clients, each on its own test images; the norm layers use the statistics of the test "
    "batch, as in the paper, unless said otherwise.",
    "In brackets: 95 % of a paired bootstrap over clients and seeds. A claim holds if zero is left out on its side, "
    "and is within noise if not. With one seed only clients are resampled: another training may differ by more.",
    "Not testable: values of single clients are not known and there are fewer than three seeds, or the runs are too "
    "short to say anything. What is counted (parameters, MACs, layers) has no noise.",
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
    """Read all that is known at a scale, and write what it says."""
    check_older(out / REPORT)
    store = Store(out)
    jobs_of(EXHIBITS.values(), scale, store, change)  # what finished runs tell is known from here on
    store.rows.write()
    shown = read_shown(scale, store.rows, change, root)
    files = Written(out / "report.html", out / "report.md", out / REPORT, headline(scale, shown))
    write_atomically(files.rows, (json.dumps(as_json(scale, shown), indent=1, ensure_ascii=False) + "\n").encode())
    write_atomically(files.markdown, markdown(scale, shown).encode())
    write_atomically(files.page, html(scale, shown).encode())
    for one in shown:
        for picture in one.pictures if one.exhibit.shareable else ():
            save(picture, out / FIGURES / f"{picture.name}.svg")
    return files


def check_older(file: Path) -> None:
    """Earlier versions kept numbers in the report alone: it must not be lost."""
    try:
        older = json.loads(file.read_bytes())["schema"] != SCHEMA
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        older = True
    if older:
        raise UserError(f"'{file}' was written by another version, which may have kept numbers there; move it away")


def read_shown(scale: str, rows: Rows, change: Change = AS_LISTED, root: Path | None = None) -> list[Shown]:
    """Every exhibit with all that is known of it, in the order of the paper."""
    return [Shown(Evidence(exhibit, scale, rows, change, root)) for exhibit in in_order_of_the_paper()]


def headline(scale: str, shown: Sequence[Shown]) -> str:
    """What it all comes to, in a sentence."""
    if scale == "smoke":
        done = sum(one.evidence.complete for one in shown)
        return f"{done} of {len(shown)} entries pass; the numbers of this scale mean nothing."
    holds, fails, noise, untestable = (sum(one.count(word) for one in shown) for word in WORDS)
    if not (total := holds + fails + noise + untestable):
        return "Nothing has been run yet."
    are = "is" if noise == 1 else "are"
    return f"{holds} of {total} claims hold, {fails} do not, {noise} {are} within noise, {untestable} cannot be tested."


def as_json(scale: str, shown: Sequence[Shown]) -> dict[str, Any]:
    """All that a program may want to know."""
    return {"schema": SCHEMA, "scale": scale, "entries": [_entry_json(one) for one in shown]}


def _entry_json(one: Shown) -> dict[str, Any]:
    exhibit, evidence = one.exhibit, one.evidence
    rows = []
    for cell in one.cells:
        printed = exhibit.printed.get(cell.place)
        gap = None if printed is None else cell.mean - printed
        seeds = {str(seed): value for seed, value in cell.values.items()}
        named = {"series": cell.place.heading, "key": cell.place.key, "seeds": seeds}
        rows.append({**named, "mean": cell.mean, "paper": printed, "difference": gap})
    return {
        "name": one.name,
        "place": exhibit.place,
        "title": exhibit.title,
        "state": evidence.state,
        "unit": exhibit.unit,
        "reduced": exhibit.reduced(evidence.scale),
        "substitutes": evidence.substitutes,
        "rows": rows,
        "claims": [
            {"claim": claim.text, "ours": mine.word, "evidence": mine.evidence, "why": mine.why, "paper": theirs.word}
            for claim, mine, theirs in one.verdicts
        ],
        "runs": [
            {"label": need.label, "seed": seed, "config": config.digest()}
            for need, seed, config in evidence.wanted
            if config.digest() in evidence.known
        ],
        "seconds": round(sum(evidence.seconds), 1),
        **({"attack": one.attack} if one.attack else {}),
    }


def markdown(scale: str, shown: Sequence[Shown]) -> str:
    """For a repository, with pictures in files beside it."""
    told = _told(scale, shown)
    return render("report.md.j2", "splitmix_paper", shown=shown, untitled=_untitled, **told)


def html(scale: str, shown: Sequence[Shown]) -> str:
    """One page that needs nothing else."""
    kind = f"Every table and figure of the paper, at the scale {scale}: {SCALES[scale]}"
    page = {"title": "Split-Mix: the paper's evidence", "kind": kind, "facts": [*_facts(shown)], "signs": SIGNS}
    return render("report.html.j2", "splitmix_paper", shown=shown, **page, **_told(scale, shown))


def _told(scale: str, shown: Sequence[Shown]) -> dict[str, object]:
    about = f"{SCALES[scale][0].upper()}{SCALES[scale][1:]}"
    return {"scale": scale, "about": about, "headline": headline(scale, shown), "notes": NOTES}


def _untitled(table: Table) -> str:
    """A table below a heading needs no title of its own."""
    return table.to_markdown().partition("\n\n")[2]


def _facts(shown: Sequence[Shown]) -> Iterator[tuple[str, object, str]]:
    yield "", f"{sum(one.evidence.complete for one in shown)} of {len(shown)}", "entries are done"
    known = {digest: measured for one in shown for digest, (_, measured) in one.evidence.known.items()}
    yield "", len(known), "runs"
    times = [row.value for measured in known.values() if (row := measured.find(SECONDS)) is not None]
    if len(times) == len(known):
        yield "trained in", duration(sum(times)), ""
