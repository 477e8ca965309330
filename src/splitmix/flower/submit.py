"""Handing a run to a SuperLink: a small Flower app is written and sent, and its log followed to the end."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr import __version__ as flower

from splitmix.core.errors import UserError
from splitmix.flower.server import Order
from splitmix.flower.site import Site, environment, flwr, program

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
order = {order}
"""
COLOUR = re.compile(r"\x1b\[\d+m")
CHATTER = ("INFO", "WARNING", "DEBUG", "Using SuperLink", "Successfully")  # how Flower's own lines begin


def follow(site: Site, order: Order, tell: Callable[[str], None]) -> None:
    """Have an order done on a federation; what its server says is told line by line.

    If the user stops us, the run is stopped too.
    """
    run, last = "", ""
    with TemporaryDirectory(prefix="splitmix-flower-") as folder:
        write_app(Path(folder), order)
        with subprocess.Popen(
            [program("flwr"), "run", folder, "local", "--stream"],
            env={**environment(site), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is ours
        ) as process:
            try:
                for line in process.stdout or ():
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
    if not run:
        raise UserError(f"the SuperLink at {site.address} did not take the run: {last[-300:] or 'no answer'}")


def write_app(folder: Path, order: Order) -> None:
    """A Flower app of three files (and a licence, which Flower asks for)."""
    text = json.dumps(order.text(), ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON and TOML agree on the rest
    (folder / "pyproject.toml").write_text(PROJECT.format(flower=flower, order=text))
    for name, source in FILES.items():
        (folder / name).write_text(source)
