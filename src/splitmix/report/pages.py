"""How pages are made: templates filled with data, all text escaped; the same data gives the same bytes.

A page is a template that extends `page.html.j2` (the frame: headline, facts, style) and uses the macros of
`parts.html.j2` (tables, pictures with notes, folded text). It lies in the folder `templates` of its own package.
"""

from collections.abc import Iterable
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from splitmix.report.tables import Table

Fact = tuple[str, object, str]  # before, a number in bold, after


def render(template: str, package: str = "splitmix.report", /, **data: object) -> str:
    """A template of a package, filled with data; it may build on those of our pages."""
    return _templates(package).get_template(template).render(data)


def framed(table: Table) -> Markup:
    """A table as HTML that scrolls where it is too wide, with its caption below."""
    made: Markup = _templates("splitmix.report").get_template("parts.html.j2").module.framed(table)  # type: ignore[attr-defined]
    return made


def page(*, title: str, kind: str, headline: str, facts: Iterable[str], sections: Iterable[str]) -> str:
    """A whole page whose facts and sections are HTML; a template that extends `page.html.j2` says it better."""
    shown, parts = [Markup(fact) for fact in facts], Markup("".join(sections))
    return render("given.html.j2", title=title, kind=kind, headline=headline, given=shown, sections=parts)


def section(heading: str, *content: str) -> str:
    """A part of a page under a heading; the content is HTML."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n{''.join(content)}</section>\n"


def described(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for; the latter is HTML."""
    return "<dl>\n" + "".join(f"<dt>{escape(name)}</dt><dd>{text}</dd>\n" for name, text in pairs) + "</dl>\n"


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


@cache
def _templates(package: str) -> Environment:
    packages = dict.fromkeys((package, "splitmix.report"))
    return Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
