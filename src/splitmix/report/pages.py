"""How pages are made: templates filled with data, all text escaped; the same data gives the same bytes.

A page is a template that extends `page.html.j2` (the frame: headline, facts, style) and uses the macros of
`parts.html.j2` (tables, pictures with notes, folded text). It lies in the folder `templates` of its own package.
"""

from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def render(template: str, package: str = "splitmix.report", /, **data: object) -> str:
    """A template of a package, filled with data; it may build on those of our pages."""
    return _templates(package).get_template(template).render(data)


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
