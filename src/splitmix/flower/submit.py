"""Handing a run to a SuperLink: a small Flower app is written and sent, and its log followed to the end."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr import __version__ as flower

from splitmix.core.errors import UserError
from splitmix.flower.site import Site, environment, flwr, program

Given = Mapping[str, str | int | float | bool]
FILES = {
    "server_app.py": '"""The server of a run."""\n\nfrom splitmix.flower.server import app\n\n__all__ = ["app"]\n',
    "client_app.py": '"""A client of a run."""\n\nfrom splitmix.flower.node import app\n\n__all__ = ["app"]\n',
    "LICENSE": "As of splitmix.\n",
}
PROJECT = """[project]
name = "splitmix-run"
version = "1.0.0"
description = "One run of splitmix."
license = {{ file = "LICENSE" }}
dependencies = ["flwr>={flower}"]

[tool.flwr.app]
publisher = "splitmix"
fab-format-version = 1
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
{config}
"""
COLOUR = re.compile(r"\x1b\[\d+m")
CHATTER = ("INFO", "WARNING", "DEBUG", "Using SuperLink", "Successfully")  # how Flower's own lines begin


def follow(site: Site, given: Given, tell: Callable[[str], None]) -> None:
    """Do a run with this configuration on a federation; what its server says is told line by line.

    If the user stops us, the run is stopped too.
    """
    with TemporaryDirectory(prefix="splitmix-flower-") as folder:
        write_app(Path(folder), given)
        process = subprocess.Popen(
            [program("flwr"), "run", folder, "local", "--stream"],
            env={**environment(site), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is ours
        )
        run, last = "", ""
        try:
            assert process.stdout is not None
            for line in process.stdout:
                run = run or "".join(re.findall(r"started run (\d+)", line))
                words = COLOUR.sub("", line).strip()
                last = words or last
                if words and not words.startswith(CHATTER):
                    tell(words)
        except BaseException:
            if run:
                with suppress(UserError):
                    flwr(site, "stop", run, "local")
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
        if not run:
            raise UserError(f"the SuperLink at {site.address} did not take the run: {last[-300:] or 'no answer'}")


def write_app(folder: Path, given: Given) -> None:
    """A Flower app of three files (and a licence, which Flower asks for)."""
    config = "\n".join(f"{key} = {toml(value)}" for key, value in given.items())
    (folder / "pyproject.toml").write_text(PROJECT.format(flower=flower, config=config))
    for name, text in FILES.items():
        (folder / name).write_text(text)


def toml(value: str | int | float | bool) -> str:
    """A value as TOML, where JSON and TOML agree."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
