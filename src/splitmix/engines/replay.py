"""A run again with the clients that took part: who was asked and who came is read, all else is computed anew."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitmix.core.admission import Rejected
from splitmix.core.method import Engine
from splitmix.core.types import Job, Missing, Profile, Train, Weights


@dataclass(frozen=True)
class Replay:
    """An engine whose clients are asked, and fail to come, just as the record of a run says."""

    engine: Engine
    rounds: Mapping[int, Mapping[str, Any]]

    @classmethod
    def of(cls, engine: Engine, rows: Iterable[Mapping[str, Any]]) -> "Replay":
        """From the rows of a run's `metrics.jsonl`; of those of one round the last counts."""
        return cls(engine, {row["round"]: row for row in rows if row["kind"] == "round"})

    def profiles(self, round: int) -> Sequence[Profile]:
        known = {profile.client: profile for profile in self.engine.profiles(round)}
        return [known[client] for client in self.rounds[round]["cohort"]]

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        failed = [self._failed(job) for job in jobs]
        answers = iter(self.engine.run(weights, [job for job, gone in zip(jobs, failed, strict=True) if not gone]))
        for gone in failed:
            yield gone or next(answers)

    def _failed(self, job: Job) -> Missing | Rejected | None:
        if not isinstance(job, Train):
            return None
        row = self.rounds[job.round]
        failed: list[Missing | Rejected] = [Missing(**one) for one in row["missing"]]
        failed += [Rejected(**one) for one in row["rejected"]]
        return next((one for one in failed if one.client == job.client), None)
