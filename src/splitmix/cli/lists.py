"""Commands that show what can be named: tasks, methods, nets, budgets and settings."""

from pathlib import Path

from splitmix.cli.options import Json, show_rows
from splitmix.core.errors import UserError
from splitmix.data.budgets import BUDGETS, parse_budgets
from splitmix.data.tasks import TASKS
from splitmix.methods import METHODS
from splitmix.nets import NETS
from splitmix.report.pictures import budget_picture
from splitmix.report.tables import Column
from splitmix.runs.config import Config
from splitmix.runs.recipes import RECIPES


def tasks(*, as_json: Json = False) -> None:
    """List the tasks.

    Example: splitmix tasks --json
    """
    rows = [{"task": name, "about": entry.about} for name, entry in TASKS.items()]
    show_rows("Tasks", text_columns("task", "about"), rows, as_json, "or a folder of .npz files, one domain each")


def methods(*, as_json: Json = False) -> None:
    """List the methods.

    Example: splitmix methods
    """
    rows = [{"method": name, "about": first_line(make)} for name, make in METHODS.items()]
    show_rows("Methods", text_columns("method", "about"), rows, as_json)


def nets(*, as_json: Json = False) -> None:
    """List the nets.

    Example: splitmix nets
    """
    rows = [
        {"net": name, "about": first_line(build), "image": "x".join(map(str, getattr(build, "image", ())))}
        for name, build in NETS.items()
    ]
    show_rows(
        "Nets", text_columns("net", "about", "image"), rows, as_json, "or your own build(width), as module:function"
    )


def budgets(law: str | None = None, /, *, clients: int = 50, out: Path | None = None, as_json: Json = False) -> None:
    """List the named budgets, or show who gets what.

    Examples:

      splitmix budgets

      splitmix budgets lognormal --clients 50 --out budgets.png

      splitmix budgets "1/8 1/4 1/2 1" --clients 20

    Parameters
    ----------
    law
        A name, or widths for equal groups of clients.
    clients
        Number of clients.
    out
        Draw a picture of every client's budget (.png, .svg or .pdf).
    as_json
        Print JSON.
    """
    rows = []
    for name in [law] if law else BUDGETS:
        given = parse_budgets(name, clients=clients).at(0)
        groups = {str(width): given.count(width) for width in sorted(set(given))}
        shown = ", ".join(f"{count} x {width}" for width, count in groups.items())
        rows.append({"budgets": name, "clients": shown, "mean": f"{float(sum(given) / clients):.3f}"})
        if out is not None and law:
            budget_picture(given, ["all clients"] * clients, out)
    if out is not None and not law:
        raise UserError("name the budgets to draw, such as: splitmix budgets exponential --out budgets.png")
    show_rows(f"Budgets of {clients} clients", text_columns("budgets", "clients", "mean"), rows, as_json)


def settings(*, as_json: Json = False) -> None:
    """List the settings of a run with their defaults, for -o key=value and for config files.

    Example: splitmix settings
    """
    recipe = {"key": "recipe", "default": "None", "about": f"fills in what is left open: {' or '.join(RECIPES)}"}
    rows = [recipe] + [
        {"key": key, "default": str(entry.default), "about": entry.description or ""}
        for key, entry in Config.model_fields.items()
    ]
    show_rows("Settings", text_columns("key", "default", "about"), rows, as_json)


def text_columns(*keys: str) -> list[Column]:
    """Columns of words."""
    return [Column(key, key, number=False) for key in keys]


def first_line(thing: object) -> str:
    """What the docstring of a method or net says first."""
    owner = getattr(thing, "__self__", thing)  # a classmethod's class says it
    return (owner.__doc__ or "").strip().splitlines()[0] if owner.__doc__ else ""
