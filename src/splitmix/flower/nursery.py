"""Processes of a federation on this machine, forked from one that has everything imported.

python -m splitmix.flower.nursery FOLDER NAME...    a name is `server`, or the number of a client;
                                                         prints the name and the process of each
"""

import os
import sys
from pathlib import Path

from splitmix.flower import server as flower  # noqa: F401  (what a server needs)
from splitmix.flower.forking import execute_servers
from splitmix.flower.node import Link, be_node, warm_up
from splitmix.flower.site import SERVER, Site, read_site


def main(folder: str, *names: str) -> None:
    site = read_site(Path(folder))
    warm_up()
    for name in names:
        pid = os.fork()
        if pid == 0:
            live(site, name)
        print(name, pid, flush=True)


def live(site: Site, name: str) -> None:
    """Become what is named, with a log, in a session of its own."""
    try:
        os.setsid()
        log = os.open(
            site.log(name if name == SERVER else f"node-{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        for stream in (1, 2):
            os.dup2(log, stream)
        if name == SERVER:
            execute_servers(site.address, site.link, site.authority if site.tls else None)
        else:
            about = {"partition-id": int(name), "num-partitions": site.clients, **site.nodes[int(name)].config}
            keys = (site.authority, site.key(int(name))) if site.tls else ()
            be_node(about, Link(site.address, *keys))
    except Exception as error:  # the log is all that a user will see
        print(f"splitmix: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
