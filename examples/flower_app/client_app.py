"""Split-Mix on Flower, a client: say what you are, and do jobs on images that never leave you."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from splitmix.core.client import execute
from splitmix.core.reproducible import one_thread
from splitmix.flower.node import SOURCES, equip, introduce
from splitmix.flower.wire import pack_answer, pack_member, unpack_job, unpack_query

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Client number, budget, number of images and classes."""
    member = introduce(unpack_query(message.content), about(context))
    return Message(pack_member(member), reply_to=message)


@app.train()
@app.evaluate()
def work(message: Message, context: Context) -> Message:
    """Train the bases of a job and send them back, or count right answers."""
    job, bases, agreed = unpack_job(message.content)
    tools = equip(agreed, about(context))
    with one_thread():  # the same bits on every machine
        answer = execute(job, tools.net, bases, tools.data, tools.objective, {})
    return Message(pack_answer(job, answer), reply_to=message)


def about(context: Context) -> dict[str, object]:
    """The node's configuration; if it names no images, it gets its share of the task."""
    node = dict(context.node_config)
    return node if any(key in node for key in SOURCES) else {**node, "task": context.run_config["task"]}
