"""Does robustness come from hidden gradients? Three things that must hold if it does not (Athalye et al., ICML 2018).

A net whose gradients lead nowhere looks robust to attacks that follow them. Then fewer steps may do as well as many,
another net's gradients may do better than its own, and even a large change may fail.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.score import Mix
from splitmix.core.score import ask_all
from splitmix.core.score import mean_accuracy
from splitmix.core.types import Question
from splitmix.core.width import Width
from splitmix.runs.evaluate import FinishedRun
from splitmix.runs.grid import Wish
from splitmix.runs.grid import check_dials
from splitmix.runs.records import printable
from splitmix.report.tables import Column
from splitmix.report.tables import Table
from splitmix.report.tables import percent

LOOKED_AT = 512  # images over all clients
STEPS = (1, 7, 20, 50)
FAR = PGD(eps=128 / 255, steps=50, step=16 / 255)  # enough to turn any image grey
SLACK = 0.01  # of accuracy: less is chance
Findings = dict[str, Any]  # as in masking.json


@dataclass(frozen=True)
class Check:
    """One law at one width and dial: what is asked, and whether the accuracies found obey it."""

    law: str
    width: Width
    robust: float
    asked: tuple[Question, ...]
    labels: tuple[str, ...]  # of the questions
    holds: Callable[[Sequence[float]], bool]


def check_masking(
    run: FinishedRun,
    wish: Wish,
    *,
    workers: int,
    begin: Callable[[int], None] = lambda total: None,
    on_answer: Callable[[], None] = lambda: None,
) -> Findings:
    """Check the laws at the narrowest and widest width and at three dials, or at those that are wished for."""
    served = run.mixes(wish.widths)
    ends = list(dict.fromkeys((min(served), max(served))))
    mixes = served if wish.widths else {width: served[width] for width in ends}
    dials = check_dials(run, wish.dials or ((0.0, 0.5, 1.0) if run.setup.dial else ()))
    clients = tuple(run.setup.domains)
    question = replace(run.question, images=wish.images or max(1, LOOKED_AT // len(clients)), seed=wish.seed)
    attack = wish.attack or PGD()
    if not isinstance(attack, PGD):
        raise UserError(f"steps are counted of PGD, not of {attack.name}; give --attack pgd7, or one like it")
    checks = list(planned(mixes, dials, question, attack, run.setup.task.classes))
    asked = [((mixes[check.width],), one) for check in checks for one in check.asked]
    begin(len(asked) * len(clients))
    with run.engine(workers) as engine:
        tallies = ask_all(engine, run.weights, asked, clients, on_answer=on_answer)
    means = iter([mean_accuracy(found, 0) for found in tallies])
    rows = [_row(check, [next(means) for _ in check.asked]) for check in checks]
    return {
        "schema": 1,
        "split": question.split,
        "norm": run.norm,
        "clients": len(tallies[0]),
        "samples": sum(tally.samples for tally in tallies[0]),
        "attack": replace(attack, steps=20, restarts=1).name,
        "slack": SLACK,
        "weights_sha256": run.result["weights_sha256"],
        "rows": rows,
    }


def planned(
    mixes: dict[Width, Mix], dials: Sequence[float], question: Question, attack: PGD, classes: int
) -> Iterator[Check]:
    """All checks: for each width and dial the steps, each way of transfer, and the large change."""
    for width in mixes:
        for dial in dials:
            here = replace(question, robust=dial)
            walk = replace(attack, restarts=1, random_start=False)
            walks = tuple(replace(here, attack=replace(walk, steps=steps)) for steps in STEPS)
            labels = tuple(f"{steps} step{'s' * (steps > 1)}" for steps in STEPS)
            yield Check("more steps never help the defender", width, dial, walks, labels, falling)
            for other, there, name in _surrogates(mixes, width, dial, dials):
                white = replace(here, attack=replace(attack, steps=20, restarts=1))
                pair = (white, replace(white, surrogate=(mixes[other], there)))
                labels = ("white box", f"made on {name}")
                yield Check("transfer never beats the white box", width, dial, pair, labels, white_is_strongest)
            far = (replace(here, attack=FAR),)
            law = "a large change leaves no more than chance"
            yield Check(law, width, dial, far, ("eps 128/255",), at_most(1 / classes))


def falling(accuracies: Sequence[float]) -> bool:
    """No accuracy is above an earlier one, but for chance.

    >>> falling([0.7, 0.5, 0.505]), falling([0.7, 0.5, 0.52])
    (True, False)
    """
    return all(later <= earlier + SLACK for earlier, later in pairwise(accuracies))


def white_is_strongest(accuracies: Sequence[float]) -> bool:
    """The first attack, which knows the model, leaves the least."""
    return accuracies[0] <= min(accuracies) + SLACK


def at_most(chance: float) -> Callable[[Sequence[float]], bool]:
    return lambda accuracies: max(accuracies) <= chance + SLACK


def masking_table(findings: Findings) -> Table:
    """A row for each check, with its verdict."""
    columns = [
        Column("law", "what must hold", number=False),
        Column("width", "width"),
        Column("robust", "dial", lambda dial: f"{dial:g}"),
        Column("found", "accuracy %", number=False),
        Column("holds", "verdict", lambda holds: "holds" if holds else "BROKEN", number=False),
    ]
    rows = [[row["law"], row["width"], row["robust"], "; ".join(_found(row)), row["holds"]] for row in findings["rows"]]
    broken = sum(not row["holds"] for row in findings["rows"])
    verdict = f"{broken} of {len(rows)} are broken: do not trust the robust accuracies." if broken else "All hold."
    caption = (
        f"{verdict} Means over {findings['clients']} clients, {findings['samples']:,} {findings['split']} images; "
        f"a difference of up to {100 * findings['slack']:g} point counts as chance. Transfer: {findings['attack']}; "
        "steps likewise, from the image. Such checks can find hidden gradients, but not prove that there are none."
    )
    return Table("Checks for hidden gradients", columns, rows, caption)


def write_masking(path: Path, findings: Findings) -> None:
    write_atomically(path, (json.dumps(findings, indent=1) + "\n").encode())


def read_masking(path: Path) -> Findings | None:
    """The checks stored with a run, if it has any."""
    if not path.exists():
        return None
    try:
        findings = printable(json.loads(path.read_text()))
        if findings["schema"] != 1:
            raise ValueError(f"its schema is {findings['schema']!r}, not 1")
        masking_table(findings).cells()
        return dict(findings)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"'{path}' cannot be read ({error}); make it again with: splitmix eval --masking") from None


def _surrogates(
    mixes: dict[Width, Mix], width: Width, dial: float, dials: Sequence[float]
) -> Iterator[tuple[Width, float, str]]:
    """Other models of the same run: the far end of the dial, and another width."""
    far = max(dials, key=lambda other: abs(other - dial))
    if far != dial:
        yield width, far, f"dial {far:g}"
    for other in [other for other in mixes if other != width][-1:]:
        yield other, dial, f"width {other}"


def _row(check: Check, accuracies: Sequence[float]) -> dict[str, Any]:
    return {
        "law": check.law,
        "width": str(check.width),
        "robust": check.robust,
        "labels": list(check.labels),
        "attacks": [question.attack.name for question in check.asked if question.attack],
        "accuracies": list(accuracies),
        "holds": check.holds(accuracies),
    }


def _found(row: dict[str, Any]) -> list[str]:
    return [f"{label} {percent(value)}" for label, value in zip(row["labels"], row["accuracies"], strict=True)]
