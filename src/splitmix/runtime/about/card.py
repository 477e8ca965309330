"""The model card: a bundle's manifest as a page to read, its README.md."""

import re
from collections.abc import Iterable, Iterator, Sequence

from splitmix.core.errors import printable
from splitmix.runtime.manifest import Manifest, ScoreRecord

CARD = "README.md"
MOST_CLASSES = 50  # that are named
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")  # what Markdown takes for marks
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def card(said: Manifest) -> str:
    """What is in a bundle, what each width costs and achieves, where it comes from, and what it is not, in Markdown."""
    dials = "width and robustness are" if said.net.dual else "width is"
    return "\n".join(
        [
            f"# {plain(said.trained.get('task') or said.net.name)}",
            "",
            f"A model whose {dials} set while it runs: {len(said.bases)} bases of the net {plain(said.net.name)}, each "
            f"of width {said.atom}; the first few of them are a narrower model. Made by splitmix.",
            "",
            *_use(said),
            *_widths(said),
            *_dials(said),
            *_origin(said),
            *_limits(said),
        ]
    )


def plain(text: str) -> str:
    """Text of a manifest as text of a page: no mark of it is Markdown, HTML or a terminal's code.

    >>> plain("<b>cat</b> | [dog](x)")
    '&lt;b&gt;cat&lt;/b&gt; \\\\| \\\\[dog\\\\]\\\\(x\\\\)'
    """
    escaped = SPECIAL.sub(r"\\\1", printable(text))
    return re.sub("[&<>]", lambda found: ENTITIES[found[0]], escaped).replace("://", ":&#47;/")


def megabytes(count: int) -> str:
    """So many bytes as megabytes, in three digits however few they are.

    >>> megabytes(1740), megabytes(7_283_456), megabytes(2_345_678_901)
    ('0.00174', '7.28', '2,346')
    """
    return f"{count / 1e6:.3g}" if count < 999_500_000 else f"{count / 1e6:,.0f}"


def _use(said: Manifest) -> Iterator[str]:
    setting = ', width="1/2", robust=0.3' if said.net.dual else ', width="1/2"'
    shape = ", ".join(map(str, ("n", *said.image)))
    yield from ("## Use", "", "```python", "from splitmix import Model", "")
    yield from ('model = Model.load("path/to/this/folder")', f"model.predict(x{setting})", "```", "")
    what = {"image": said.pixels, "tokens": "whole numbers"}.get(said.sample, "plain numbers")
    if said.scaling is not None and said.scaling.columns:
        what += f" of the columns {_listed(said.scaling.columns)}, in this order and as they stand in the table"
    yield f"`x` has the shape ({shape}): {what}."
    yield f"The {len(said.classes)} classes, in the order of the probabilities: {_listed(said.classes)}."
    yield ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_CLASSES
    return ", ".join(map(plain, names[:MOST_CLASSES])) + (f", and {more} more" if more > 0 else "")


def _widths(said: Manifest) -> Iterator[str]:
    rows = {row.width: row for row in said.table.rows if row.robust == 0}
    attacked = any(row.attacked is not None for row in rows.values())
    heads = ("width", "bases", "parameters", "multiplications", "MB", "accuracy, %", *["under attack, %"] * attacked)
    yield from ("## What each width costs and achieves", "")
    yield from _table(heads, (_line(said, width, rows.get(width), attacked) for width in map(str, said.widths)))
    table = said.table
    counted = f"{table.samples:,} samples of the" if table.samples else "the"
    yield f"Measured on {counted} {plain(table.split)} split of {table.clients} clients."
    yield f"Norms: {plain(said.norm_text)}."
    if table.interval:
        yield f"In brackets: {plain(table.interval)}."
    if table.attack:
        weak = "; it is a weak one, and proves little" if table.weak else ""
        yield f"The attack is made anew against each dial: {plain(table.attack)}{weak}."
    yield ""


def _line(said: Manifest, width: str, row: ScoreRecord | None, attacked: bool) -> list[str]:
    cost = next(cost for cost in said.costs if cost.width == width)
    costs = [width, str(cost.bases), f"{cost.parameters:,}", f"{cost.macs:,}", megabytes(cost.bytes)]
    if row is None:
        return [*costs, "-", *["-"] * attacked]
    found = _share(row.clean, row.clean_low, row.clean_high)
    return [*costs, found, *[_share(row.attacked, row.attacked_low, row.attacked_high)] * attacked]


def _dials(said: Manifest) -> Iterator[str]:
    """Every measured dial, where robustness is one."""
    if not said.net.dual:
        return
    robusts = sorted({row.robust for row in said.table.rows})
    by_dial = {(row.width, row.robust): row for row in said.table.rows}
    for title, key in (("Clean accuracy", "clean"), ("Accuracy under attack", "attacked")):
        if all(getattr(row, key) is None for row in said.table.rows):
            continue
        yield from (f"## {title} at each robustness, %", "")
        lines = (
            [width, *(_share(getattr(by_dial.get((width, robust)), key, None)) for robust in robusts)]
            for width in map(str, said.widths)
        )
        yield from _table(("width", *(f"{robust:g}" for robust in robusts)), lines)


def _origin(said: Manifest) -> Iterator[str]:
    yield from ("## Where it comes from", "")
    trained = dict(_counted(name, value) for name, value in said.trained.items())
    known = {**trained, **{f"version of {name}": value for name, value in said.versions.items()}}
    lines = ([plain(name.replace("_", " ")), plain(value)] for name, value in known.items() if value)
    yield from _table(("", ""), lines, right=False)


def _counted(name: str, value: str) -> tuple[str, str]:
    """An entry as people read it: rounds are counted from 0 in files, from 1 in pages."""
    return ("round kept", str(int(value) + 1)) if name == "best_round" and value.isdecimal() else (name, value)


def _limits(said: Manifest) -> Iterator[str]:
    yield from ("## Limits", "")
    elsewhere = "- The accuracies are those of the data named above. Elsewhere they differ"
    if said.graph is not None and not said.graph.norms:
        yield f"{elsewhere}, as only labelled samples tell."
    else:
        yield f"{elsewhere}; `splitmix calibrate` adapts the"
        yield "  norms to samples of the device, and only labelled samples tell how well that went."
    if not said.table.rows:
        yield "- No accuracy was measured."
    elif all(row.attacked is None for row in said.table.rows):
        yield "- It was never measured under attack: take it to be fooled by one."
    else:
        yield "- Accuracy under attack is that under the attack named above; stronger ones leave less."
    if said.storage == "float16":
        yield "- Weights are stored as float16 and served as float32."
    yield "- A probability says which class leads, and not how often such an answer is right."
    yield ""


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], *, right: bool = True) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join(['---:' if right else '---'] * len(heads))}|"
    yield from (f"| {' | '.join(line)} |" for line in lines)
    yield ""


def _share(value: float | None, low: float | None = None, high: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" + ("" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})")
