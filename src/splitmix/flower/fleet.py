"""Who is there: the nodes that Flower knows, the client that each of them is, and messages to and from them."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median_low
from time import monotonic, sleep

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from splitmix.core.errors import UserError, printable
from splitmix.core.inputs import Kind
from splitmix.core.width import Width
from splitmix.flower.wire import Member, pack_query, unpack_member

log = logging.getLogger(__name__)
POLL = 0.5  # seconds between two looks for replies
LOOK = 3.0  # seconds between two looks at who is still there
AFTER = 60.0  # seconds for which the link keeps a message after we no longer wait for it
MORE = 10  # times as many classes or images as is usual: nobody has these
LOST = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}


@dataclass(frozen=True)
class Errand:
    """What a node is to be asked, in a message of its own."""

    node: int
    kind: str  # query, train or evaluate
    content: RecordDict
    group: str = ""


@dataclass(frozen=True)
class Enquiry:
    """A node was asked who it is, some time ago; perhaps because a rival says that it is the same client."""

    node: int
    since: float
    rival: tuple[int, Member] | None = None


@dataclass
class Fleet:
    """The clients of a run: `members` is everyone who ever came, `nodes` where each of them was last seen.

    A client is known by its number, from 0 to below `count`. It may leave and come back as another node; who claims
    the number of one that is there takes its place only if that one misses a deadline. What images are like, most of
    those say who are there at the beginning; who says otherwise is not used.
    """

    grid: Grid
    agreed: str  # the run's agreement, as text, for nodes to prepare themselves
    count: int
    atom: Width
    deadline: float = 600.0  # seconds until an answer is late
    note: Callable[[str], None] = log.warning
    members: dict[int, Member] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    image: tuple[int, ...] = ()  # of those who were there at the beginning, as are the next; empty: it was not yet
    classes: int = 0
    class_names: tuple[str, ...] = ()
    kind: Kind = "image"
    budgets: Collection[Width] = ()  # what the run was begun with; empty: it was not yet
    _asked: dict[str, Enquiry] = field(default_factory=dict, init=False)  # by message
    _refused: set[int] = field(default_factory=set, init=False)
    _why: str = field(default="", init=False)  # the last was

    def gather(self, wait: float) -> None:
        """Wait so many seconds for clients to connect, and for who did to say who it is; somebody must have."""
        self.refresh()  # who is there now has time to answer, however short the wait
        end = monotonic() + wait
        while self.refresh() < self.count and (monotonic() < end or self._asked_before(end)):
            if not self.nodes and len(self._refused) >= self.count:
                break
            sleep(POLL)
        if not self.nodes and self._refused:
            raise UserError(f"no node can be used: {self._why}")
        if not self.nodes:
            raise UserError(
                f"{count} nodes are connected, but none said within {self.deadline:.0f} s who it is; look at their logs"
                if (count := len(self.there()))
                else f"no node came within {wait:.0f} s; start them, and look at their logs if they are running"
            )
        if len(self.nodes) < self.count:
            absent = [str(client) for client in range(self.count) if client not in self.nodes]
            self.note(f"begun without client {', '.join(absent)}: not connected within {wait:.0f} s")
        self._settle()

    def refresh(self) -> int:
        """Look who is there and ask newcomers who they are, without waiting; returns how many clients have a node."""
        there, busy = self.there(), {asked.node for asked in self._asked.values()}
        waiting = {asked.rival[0] for asked in self._asked.values() if asked.rival}
        for node in sorted(there - {*self.nodes.values(), *self._refused, *busy, *waiting}):
            self._ask(node)
        for key, reply in self._pulled(list(self._asked)):
            asked = self._asked.pop(key, None)
            if asked is not None:
                self._hear(asked, reply, there)
        for key, asked in list(self._asked.items()):
            if asked.node not in there or monotonic() > asked.since + self.deadline:
                del self._asked[key]
                if asked.rival:
                    self._admit(*asked.rival)
        return len(self.nodes)

    def there(self) -> set[int]:
        """The nodes that are connected now."""
        return set(self.grid.get_node_ids())

    def exchange(self, errands: Iterable[tuple[int, Errand]]) -> Iterator[tuple[int, RecordDict | str]]:
        """Send errands, each with its place; each comes back once: what was replied, or why nothing was."""
        pending: dict[str, tuple[int, int]] = {}  # place and node, by message
        for place, errand in errands:  # only now is it made, and only one is in memory at a time
            if key := self._post(errand):
                pending[key] = place, errand.node
            else:
                yield place, "not connected"
        end, look = monotonic() + self.deadline, monotonic() + LOOK
        while pending:
            began, last = monotonic(), len(pending)
            for key, reply in self._pulled(list(pending)):
                arrived = pending.pop(key, None)
                if arrived is not None:  # else it is a second reply
                    yield arrived[0], content_of(reply)
            pause = max(POLL, monotonic() - began) if len(pending) == last else POLL  # many are not asked without end
            if monotonic() > look:
                look, there = monotonic() + LOOK, self.there()
                for key in [key for key, (_, node) in pending.items() if node not in there]:
                    yield pending.pop(key)[0], "died"
            if monotonic() > end:
                break
            sleep(pause if pending else 0)
        for place, _ in pending.values():
            yield place, "late"

    def _asked_before(self, moment: float) -> bool:
        """Whether a node that was asked by then may still say who it is."""
        return any(asked.since < moment for asked in self._asked.values())

    def _pulled(self, keys: Iterable[str]) -> Iterator[tuple[str, Message | Exception]]:
        """The replies that are there, asked for one by one: a message that cannot be read takes no other with it."""
        for key in keys:
            try:
                yield from ((key, reply) for reply in self.grid.pull_messages([key]))
            except Exception as error:  # if it is the link that failed, the next look at who is there will tell
                yield key, error

    def _post(self, errand: Errand) -> str | None:
        """Hand a message to the link; None if it knows no such node."""
        message = Message(errand.content, errand.node, errand.kind, ttl=self.deadline + AFTER, group_id=errand.group)
        return next(iter(self.grid.push_messages([message])), None) or None

    def _ask(self, node: int, rival: tuple[int, Member] | None = None) -> None:
        if key := self._post(Errand(node, "query", pack_query(self.agreed))):
            self._asked[key] = Enquiry(node, monotonic(), rival)

    def _hear(self, asked: Enquiry, reply: Message | Exception, there: set[int]) -> None:
        """A node has said who it is, or the link says in its place that it is away."""
        if isinstance(reply, Message) and not reply.has_content() and reply.error.code in LOST:
            return self._admit(*asked.rival) if asked.rival else None  # if it comes back, it is asked anew
        if asked.rival:  # the one whose place was claimed is alive
            return self._refuse(asked.rival[0], f"client {asked.rival[1].client} is connected already")
        said = content_of(reply)
        try:
            member = said if isinstance(said, str) else unpack_member(said, self.count)
        except Exception as error:  # whatever a stranger's message raises is about that message alone
            member = str(error) or type(error).__name__
        if isinstance(member, str):
            return self._refuse(asked.node, member)
        before = self.nodes.get(member.client)
        if before is not None and before in there:
            return self._ask(before, rival=(asked.node, member))
        return self._admit(asked.node, member)

    def _settle(self) -> None:
        """The run begins: what most say of their images holds for all, and nobody has many more classes than others."""
        crowd = [self.members[client] for client in sorted(self.members)]
        self.image = Counter(member.image for member in crowd).most_common(1)[0][0]
        alike = [member for member in crowd if member.image == self.image]
        self.classes = MORE * median_low([member.classes for member in alike])
        self.kind = Counter(member.kind for member in alike).most_common(1)[0][0]
        named = Counter(member.class_names for member in alike if member.class_names)
        self.class_names = named.most_common(1)[0][0] if named else ()
        for member in crowd:
            if why := self._unfit(member):
                del self.members[member.client]
                self._refuse(self.nodes.pop(member.client, 0), why)
        self.classes = max(member.classes for member in self.members.values())

    def _unfit(self, member: Member) -> str | None:
        """Why a client cannot take part in a run that has begun."""
        if member.image != self.image:
            return f"its images are {member.image}, those of the others {self.image}"
        if member.kind != self.kind:
            return f"it has {member.kind}, the others {self.kind}"
        if member.class_names and self.class_names and member.class_names != self.class_names:
            own, theirs = (", ".join(names)[:60] for names in (member.class_names, self.class_names))
            return f"its classes are {own}, those of the others {theirs}"
        if member.classes > self.classes:
            return f"its labels need {member.classes} classes, the run began with {self.classes} at most"
        return None

    def _admit(self, node: int, member: Member) -> None:
        """Take a node in as a client, with a budget that the run knows, unless it does not fit the others."""
        if self.image and (why := self._unfit(member)):
            return self._refuse(node, why)
        if member.budget is not None:
            known = self.budgets or {self.atom * int(member.budget / self.atom)}
            fitting = [budget for budget in known if 0 < budget <= member.budget]
            if not fitting:
                least = min(self.budgets or {self.atom})
                return self._refuse(node, f"its budget is {member.budget}, the run needs {least} or more")
            member = replace(member, budget=max(fitting))
        self._refused |= {self.nodes[member.client]} if member.client in self.nodes else set()  # a ghost by now
        self.members[member.client], self.nodes[member.client] = member, node
        return None

    def _refuse(self, node: int, why: str) -> None:
        self._refused.add(node)
        self._why = printable(why[:300])
        self.note(f"a node is not used: {self._why}")


def content_of(reply: Message | Exception) -> RecordDict | str:
    """What a node replied, or why there is nothing of it."""
    if isinstance(reply, Exception):
        return f"its message cannot be read ({printable(str(reply) or type(reply).__name__)[:200]})"
    return reply.content if reply.has_content() else complaint(reply)


def complaint(reply: Message) -> str:
    """Why a node could not do what it was asked, in a few words."""
    words = " ".join((reply.error.reason or "").split()) or "failed"
    said = words.partition(":<'")[2].removesuffix("'>")  # Flower writes <class 'X'>:<'reason'>
    return printable(said or words)[:300]
