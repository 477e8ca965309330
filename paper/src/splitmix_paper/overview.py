"""What `paper list` shows: each entry, its runs, and the time they take."""

from pathlib import Path
from typing import Any

from splitmix.report.pages import duration
from splitmix_paper.catalogue import ENTRIES
from splitmix_paper.needs import Store
from splitmix_paper.queue import Job, jobs_of


def rows_of(scale: str, out: Path) -> list[dict[str, Any]]:
    """A row for each entry, in the order in which all are run; shared runs are counted where they come first."""
    store, seen = Store(out), set()
    rows = []
    for entry in ENTRIES.values():
        jobs = jobs_of([entry], scale, store)
        new = [job for job in jobs if job.config.digest() not in seen]
        seen |= {job.config.digest() for job in jobs}
        rows.append(
            {
                "name": entry.name,
                "place": entry.place,
                "title": entry.title,
                "runs": f"{sum(job.done for job in jobs)}/{len(jobs)}",
                "seconds": total(jobs),
                "first": total(new),
                "left": None if total(jobs) is None else sum(job.left for job in new),
            }
        )
    return rows


def total(jobs: list[Job]) -> float | None:
    """Seconds of all runs, or None where they were not measured."""
    seconds = [job.seconds for job in jobs]
    return sum(known for known in seconds if known is not None) if None not in seconds else None


def time_text(seconds: float | None) -> str:
    """Minutes are enough.

    >>> time_text(0), time_text(100), time_text(4000), time_text(None)
    ('-', '2 min', '1 h 7 min', '?')
    """
    if seconds is None:
        return "?"
    return "-" if not seconds else duration(max(60, 60 * round(seconds / 60))).removesuffix(" 0 s")
