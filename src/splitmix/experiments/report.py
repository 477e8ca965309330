"""A run as one page: headline, table, pictures, how it was made, and what the numbers do and do not say.

The page needs nothing but itself: no script, no font, no file beside it. The same files give the same bytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path

from splitmix.core.files import write_atomically
from splitmix.experiments import figures
from splitmix.experiments.records import Result, Row, domain_names, main_scores, read_config, read_metrics, read_result
from splitmix.experiments.tables import norm_text, percent, plain, width_table

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def write_report(folder: Path) -> Path:
    """Write `report.html` into a finished run's folder, and say where it is."""
    result, metrics = read_result(folder), read_metrics(folder)
    page = folder / "report.html"
    write_atomically(page, _page(result, metrics, read_config(folder)).encode())
    return page


def headline(result: Result) -> str:
    """The essential sentence of a run."""
    scores = main_scores(result)
    count = _NUMBERS[len(scores)] if len(scores) < len(_NUMBERS) else str(len(scores))
    ends = dict.fromkeys((scores[0]["width"], scores[-1]["width"]))
    reached = {score["width"]: f"{percent(score['accuracy'])} % at {_share(score['width'])}" for score in scores}
    widths = "width" if len(scores) == 1 else "widths"
    return f"One training run, {count} {widths}: {' to '.join(reached[width] for width in ends)}."


def _page(result: Result, metrics: list[Row], config: str) -> str:
    table = width_table(result)
    task = escape(result.get("task", "a task"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{task}: a Split-Mix report</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<header>
<p class="kind">{escape(result.get("method", "federated"))} on {task}</p>
<h1>{escape(headline(result))}</h1>
{_facts(result)}
</header>
<section>
<h2>What each width reaches and costs</h2>
<div class="scroll" role="region" aria-label="{escape(table.title)}" tabindex="0">
{replace(table, caption="").to_html()}
</div>
<p class="note">{escape(table.caption)}</p>
</section>
<section>
<h2>How it learned, and where it is good</h2>
<div class="cards">
{"".join(_figures(result, metrics))}<div class="notes">
<h3>What these numbers mean</h3>
<ul>
{"".join(f"<li>{escape(note)}</li>" + chr(10) for note in _notes(result))}</ul>
</div>
</div>
</section>
<section>
<h2>How it was made</h2>
<dl>
{"".join(f"<dt>{name}</dt><dd>{text}</dd>{chr(10)}" for name, text in _origin(result))}</dl>
{_config(config)}</section>
</main>
</body>
</html>
"""


def _facts(result: Result) -> str:
    """A line of key numbers under the headline."""
    facts = [f"<b>{len(result['clients'])}</b> clients", f"<b>{plain(result.get('rounds'))}</b> rounds"]
    if "seconds" in result:
        facts.append(f"trained in <b>{_duration(result['seconds'])}</b>")
    facts.append(f"seed <b>{plain(result.get('seed'))}</b>")
    return '<ul class="facts">' + "".join(f"<li>{fact}</li>" for fact in facts) + "</ul>"


def _figures(result: Result, metrics: list[Row]) -> Iterator[str]:
    """Each picture for which the run recorded enough."""
    best = result.get("best_round")
    draws: list[Callable[[], figures.Picture]] = [partial(figures.convergence, metrics, best_round=best)]
    if len(main_scores(result)) > 1:
        draws.append(partial(figures.tradeoff, result))
    if len(domain_names(result)) > 1:
        draws.append(partial(figures.by_domain, result))
    draws += [partial(figures.per_client, result), partial(figures.budgets, result)]
    for draw in draws:
        try:
            yield f"<figure>{draw().svg()}</figure>\n"
        except figures.NothingToDrawError:
            continue


def _notes(result: Result) -> Iterator[str]:
    """What a careful reader should know."""
    last, clients = main_scores(result)[-1], result["clients"]
    note = "Accuracy is a mean over clients: each client counts the same, however many images it has."
    if last.get("pooled") is not None:
        note += f" If each image counts the same, {_share(last['width'])} reaches {percent(last['pooled'])} %."
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
        yield f"The weights of round {result['best_round'] + 1} were kept, by their accuracy on validation images."
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
        yield "Time", f"{_duration(result['seconds'])} ({work})"
    if "versions" in result:
        yield "Versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())


def _config(text: str) -> str:
    if not text.strip():
        return ""
    return f"<details open>\n<summary>config.toml</summary>\n<pre>{escape(text)}</pre>\n</details>\n"


def _kept(result: Result) -> bool:
    return result.get("best_round", -1) >= 0


def _share(width: str) -> str:
    return "full width" if width == "1" else f"{width} of the channels"


def _duration(seconds: float) -> str:
    """Seconds in words.

    >>> _duration(123.4), _duration(3725), _duration(8.25)
    ('2 min 3 s', '1 h 2 min', '8.2 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


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
tr > :nth-child(3) { font-weight: 600 }
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
