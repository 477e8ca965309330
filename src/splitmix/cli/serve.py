"""The command that serves a bundle: a page to turn its dials on, and an HTTP interface."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from splitmix.cli.options import say
from splitmix.core.errors import UserError
from splitmix.runtime.bundle import packaged
from splitmix.runtime.model import Model

if TYPE_CHECKING:
    from splitmix.core.objective import Attack


def serve(
    bundle: Path | None = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    rate: float = 100.0,
    threads: int | None = None,
    batch: int = 32,
    allow_host: Annotated[list[str] | None, Parameter(negative="")] = None,
    calibration: Path | None = None,
) -> None:
    """Serve a bundle: a page at / to turn width and robustness on, and an HTTP interface, described at /docs.

    Without a bundle it serves a small one that comes with the package.

    Examples:

      splitmix serve

      splitmix serve two.bundle --port 8080

    Parameters
    ----------
    bundle
        Folder of a bundle (see `splitmix bundle`); default: the one in the package.
    host
        Address to listen on; 127.0.0.1 is this machine alone, 0.0.0.0 all who can reach it.
    port
        Port to listen on; 0 takes any free one.
    rate
        Requests a second from one address, twice as many at once; 0 sets no limits for single addresses.
    threads
        Predictions that run at the same time; default: one per core.
    batch
        Predictions with the same dial that are answered in one go when they wait; 1: each alone, the same to the bit.
    allow_host
        Name under which others may ask for it, such as box.lan, beside localhost and --host; may be given again.
    calibration
        Take the norm statistics from this file of `splitmix calibrate`.
    """
    try:  # what serving needs is optional
        from splitmix.serve.app import make_app
        from splitmix.serve.limits import ServerLimits
        from splitmix.serve.server import address_of, bind, is_private, make_server, own_names, serve_until_stopped
    except ImportError as missing:
        raise UserError(
            f'serving needs {missing.name}, which is not installed; run: pip install "splitmix[serve]"'
        ) from missing

    if not 0 <= rate < float("inf"):
        raise UserError(f"--rate {rate:g} is no number of requests; give 0 for no limit, or a number such as 100")
    if threads is not None and not 1 <= threads <= 256:
        raise UserError(f"--threads {threads} cannot be; give a number from 1 to 256")
    if not 1 <= batch <= 1024:
        raise UserError(f"--batch {batch} cannot be; give a number from 1 to 1024")
    folder = bundle or packaged()
    model = Model.load(folder, calibration=calibration or False)
    limits = ServerLimits(rate=rate, threads=threads or os.cpu_count() or 1, batch=batch)
    with bind(host, port) as listening:
        hosts = (*(allow_host or ()), *own_names(listening))
        interface = make_app(model, name=folder.absolute().name, attack=usual_attack(), limits=limits, hosts=hosts)

        def ready() -> None:
            say(f"Serving {folder} at {address_of(listening)} (Ctrl-C stops it)")
            if not is_private(listening):
                say("Anyone who can reach this machine can use it: there is no password.")
                say(f"It answers to localhost{''.join(f', {name}' for name in hosts)}; --allow-host adds a name.")

        serve_until_stopped(make_server(interface, limits, ready=ready), listening)
    say("Stopped.")


def usual_attack() -> "Attack | None":
    """The attack that visitors may turn on; none on a device without PyTorch."""
    try:
        from splitmix.attacks.pgd import PGD
    except ImportError:
        return None
    return PGD(steps=20)
