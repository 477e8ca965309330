"""The interface on one plain page, made from its OpenAPI description: no script, nothing from elsewhere."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

EXAMPLES = """curl -F image=@seven.png -F width=1/2 -F robust=0.3 {address}api/predict
curl -F image=@seven.png -F deadline_ms=2 {address}api/predict
curl -F image=@seven.png -F attack=true {address}api/predict
curl '{address}api/plan?max_ms=2&min_robust=0.3'
"""


def page_of(said: Mapping[str, Any], address: str) -> str:
    """All paths with their settings and answers."""
    sections = "".join(
        _section(method, path, about, said)
        for path, methods in said["paths"].items()
        for method, about in methods.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>splitmix: HTTP interface</title>
<link rel="icon" href="static/icon.png" type="image/png">
<link rel="stylesheet" href="static/style.css">
</head>
<body>
<main class="doc">
<header>
<p class="kind"><a href="./">splitmix</a> {escape(said["info"]["version"])}</p>
<h1>HTTP interface</h1>
<p>{escape(said["info"]["description"])} The same in full, for programs: <a href="openapi.json">openapi.json</a>.
Whatever goes wrong is answered with a status from 400 on and <code>{{"error": "one sentence"}}</code>.</p>
</header>
<pre>{escape(EXAMPLES.format(address=address))}</pre>
{sections}</main>
</body>
</html>
"""


def _section(method: str, path: str, about: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    settings = dict(_settings(about))
    answer = about["responses"]["200"].get("content", {}).get("application/json", {}).get("schema", {})
    fields = _resolve(answer, said).get("properties", {})
    return f"""<section>
<h2><code><span class="method">{method.upper()}</span> {escape(path)}</code></h2>
<p>{escape(about.get("description", ""))}</p>
{_listed("Settings", settings)}{_listed("Answer", {name: _words(field) for name, field in fields.items()})}</section>
"""


def _settings(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for parameter in about.get("parameters", ()):
        yield parameter["name"], _words({**parameter["schema"], **parameter})
    for body in about.get("requestBody", {}).get("content", {}).values():
        for name, field in body["schema"].get("properties", {}).items():
            yield name, _words(field)


def _words(field: Mapping[str, Any]) -> str:
    kinds = [kind for part in field.get("anyOf", (field,)) if (kind := part.get("type")) not in (None, "null")]
    return ": ".join(filter(None, (" or ".join(kinds), field.get("description", ""))))


def _listed(heading: str, entries: Mapping[str, str]) -> str:
    if not entries:
        return ""
    rows = "".join(f"<dt><code>{escape(name)}</code></dt><dd>{escape(text)}</dd>\n" for name, text in entries.items())
    return f"<h3>{heading}</h3>\n<dl>\n{rows}</dl>\n"


def _resolve(schema: Mapping[str, Any], said: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = said["components"]["schemas"][name] if name else schema
    return found
