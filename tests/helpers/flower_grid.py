"""A grid without processes: nodes that answer a client app at once, and can be told to be away, slow or rude."""

from collections.abc import Callable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

RUN = 7


class LocalGrid:
    """Nodes of one process; `tamper` may change or withhold a reply."""

    def __init__(self, app: ClientApp, nodes: dict[int, dict]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self.app, self.nodes = app, dict(nodes)
        self.sent: list[tuple[int, RecordDict]] = []
        self.replies: dict[str, Message] = {}
        self.tamper: Callable[[int, Message], Message | None] = lambda node, reply: reply

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def pull_messages(self, keys):
        return [self.replies.pop(key) for key in keys if key in self.replies]

    def _push(self, message):
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return None
        key = f"message-{len(self.sent)}"
        message.metadata.__dict__["_message_id"] = key
        self.sent.append((node, message.content))
        try:
            context = Context(RUN, node, self.nodes[node], RecordDict(), {})
            reply = self.app(message, context)
        except Exception as error:  # as Flower does
            reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        reply = self.tamper(node, reply)
        if reply is not None:
            self.replies[key] = reply
        return key
