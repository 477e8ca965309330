"""The table of commands, and how they are loaded: each when it is called, since a list must not wait for PyTorch."""

import ast
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from cyclopts import App

from splitmix import __version__

COMMANDS = {  # a function is a command, an App a group of them
    "train": "splitmix.cli.train:train",
    "report": "splitmix.cli.train:report",
    "cost": "splitmix.cli.cost:cost",
    "compare": "splitmix.cli.compare:compare",
    "tune": "splitmix.cli.compare:tune",
    "eval": "splitmix.cli.eval:evaluate",
    "export": "splitmix.cli.runtime:export",
    "flower": "splitmix.cli.flower:flower",
    "data": "splitmix.cli.data:data",
    "tasks": "splitmix.cli.lists:tasks",
    "methods": "splitmix.cli.lists:methods",
    "nets": "splitmix.cli.lists:nets",
    "budgets": "splitmix.cli.lists:budgets",
    "settings": "splitmix.cli.lists:settings",
    "bundle": "splitmix.cli.runtime:bundle",
    "calibrate": "splitmix.cli.runtime:calibrate",
    "probe": "splitmix.cli.runtime:probe",
    "plan": "splitmix.cli.runtime:plan",
    "serve": "splitmix.cli.serve:serve",
}
INSTALLED = "splitmix.commands"  # entry points of other packages, such as the paper's, as name = module:app


@cache
def command_line() -> App:
    """All commands: those of the table, and those of other packages that are installed."""
    app = App(
        name="splitmix",
        version=__version__,
        help="Federated learning for devices of uneven strength: train small base nets together, serve any width.",
        help_epilogue="Begin with: splitmix train mini",
        help_format="plaintext",
    )
    for name, where in COMMANDS.items():
        app.command(where, name=name, help=help_of(where))
    for extra in entry_points(group=INSTALLED):
        with suppress(ImportError):  # a package that is half gone must not take all commands with it
            app.command(extra.value, name=extra.name, help=help_of(extra.value))
    return app


def help_of(where: str) -> str:
    """What the help says of module:function, or of module:app, read in its file without importing it.

    >>> help_of("splitmix.cli.lists:nets").splitlines()[0], help_of("splitmix.cli.data:data")
    ('List the nets.', 'Look at tasks and their images.')
    """
    module, _, name = where.partition(":")
    texts = docstrings(module)
    return texts.get(name, texts[""])


@cache
def docstrings(module: str) -> dict[str, str]:
    """Docstrings of the functions of a module, and its own as that of ""."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"a command lies in {module}, which is not there")
    tree = ast.parse(Path(spec.origin).read_bytes())
    functions = {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {"": ast.get_docstring(tree) or "", **functions}
