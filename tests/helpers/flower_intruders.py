"""Nodes that must not be let in, forked from one process: `python -m helpers.flower_intruders SITE LINKS`, as JSON."""

import sys
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from splitmix.flower.forking import SuperLink, be_node, forked
from splitmix.flower.site import read_site

LINKS = TypeAdapter(dict[str, SuperLink])  # by the name of the intruder
CLAIM = {"partition-id": 3, "num-partitions": 4, "task": "own"}

if __name__ == "__main__":
    for name, link in LINKS.validate_json(sys.argv[2]).items():
        forked(read_site(Path(sys.argv[1])).log(name), partial(be_node, CLAIM, link))
