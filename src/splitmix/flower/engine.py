"""The engine over Flower's grid: jobs go out as messages, answers come back in the order of the jobs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from flwr.app import RecordDict

from splitmix.core.admission import Rejected
from splitmix.core.client import OwnNorms, all_parts
from splitmix.core.net import Net
from splitmix.core.parts import cut
from splitmix.core.types import Job, Layout, Missing, Profile, Score, Tally, Train, Update, Weights
from splitmix.data.budgets import RoundBudgets
from splitmix.flower.fleet import MORE, Errand, Fleet
from splitmix.flower.wire import SPARE, pack_job, unpack_answer


@dataclass
class FlowerEngine:
    """Carries jobs to the nodes of a fleet; each gets only the bases that its job names."""

    fleet: Fleet
    net: Net
    layout: Layout
    budgets: RoundBudgets
    agreed: str  # what a client must know besides its job: an agreement, as text
    own_norms: dict[int, OwnNorms] = field(default_factory=dict)  # stays empty: what a client keeps is on its node

    @property
    def workers(self) -> int:
        return len(self.fleet.nodes)

    def profiles(self, round: int) -> Sequence[Profile]:
        """Everyone who ever came, in the order of their numbers; those who are away now are told apart in `run`."""
        self.fleet.refresh()
        budgets, members = self.budgets.at(round), self.fleet.members
        return [Profile(client, budgets[client], members[client].train) for client in sorted(members)]

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Update | Tally | Rejected | Missing]:
        """Answers in the order of the jobs; those that came early wait in the form in which they came."""
        there, known = self.fleet.there(), self.fleet.nodes
        nodes = {i: known[job.client] for i, job in enumerate(jobs) if known.get(job.client) in there}
        ready: dict[int, RecordDict | str] = {i: "not connected" for i in range(len(jobs)) if i not in nodes}
        replies = self.fleet.exchange((i, self._errand(weights, jobs[i], node)) for i, node in nodes.items())
        limit = 2 * sum(value.nbytes for value in weights.values()) + SPARE  # no honest answer is larger
        for i, job in enumerate(jobs):
            while i not in ready:
                place, found = next(replies)
                ready[place] = found
            reply = ready.pop(i)
            if isinstance(reply, str):
                yield Missing(job.client, reply)
                continue
            answer = unpack_answer(job, reply, limit)
            yield self._believed(job, answer) if isinstance(answer, Tally) else answer

    def _believed(self, job: Job, tally: Tally) -> Tally | Rejected:
        """A tally, if it is of no more images than the client registered, and that is not far more than others did."""
        split = job.question.split if isinstance(job, Score) else "test"
        counts = {client: getattr(member, split) for client, member in self.fleet.members.items()}
        most = min(counts[job.client], MORE * max(1, median_low(counts.values())))
        if tally.samples <= most:
            return tally
        return Rejected(job.client, "samples", f"it counts more {split} images than the {most} that are believed")

    def _errand(self, weights: Weights, job: Job, node: int) -> Errand:
        content = pack_job(job, cut(self.net, self.layout, weights, all_parts(job)), self.agreed)
        return Errand(node, "train" if isinstance(job, Train) else "evaluate", content, log_group(job))


def log_group(job: Job) -> str:
    """What Flower's logs call the work that a message belongs to."""
    return f"round {job.round}" if isinstance(job, Train) else "scores" if isinstance(job, Score) else "calibration"
