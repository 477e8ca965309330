"""The command line: train, evaluate, report, count costs, and look at what can be named."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not burn the cores that work

import sys
from collections.abc import Sequence

from cyclopts import CycloptsError

from splitmix.cli.commands import command_line
from splitmix.core.errors import UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a user's mistake is one sentence on standard error, and exit code 2."""
    try:
        command, given, _ = command_line().parse_args(arguments, exit_on_error=False, print_error=False)
        if "" not in sys.path:  # only now: no file in this folder must stand in for what a command itself imports
            sys.path.insert(0, "")  # a user's own nets live where the command is run
        command(*given.args, **given.kwargs)
    except (UserError, CycloptsError) as mistake:
        print(f"splitmix: {' '.join(str(mistake).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("splitmix: stopped; go on with --resume", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a disk, a folder or a file that will not do what was asked
        where = f"'{error.filename}': " if error.filename else ""
        print(f"splitmix: {where}{error.strerror or error}; choose another place or make room", file=sys.stderr)
        sys.exit(2)
