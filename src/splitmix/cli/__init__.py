"""The command line: the table of commands, each loaded when it is called, since a list must not wait for PyTorch."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not burn the cores that work

import ast
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from cyclopts import App, CycloptsError, UnknownOptionError, UnusedCliTokensError

from splitmix import __version__
from splitmix.core.errors import UserError, in_a_line, printable, shown

COMMANDS = {  # a function is a command, an App a group of them
    "train": "splitmix.cli.run:train",
    "report": "splitmix.cli.run:report",
    "cost": "splitmix.cli.lists:cost",
    "compare": "splitmix.cli.compare:compare",
    "tune": "splitmix.cli.compare:tune",
    "eval": "splitmix.cli.run:evaluate",
    "export": "splitmix.cli.runtime:export",
    "flower": "splitmix.cli.flower:flower",
    "data": "splitmix.cli.data:data",
    "tasks": "splitmix.cli.lists:tasks",
    "methods": "splitmix.cli.lists:methods",
    "nets": "splitmix.cli.lists:nets",
    "budgets": "splitmix.cli.lists:budgets",
    "settings": "splitmix.cli.lists:settings",
    "bundle": "splitmix.cli.runtime:bundle",
    "card": "splitmix.cli.runtime:card",
    "calibrate": "splitmix.cli.runtime:calibrate",
    "probe": "splitmix.cli.runtime:probe",
    "plan": "splitmix.cli.runtime:plan",
    "serve": "splitmix.cli.serve:serve",
}
INSTALLED = "splitmix.commands"  # entry points of other packages, such as the paper's, as name = module:app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a user's mistake is one sentence on standard error, and exit code 2."""
    try:
        with left_alone() if arguments is None else nullcontext():  # the process is ours
            command, given, _ = command_line().parse_args(arguments, exit_on_error=False, print_error=False)
        if "" not in sys.path:  # only now: no file in this folder must stand in for what a command itself imports
            sys.path.insert(0, "")  # a user's own nets live where the command is run
        command(*given.args, **given.kwargs)
    except UnusedCliTokensError as mistake:
        more = " ".join(mistake.unused_tokens or ())
        hint = "see its --help"
        if "=" in more:
            hint = "write each setting as one word, in a shell in single quotes, such as -o 'data={size=64}'"
        print(in_a_line(UserError(f"{shown(more)} is more than this command takes; {hint}")), file=sys.stderr)
        sys.exit(2)
    except (UserError, CycloptsError) as mistake:
        print(in_a_line(setting_given(mistake) or mistake), file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        missing = error.__cause__ or error  # where a command could not be loaded, what it lacks is the cause
        if (getattr(missing, "name", None) or "").partition(".")[0] != "torch":
            raise
        print("splitmix: this needs PyTorch, which is not installed; install torch", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"splitmix: stopped{going_on(sys.argv[1:] if arguments is None else arguments)}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a disk, a folder or a file that will not do what was asked
        where = f"'{error.filename}': " if error.filename else ""
        why = printable(f"{where}{error.strerror or error}")
        print(f"splitmix: {why}; choose another place or make room", file=sys.stderr)
        sys.exit(2)


def setting_given(mistake: Exception) -> UserError | None:
    """What to write where a setting of a run was given as an option, as in --rounds 20."""
    if not isinstance(mistake, UnknownOptionError):
        return None
    given, _, value = (mistake.token.keyword or mistake.token.value).partition("=")
    name = given.removeprefix("--").replace("-", "_")
    if not any("-o" in one.names for one in mistake.argument_collection):
        return None
    from splitmix.runs.config import Config  # only here: help must not wait for it

    if name not in Config.model_fields:
        return None
    return UserError(f"{given} is not an option but a setting of the run; give -o {name}={value or 'VALUE'}")


def going_on(words: Sequence[str]) -> str:
    """How to go on with a command that was stopped."""
    if words[:1] == ["train"]:
        return "; go on with --resume"
    return "; repeat the command to go on" if words[:1] in (["compare"], ["tune"], ["paper"]) else ""


@contextmanager
def left_alone() -> Iterator[None]:
    """What is loaded stays until the end: to look for garbage in it would cost half a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@cache
def command_line() -> App:
    """All commands: those of the table, and those of other packages that are installed."""
    app = App(
        name="splitmix",
        version=__version__,
        help="Federated learning for devices of uneven strength: train small base nets together, serve any width.\n\n"
        "Begin with: splitmix train mini",
        help_format="plaintext",
    )
    app.register_install_completion_command(help="Let your shell complete commands and options.")
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
