"""The frame of our pages: headline, facts, tables, pictures, notes; one file that needs nothing but itself.

No script, no font, no file beside it; dark where the reader likes it dark, and fit for printing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from html import escape

from splitmix.report.drawing import NothingToDrawError, Picture
from splitmix.report.tables import Table


def page(*, title: str, kind: str, headline: str, facts: Iterable[str], sections: Iterable[str]) -> str:
    """A whole page; facts and sections are HTML, the rest is plain text."""
    shown = "".join(f"<li>{fact}</li>" for fact in facts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<header>
<p class="kind">{escape(kind)}</p>
<h1>{escape(headline)}</h1>
<ul class="facts">{shown}</ul>
</header>
{"".join(sections)}</main>
</body>
</html>
"""


def section(heading: str, *content: str) -> str:
    """A part of the page under a heading; the content is HTML."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n{''.join(content)}</section>\n"


def framed(table: Table, *, strong_third: bool = False) -> str:
    """A table that scrolls where it is too wide, with its caption below; the third column may be the main one."""
    kind = "scroll third" if strong_third else "scroll"
    return f"""<div class="{kind}" role="region" aria-label="{escape(table.title)}" tabindex="0">
{replace(table, caption="").to_html()}
</div>
<p class="note">{escape(table.caption)}</p>
"""


def cards(draws: Iterable[Callable[[], Picture]], notes: Iterable[str]) -> str:
    """Each picture for which there is enough to draw, and what a careful reader should know."""
    listed = "".join(f"<li>{escape(note)}</li>\n" for note in notes)
    return f"""<div class="cards">
{"".join(_figures(draws))}<div class="notes">
<h3>What these numbers mean</h3>
<ul>
{listed}</ul>
</div>
</div>
"""


def described(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for; the latter is HTML."""
    return "<dl>\n" + "".join(f"<dt>{escape(name)}</dt><dd>{text}</dd>\n" for name, text in pairs) + "</dl>\n"


def folded(summary: str, text: str, *, opened: bool = True) -> str:
    """Plain text under a line that opens and closes it; nothing if there is no text."""
    if not text.strip():
        return ""
    state = " open" * opened
    return f"<details{state}>\n<summary>{escape(summary)}</summary>\n<pre>{escape(text)}</pre>\n</details>\n"


def share(width: str) -> str:
    """A width in words."""
    return "full width" if width == "1" else f"{width} of the channels"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(123.4), duration(3725), duration(8.25)
    ('2 min 3 s', '1 h 2 min', '8.2 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _figures(draws: Iterable[Callable[[], Picture]]) -> Iterator[str]:
    for draw in draws:
        try:
            yield f"<figure>{draw().svg()}</figure>\n"
        except NothingToDrawError:
            continue


_CSS = """
:root { --paper: #f6f7f9; --card: #fff; --ink: #1b1f24; --grey: #5c6570; --line: #dfe3e8; --accent: #0b5c94 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --card: #1d2228; --ink: #e8ebee; --grey: #a3acb7; --line: #333a43; --accent: #7cc0ee }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100% }
main { max-width: 1120px; margin: 0 auto; padding: 3rem 1.25rem 4rem }
.kind { margin: 0; color: var(--accent); font-weight: 600; overflow-wrap: anywhere }
h1 { margin: .3rem 0 1.2rem; max-width: 24em; font-size: clamp(1.5rem, 4.2vw, 2.3rem); line-height: 1.2;
  letter-spacing: -.015em; text-wrap: balance; overflow-wrap: anywhere }
h2 { margin: 3rem 0 .9rem; font-size: 1.2rem }
h3 { margin: 0 0 .5rem; font-size: 1rem }
.facts { display: flex; flex-wrap: wrap; gap: .3rem 1.8rem; margin: 0; padding: 0; list-style: none;
  color: var(--grey) }
.facts b { color: var(--ink); font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .5rem .8rem; text-align: left; white-space: nowrap }
thead th { color: var(--grey); font-size: .85rem; font-weight: 500; vertical-align: bottom;
  white-space: normal }
tbody tr { border-top: 1px solid var(--line) }
tr > :first-child { position: sticky; left: 0; background: var(--card) }
.third tr > :nth-child(3) { font-weight: 600 }
strong { color: var(--accent) }
.grey > * { color: var(--grey); font-weight: 400; font-style: italic }
.number { text-align: right }
.note, .notes, dt { color: var(--grey) }
.note { margin: .7rem 0 0; max-width: 62rem; font-size: .9rem; overflow-wrap: anywhere }
.cards { columns: 2 460px; column-gap: 1.1rem }
.cards > * { margin: 0 0 1.1rem; break-inside: avoid }
figure { overflow: hidden; padding: .4rem; background: #fff; border: 1px solid var(--line); border-radius: 10px }
svg { display: block; width: 100%; height: auto }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif !important }
.notes { padding: .6rem .8rem; font-size: .95rem }
.notes h3 { color: var(--ink) }
.notes ul { margin: 0; padding-left: 1.1rem }
.notes li { margin: .45rem 0; overflow-wrap: anywhere }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .45rem 1.5rem; margin: 0 }
dd { margin: 0; overflow-wrap: anywhere }
details { margin-top: 1.4rem }
summary { color: var(--grey); cursor: pointer }
code, pre { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .88rem }
pre { overflow-x: auto; margin: .6rem 0 0; padding: .9rem 1.1rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; line-height: 1.5 }
@media (max-width: 520px) {
  main { padding: 1.6rem .9rem 3rem }
  h2 { margin-top: 2.2rem }
  th, td { padding: .45rem .55rem }
  figure { padding: 0 }
  dl { grid-template-columns: 1fr; gap: 0 }
  dd { margin-bottom: .7rem }
}
@media print {
  :root { --paper: #fff; --card: #fff; --ink: #000; --grey: #444; --line: #ccc; --accent: #000 }
  main { max-width: none; padding: 0 }
  .scroll, pre { overflow: visible; border: 0; white-space: pre-wrap }
  .cards { columns: 2 }
  figure, tr, dt, dd, li { break-inside: avoid }
  h2, h3 { break-after: avoid }
  table { font-size: 8pt }
  th, td { padding: .2rem .35rem }
}
"""
