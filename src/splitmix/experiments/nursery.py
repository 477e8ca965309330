"""Nodes of a federation on this machine, forked from one process that has everything imported.

python -m splitmix.experiments.nursery FOLDER CLIENT...    prints the number and the process of each
"""

import os
import sys
from pathlib import Path

from splitmix.engines.flower.local import Site, read_site
from splitmix.experiments.node import Link, be_node


def main(folder: str, *clients: str) -> None:
    site = read_site(Path(folder))
    for client in map(int, clients):
        pid = os.fork()
        if pid == 0:
            live(site, client)
        print(client, pid, flush=True)


def live(site: Site, client: int) -> None:
    """Become the node of a client, with a log, in a session of its own."""
    try:
        os.setsid()
        log = os.open(site.log(f"node-{client}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        about = {"partition-id": client, "num-partitions": site.clients, **site.nodes[client].config}
        keys = (site.authority, site.key(client)) if site.tls else ()
        be_node(about, Link(site.address, *keys))
    except Exception as error:  # the log is all that a user will see
        print(f"splitmix: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
