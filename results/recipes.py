"""What the recommended recipe rests on: learning rates, rescaled initialisation, a floor under the cosine, the order of
bases and the norm statistics, all judged on validation images.

python results/recipes.py results/recipes.md RESCALED PLAIN FLOOR RUN [RUN ...]

The first three are folders of `splitmix tune`, the others finished runs that differ only in their seed.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from splitmix.compare.statistics import clear_lead
from splitmix.compare.tuning import Tuning, read_tuning
from splitmix.core.files import write_atomically
from splitmix.core.method import with_order
from splitmix.core.score import order_bases, score
from splitmix.core.width import Width
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.finish import NORM_TEXT, served_with, stored_outcome
from splitmix.runs.setup import Setup, set_up

WIDTHS = tuple(Width(text) for text in ("1/8", "1/4", "1/2", "1"))
Scores = dict[str, list[float]]  # what was chosen -> accuracy at each width


def main() -> None:
    page, *folders = map(Path, sys.argv[1:])
    studies = [read_tuning(folder / "tuning.json") for folder in folders[:3]]
    runs = [examined(folder) for folder in folders[3:]]
    write_atomically(page, ("\n".join(lines(studies, runs)) + "\n").encode())
    rows = {"trials": [trial for study in studies for trial in study["trials"]], "runs": runs}
    write_atomically(page.with_suffix(".json"), (json.dumps(rows, indent=1) + "\n").encode())


def examined(folder: Path) -> dict[str, Any]:
    """Validation accuracy of a finished run by order of bases and by norm statistics."""
    outcome = stored_outcome(folder)
    setup = set_up(make_config(read_toml(folder / "config.toml")))
    method = with_order(setup.method, outcome.order)
    norms = {}
    for norm in ("batch", "client", "global"):
        weights, question = served_with(setup, outcome.weights, norm, "val")
        with setup.engine(workers=2) as engine:
            mixes = {width: method.compose(width) for width in WIDTHS}
            rows = score(engine, weights, mixes, setup.domains, question)
        norms[norm] = [row.accuracy for row in rows]
    return {"seed": setup.config.seed, "weights": outcome.result["weights_sha256"], "norms": norms} | {
        "orders": crossed(setup, outcome.weights)
    }


def crossed(setup: Setup, stored: Any) -> Scores:
    """Orders found on one half of each client's validation images and scored on the other half, both ways."""
    weights, question = served_with(setup, stored, "client", "val")
    halves = [halved(setup, 0), halved(setup, 1)]
    found: dict[str, list[list[float]]] = {"natural": [], "validation": [], "greedy": []}
    for chosen_on, scored_on in (halves, halves[::-1]):
        parts = setup.method.compose(Width(1))
        orders = {"natural": tuple(part.base for part in parts)}
        with chosen_on.engine(workers=2) as engine:
            for name in ("validation", "greedy"):
                clients = tuple(setup.domains)
                orders[name] = order_bases(engine, weights, parts, clients, question, greedy=name == "greedy")
        with scored_on.engine(workers=2) as engine:
            for name, order in orders.items():
                mixes = {width: with_order(setup.method, order).compose(width) for width in WIDTHS}
                found[name].append([row.accuracy for row in score(engine, weights, mixes, setup.domains, question)])
    return {name: [fmean(pair) for pair in zip(*both, strict=True)] for name, both in found.items()}


def halved(setup: Setup, half: int) -> Setup:
    task = setup.clients().task
    return replace(setup, task=replace(task, shards=tuple(replace(s, val=s.val[half::2]) for s in task.shards)))


