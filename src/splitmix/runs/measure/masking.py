"""Does robustness come from hidden gradients? Three things that must hold if it does not (Athalye et al., ICML 2018).

A net whose gradients lead nowhere looks robust to attacks that follow them. Then fewer steps may do as well as many,
another net's gradients may do better than its own, and even a large change may fail.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError
from splitmix.core.score import Mix, ask_all, mean_accuracy
from splitmix.core.types import Question
from splitmix.core.width import Width
from splitmix.runs.measure.evaluate import FinishedRun
from splitmix.runs.measure.grid import DialValue, Sweep, check_dials
from splitmix.runs.records import Count, WidthText, lenient, read_record

LOOKED_AT = 512  # images over all clients
STEPS = (1, 7, 20, 50)
FAR = PGD(eps=128 / 255, steps=50, step=16 / 255)  # enough to turn any image grey
SLACK = 0.01  # of accuracy: less is chance


def _one_label_each(row: "MaskingRow") -> "MaskingRow":
    if len(row["labels"]) != len(row["accuracies"]):
        raise ValueError("there must be one label for each accuracy")
    return row


@lenient
class MaskingRow(TypedDict):
    """One law at one width and dial, with the accuracy that each attack leaves."""

    law: str
    width: WidthText
    robust: DialValue
    labels: list[str]
    attacks: NotRequired[list[str]]
    accuracies: list[float]
    holds: bool


@lenient
class MaskingRecord(TypedDict):
    """The content of `masking.json`."""

    schema: int
    split: str
    norm: NotRequired[str]
    clients: Count
    samples: Count
    attack: str
    slack: float
    weights_sha256: NotRequired[str]
    rows: list[Annotated[MaskingRow, AfterValidator(_one_label_each)]]


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
    sweep: Sweep,
    *,
    workers: int,
    begin: Callable[[int], None] = lambda total: None,
    on_answer: Callable[[], None] = lambda: None,
) -> MaskingRecord:
    """Check the laws at the narrowest and widest width and at three dials, or at those that are asked for."""
    served = run.setup.mixes(sweep.widths)
    ends = list(dict.fromkeys((min(served), max(served))))
    mixes = served if sweep.widths else {width: served[width] for width in ends}
    dials = check_dials(run, sweep.dials or ((0.0, 0.5, 1.0) if run.setup.dial else ()))
    clients = tuple(run.setup.domains)
    question = replace(run.question, images=sweep.images or max(1, LOOKED_AT // len(clients)), seed=sweep.seed)
    attack = sweep.attack or PGD()
    if not isinstance(attack, PGD):
        raise UserError(f"steps are counted of PGD, not of {attack.name}; give --attack pgd7, or one like it")
    checks = list(planned(mixes, dials, question, attack, run.setup.task.classes))
    asked = [((mixes[check.width],), one) for check in checks for one in check.asked]
    begin(len(asked) * len(clients))
    with run.engine(workers) as engine:
        tallies = ask_all(engine, run.weights, asked, clients, on_answer=on_answer)
    means = iter([mean_accuracy([tally.accuracy(0) for tally in found]) for found in tallies])
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


def read_masking(path: Path) -> MaskingRecord | None:
    """The checks stored with a run, if it has any."""
    if not path.exists():
        return None
    return read_record(
        path, MaskingRecord, damaged="cannot be read", remedy="make it again with: splitmix eval --masking"
    )


def _surrogates(
    mixes: dict[Width, Mix], width: Width, dial: float, dials: Sequence[float]
) -> Iterator[tuple[Width, float, str]]:
    """Other models of the same run: the far end of the dial, and another width."""
    far = max(dials, key=lambda other: abs(other - dial))
    if far != dial:
        yield width, far, f"dial {far:g}"
    for other in [other for other in mixes if other != width][-1:]:
        yield other, dial, f"width {other}"


def _row(check: Check, accuracies: Sequence[float]) -> MaskingRow:
    return {
        "law": check.law,
        "width": str(check.width),
        "robust": check.robust,
        "labels": list(check.labels),
        "attacks": [question.attack.name for question in check.asked if question.attack],
        "accuracies": list(accuracies),
        "holds": check.holds(accuracies),
    }
