"""Commands that show what can be named (tasks, methods, nets, budgets and settings), and what a net costs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from splitmix.cli.options import Json, Words, parse_image, say, show_json, show_rows, show_table
from splitmix.compare.costs import account_for, budgets_for, client_table, mix_table, serving_table
from splitmix.core.errors import UserError
from splitmix.core.width import Width, check_multiple, parse_width
from splitmix.data.budgets import BUDGETS, parse_budgets
from splitmix.data.tasks import TASKS
from splitmix.methods import METHODS
from splitmix.nets import find_net, named_nets
from splitmix.report.drawing import save
from splitmix.report.figures import budgets as draw_budgets
from splitmix.report.tables import Column
from splitmix.runs.config import Config
from splitmix.runs.recipes import RECIPES
from splitmix.runs.records import StoredClient


def tasks(*, as_json: Json = False) -> None:
    """List the tasks.

    Example: splitmix tasks --json
    """
    rows = [{"task": name, "about": entry.about} for name, entry in TASKS.items()]
    show_rows(
        "Tasks",
        text_columns("task", "about"),
        rows,
        as_json,
        "or your own: a folder of pictures or .npz files, a table (CSV, Parquet)",
    )


def methods(*, as_json: Json = False) -> None:
    """List the methods and their own settings, for -o 'method={name="splitmix", draws="anchored"}'.

    Example: splitmix methods
    """
    rows = [
        {"method": name, "settings": own_settings(make), "about": first_line(make)} for name, make in METHODS.items()
    ]
    show_rows("Methods", text_columns("method", "settings", "about"), rows, as_json)


def nets(*, as_json: Json = False) -> None:
    """List the nets.

    Example: splitmix nets
    """
    rows = [
        {"net": name, "about": first_line(build), "image": "x".join(map(str, getattr(build, "image", ())))}
        for name, build in named_nets().items()
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
            drawn: list[StoredClient] = [{"client": i, "domain": "all", "budget": str(b)} for i, b in enumerate(given)]
            save(draw_budgets(drawn, ["all"]), out)
    if out is not None and not law:
        raise UserError("name the budgets to draw, such as: splitmix budgets exponential --out budgets.png")
    show_rows(f"Budgets of {clients} clients", text_columns("budgets", "clients", "mean"), rows, as_json)
    if out is not None and not as_json:
        say(f"Picture: {out}")


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


def own_settings(make: Callable[..., object]) -> str:
    """What a method takes besides its setting, with the defaults."""
    taken = [taken for taken in signature(make).parameters.values() if taken.kind is Parameter.KEYWORD_ONLY]
    return ", ".join(f"{one.name}={one.default}" for one in taken)


def first_line(thing: object) -> str:
    """What the docstring of a method or net says first."""
    owner = getattr(thing, "__self__", thing)  # a classmethod's class says it
    return (owner.__doc__ or "").strip().splitlines()[0] if owner.__doc__ else ""


def cost(
    net: str,
    /,
    *,
    width: Words = None,
    atom: str = "1/8",
    image: str | None = None,
    method: str | None = None,
    budgets: Words = None,
    batch: int = 32,
    as_json: Json = False,
) -> None:
    """Count what a net costs: to serve each width, and to a client of each budget in one round.

    Examples:

      splitmix cost digit

      splitmix cost preresnet18 --width 1/4 1 --json

      splitmix cost preresnet18 --method sheterofl --budgets 1/8 1/4 1/2 1 --batch 128

    Parameters
    ----------
    net
        A net (see `splitmix nets`), or your own as module:function.
    width
        Widths to count; default: 1/8, 1/4, 1/2 and 1, or all that the method serves.
    atom
        Width of one base.
    image
        Size of an image as HEIGHTxWIDTHxCHANNELS; default: the net's own.
    method
        A method (see `splitmix methods`), or its settings as {name="fedavg", width="1/4"}; default: splitmix.
    budgets
        Budgets of the clients: widths, or a name (see `splitmix budgets`); default: 1/8, 1/4, 1/2 and 1.
    batch
        Images in a training batch.
    as_json
        Print JSON: a list of widths, or with --method an object.
    """
    build, base = find_net(net), parse_width(atom)
    widths = [parse_width(text) for text in width or (("1/8", "1/4", "1/2", "1") if method is None else ())]
    for wanted in widths if method is None else ():
        check_multiple(wanted, base)
    clients = budgets_for(" ".join(budgets or ()), base)

    with runnable(net, image):
        size = image_size(net, build, image)
        account = account_for(method or "splitmix", build, size, atom=base, budgets=clients, batch=batch)
        served = mix_table(net, build, size, base, widths) if method is None else serving_table(net, account, widths)
        asked = client_table(account, clients)
    if as_json:
        rows, about = served.records(), {"net": net, "method": method, "atom": str(base), "batch": batch}
        show_json(rows if method is None else {**about, "widths": rows, "clients": asked.records()})
    else:
        show_table(served)
        say("")
        show_table(asked)


@contextmanager
def runnable(net: str, image: str | None) -> Iterator[None]:
    """What the net itself cannot do is one sentence."""
    try:
        yield
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, IndexError) as error:
        size = f" on images of {image}" if image else ""
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"the net '{net}' cannot be run{size}: {reason}") from None


def image_size(net: str, build: Any, given: str | None) -> tuple[int, ...]:
    """The size of an image, given or the net's own."""
    if given is not None:
        return parse_image(given)
    own = getattr(build, "image", None) or getattr(build(Width(1)), "image", None)
    if own is None:
        raise UserError(f"the net '{net}' does not say which images it takes; give --image, such as 32x32x3")
    return tuple(own)