def lines(studies: Sequence[Tuning], runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rescaled, plain, floor = studies
    yield "# What the recommended recipe rests on\n"
    yield "Five-domain digits, Split-Mix, budgets 1/8 1/4 1/2 1 in order. Accuracy in % on **validation** images:"
    yield f"the mean over clients, then over these widths; ± is the standard deviation over seeds {seeds(rescaled)}.\n"
    yield "## Learning rate and rescaled initialisation\n"
    yield f"{rescaled['rounds']} rounds, {rescaled['settings']['cohort']} of 50 clients a round,"
    yield "norms calibrated by each client.\n"
    yield "```sh\n" + "\n".join(study["command"] for study in studies) + "\n```\n"
    yield "| rate, rescaled | accuracy | 8 x the rate, not rescaled | accuracy | difference |"
    yield "|---:|---:|---:|---:|---:|"
    for low, high in zip(rescaled["rates"], plain["rates"], strict=True):
        on, off = values(rescaled, low), values(plain, high)
        sure = beyond_chance(on, off)
        change = f"{100 * (fmean(off) - fmean(on)):+.1f}{'' if sure else ' (within chance)'}"
        yield f"| {low:g} | {spread(on)} | {high:g} | {spread(off)} | {change} |"
    best = [max((values(study, rate) for rate in study["rates"]), key=fmean) for study in (rescaled, plain)]
    sure = beyond_chance(*best)
    yield f"\nEach at its best rate: rescaled {spread(best[0])}, not rescaled {spread(best[1])};"
    yield f"the difference is {'beyond' if sure else 'within'} chance (Welch's t test, two-sided, 5 %).\n"
    yield "## A floor under the cosine\n"
    yield "| rate | down to 0 | down to a tenth of the rate |"
    yield "|---:|---:|---:|"
    for rate in floor["rates"]:
        yield f"| {rate:g} | {spread(values(rescaled, rate))} | {spread(values(floor, rate))} |"
    yield "\n## Order of bases\n"
    yield "Finished runs of 300 rounds at lr 0.1 with all 50 clients; orders found on one half of each client's"
    yield "validation images and scored on the other, both ways; norms calibrated by each client.\n"
    yield from table("order", [run["orders"] for run in runs], str)
    yield "\n## Norm statistics\n"
    yield "The same runs, on all validation images.\n"
    yield from table("norm statistics", [run["norms"] for run in runs], NORM_TEXT.__getitem__)
    yield "\n## What follows\n"
    yield from verdicts(studies, runs)


def verdicts(studies: Sequence[Tuning], runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the recipe takes from it: only what is beyond chance."""
    rescaled, plain, floor = studies
    pairs = zip(rescaled["rates"], plain["rates"], strict=True)
    alike = all(not beyond_chance(values(rescaled, low), values(plain, high)) for low, high in pairs)
    best = [max((values(study, rate) for rate in study["rates"]), key=fmean) for study in (rescaled, plain)]
    gain = "remains" if beyond_chance(*best) else "does not remain"
    yield f"- **Learning rate**: {rate_of(rescaled):g} is the best of {listed(rescaled['rates'])}; recommended."
    same = "is" if alike else "is not"
    yield f"- **Rescaled initialisation** {same} the same as 8 times the rate without it. With the best of"
    yield f"  three rates for each, a gain beyond chance {gain}. It costs nothing and stays on."
    for rate in floor["rates"]:
        lead = 100 * (fmean(values(floor, rate)) - fmean(values(rescaled, rate)))
        sure = beyond_chance(values(floor, rate), values(rescaled, rate))
        verdict = "beyond chance" if sure else "within chance, so it is left out"
        yield f"- **A floor** under the cosine changes {lead:+.1f} points at rate {rate:g}: {verdict}."
    orders = [[run["orders"][name][0] for run in runs] for name in ("greedy", "natural")]
    lead, sure = 100 * (fmean(orders[0]) - fmean(orders[1])), beyond_chance(*orders)
    verdict = "beyond chance" if sure else "within chance"
    yield f"- **Greedy order** changes {lead:+.1f} points at width 1/8: {verdict}. It takes one"
    yield "  pass over the validation images and harms nothing; the default keeps it."
    norms = [[fmean(run["norms"][name]) for run in runs] for name in ("client", "global")]
    lead, sure = 100 * (fmean(norms[0]) - fmean(norms[1])), beyond_chance(*norms)
    yield f"- **Norms calibrated by each client** are {lead:+.1f} points from one set for all:"
    yield f"  {'beyond' if sure else 'within'} chance; recommended."


def beyond_chance(one: Sequence[float], other: Sequence[float]) -> bool:
    return clear_lead(one, other) or clear_lead(other, one)


def rate_of(study: Tuning) -> float:
    return max(study["rates"], key=lambda rate: fmean(values(study, rate)))


def listed(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def table(what: str, found: Sequence[Scores], name: Any) -> Iterator[str]:
    yield f"| {what} | " + " | ".join(f"width {width}" for width in WIDTHS) + " |"
    yield "|---|" + "---:|" * len(WIDTHS)
    for key in found[0]:
        cells = (spread([scores[key][i] for scores in found]) for i in range(len(WIDTHS)))
        yield f"| {name(key)} | {' | '.join(cells)} |"


def values(study: Tuning, rate: float) -> list[float]:
    return [trial["accuracy"] for trial in study["trials"] if trial["lr"] == rate]


def seeds(study: Tuning) -> str:
    return ", ".join(map(str, study["seeds"]))


def spread(found: Iterable[float]) -> str:
    """Mean and standard deviation in per cent."""
    numbers = list(found)
    return f"{100 * fmean(numbers):.1f} ± {100 * stdev(numbers):.1f}"


if __name__ == "__main__":
    main()
