"""Test pictures of a run's task that its bundle may bring along."""

from collections.abc import Sequence

import numpy as np

from splitmix.core.errors import UserError
from splitmix.core.inputs import made
from splitmix.data.task import Task
from splitmix.runtime.about.examples import MOST_CLASSES, MOST_EACH, MOST_ROWS, Examples, example_row


def choose_examples(task: Task, names: Sequence[str], each: int) -> Examples:
    """The first test pictures of each class, or of ten of them, in every domain: nobody picks them.

    They are the data of somebody: a bundle has them only if it is asked to.
    """
    if not 1 <= each <= MOST_EACH:
        raise UserError(f"{each} examples of a class were asked for; give 1 to {MOST_EACH}")
    if task.kind != "image" or len(task.image) != 3 or task.image[2] not in (1, 3):
        raise UserError(
            "examples are pictures with one or three colours, which this task does not have; leave them out"
        )
    shown = np.linspace(0, len(names) - 1, min(len(names), MOST_CLASSES)).round().astype(int)
    rows = []
    for number, domain in enumerate(task.domains[:MOST_ROWS]):
        here = np.flatnonzero(task.test.domain == number)
        labels = task.test.labels[here]
        places = np.concatenate([here[labels == label][:each] for label in shown])
        of = [names[label] for label in task.test.labels[places]]
        rows.append(example_row(domain, made(task.test.images, places), of))
    return Examples(rows=[row for row in rows if row.pictures])
