"""The engine over Flower's grid: jobs go out as messages, answers come back in the order of the jobs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import RecordDict

from splitmix.core.client import Memory, parts_of
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.types import Job, Layout, Missing, Profile, Score, Train, Weights
from splitmix.core.width import Width
from splitmix.flower.fleet import Fleet, Letter
from splitmix.flower.wire import SPARE, pack_job, unpack_answer


class Budgets(Protocol):
    """The budgets that the run's settings give to clients whose nodes name none."""

    def at(self, round: int) -> Sequence[Width]: ...


@dataclass
class FlowerEngine:
    """Carries jobs to the nodes of a fleet; each gets only the bases that its job names."""

    fleet: Fleet
    net: Net
    layout: Layout
    budgets: Budgets
    settings: str  # what a client must know besides its job, as JSON
    memories: dict[int, Memory] = field(default_factory=dict)  # stays empty: what a client keeps is on its node

    @property
    def workers(self) -> int:
        return len(self.fleet.nodes)

    def profiles(self, round: int) -> Sequence[Profile]:
        """Everyone who ever came, in the order of their numbers; those who are away now are told apart in `run`."""
        self.fleet.refresh()
        usual, members = self.budgets.at(round), self.fleet.members
        return [Profile(c, members[c].budget or usual[c], members[c].train) for c in sorted(members)]

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        """Answers in the order of the jobs; those that came early wait in the form in which they came."""
        there = self.fleet.there()
        nodes = [node if (node := self.fleet.nodes.get(job.client)) in there else None for job in jobs]
        ready: dict[int, RecordDict | str] = {i: "not connected" for i, node in enumerate(nodes) if node is None}
        sent = [i for i, node in enumerate(nodes) if node is not None]
        letters = (self._letter(weights, jobs[i], nodes[i]) for i in sent)
        replies = self.fleet.exchange(letters)
        limit = 2 * sum(value.nbytes for value in weights.values()) + SPARE  # no honest answer is larger
        for i, job in enumerate(jobs):
            while i not in ready:
                number, found = next(replies)
                ready[sent[number]] = found
            reply = ready.pop(i)
            yield Missing(job.client, reply) if isinstance(reply, str) else unpack_answer(job, reply, limit)

    def _letter(self, weights: Weights, job: Job, node: int | None) -> Letter:
        assert node is not None
        content = pack_job(job, cut(self.net, self.layout, weights, parts_of(job)), self.settings)
        return Letter(node, "train" if isinstance(job, Train) else "evaluate", content, group(job))


def group(job: Job) -> str:
    """What Flower's logs call the work that a message belongs to."""
    return f"round {job.round}" if isinstance(job, Train) else "scores" if isinstance(job, Score) else "calibration"
