"""Light copies of finished runs: all that a report needs and no weights, small enough for a repository."""

import json
from collections.abc import Iterable
from pathlib import Path

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.runs.records import read_metrics
from splitmix_paper.needs import Store
from splitmix_paper.queue import Job

WHOLE = ("config.toml", "costs.json", "grid.json", "result.json")  # the result last: with it, a copy counts as finished
METRICS = ("kind", "round", "split", "width", "accuracy", "seconds")


def keep(jobs: Iterable[Job], to: Path) -> int:
    """Copy what is done and not there yet; how many that were."""
    store, copied = Store(to), 0
    for job in jobs:
        place = store.folder(job.config)
        if place.resolve() == job.folder.resolve():
            raise UserError(f"the runs are in '{to}' already; give another folder to copy them to")
        if job.done and not all((place / name).exists() for name in _files(job)):
            copy(job.folder, place, _files(job))
            copied += 1
    return copied


def copy(folder: Path, place: Path, names: Iterable[str]) -> None:
    """Of the metrics only what learning curves and times need."""
    lines = [
        json.dumps({key: value for key in METRICS if (value := row.get(key)) is not None}) + "\n"
        for row in read_metrics(folder)
    ]
    write_atomically(place / "metrics.jsonl", "".join(lines).encode())
    for name in names:
        write_atomically(place / name, (folder / name).read_bytes())


def _files(job: Job) -> list[str]:
    return [name for name in WHOLE if (job.folder / name).exists()]
