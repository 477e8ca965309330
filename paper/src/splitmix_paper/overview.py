"""What `paper list` shows: each exhibit, its runs, and the time they take."""

from pathlib import Path
from typing import Any

from splitmix.report.pages import duration
from splitmix_paper.exhibits import EXHIBITS
from splitmix_paper.runs import Job, Store, jobs_of


def rows_of(scale: str, out: Path) -> list[dict[str, Any]]:
    """A row for each exhibit, in the order in which all are run; shared runs are counted where they come first."""
    every, seen = jobs_of(EXHIBITS.values(), scale, Store(out)), set()
    rows = []
    for exhibit in EXHIBITS.values():
        jobs = [job for job in every if exhibit.name in job.exhibits]
        new = [job for job in jobs if job.digest not in seen]
        seen |= {job.digest for job in jobs}
        rows.append(
            {
                "name": exhibit.name,
                "place": exhibit.place,
                "title": exhibit.title,
                "runs": f"{sum(job.done for job in jobs)}/{len(jobs)}",
                "seconds": total(jobs),
                "first": total(new),
                "left": None if total(jobs) is None else sum(job.expected for job in new),
            }
        )
    return rows


def total(jobs: list[Job]) -> float | None:
    """Seconds of all runs, or None where they were not measured."""
    seconds = [job.whole for job in jobs]
    return sum(known for known in seconds if known is not None) if None not in seconds else None


def time_text(seconds: float | None) -> str:
    """Minutes are enough.

    >>> time_text(0), time_text(100), time_text(4000), time_text(None)
    ('-', '2 min', '1 h 7 min', '?')
    """
    if seconds is None:
        return "?"
    return "-" if not seconds else duration(max(60, 60 * round(seconds / 60))).removesuffix(" 0 s")
