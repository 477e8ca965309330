"""Accuracy of every width, from the tallies of the clients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import torch

from splitmix.core.admission import bounded_statistics, plausible, valid_moments, valid_tally
from splitmix.core.errors import UserError
from splitmix.core.method import Engine
from splitmix.core.net import Net, from_moments, to_moments
from splitmix.core.objective import Attack
from splitmix.core.parts import AGGREGATES, middle
from splitmix.core.rounds import Federation
from splitmix.core.types import (
    Calibrate,
    Layout,
    Missing,
    Part,
    Question,
    Score,
    Tally,
    Update,
    Weights,
    at_width,
    repeated,
)
from splitmix.core.width import Width

Mix = tuple[Part, ...]
MORE = 8  # times, at most, that bases of a mix count beyond once each


@dataclass(frozen=True)
class WidthScore:
    """Accuracy at one width: the mean over clients (the paper's), over all samples, by domain, and of each client."""

    width: Width
    bases: int
    accuracy: float
    pooled: float
    domains: Mapping[str, float]
    clients: tuple[float, ...]


def score(
    engine: Engine, weights: Weights, mixes: Mapping[Width, Mix], domains: Mapping[int, str], question: Question
) -> list[WidthScore]:
    """Score all widths in one pass over the bases; `domains` names each client that is asked, and its domain."""
    tallies = ask(engine, weights, tuple(mixes.values()), tuple(domains), question)
    return [_row(width, len(set(mix)), i, tallies, domains) for i, (width, mix) in enumerate(mixes.items())]


def ask(
    engine: Engine, weights: Weights, mixes: Sequence[Mix], clients: Sequence[int], question: Question
) -> list[Tally]:
    """Right answers of every mix on every client that has images in the split."""
    return ask_all(engine, weights, [(mixes, question)], clients)[0]


def ask_all(
    engine: Engine,
    weights: Weights,
    asked: Sequence[tuple[Sequence[Mix], Question]],
    clients: Sequence[int],
    *,
    on_answer: Callable[[], None] = lambda: None,
) -> list[list[Tally]]:
    """The same for several questions, each about mixes of its own; no client waits until all have answered one."""
    jobs = [Score(client, tuple(mixes), question) for mixes, question in asked for client in clients]
    found: list[list[Tally]] = [[] for _ in asked]
    heard = False
    for i, (job, answer) in enumerate(zip(jobs, engine.run(weights, jobs), strict=True)):
        on_answer()
        heard = heard or not isinstance(answer, Missing)
        if valid_tally(job, answer) and answer.samples:
            found[i // len(clients)].append(answer)
    if jobs and not heard:
        raise UserError(
            "no client answered in time when it was asked to score; see who is there, and go on with --resume"
        )
    for (_, question), tallies in zip(asked, found, strict=True):
        if not tallies:
            raise UserError(
                f"no client that answered has enough {question.split} images to be scored; hold out more of them, "
                "or use fewer clients"
            )
    return found


def mean_accuracy(accuracies: Sequence[float]) -> float:
    """Unweighted mean over clients."""
    return sum(accuracies) / len(accuracies)


def middle_accuracy(accuracies: Sequence[float]) -> float:
    """The mean without the best fifth and the worst fifth of the clients, who may be making it up."""
    return float(middle(torch.tensor(accuracies, dtype=torch.float64), AGGREGATES["trimmed"]))


def order_bases(
    engine: Engine,
    weights: Weights,
    parts: Mix,
    clients: Sequence[int],
    question: Question,
    *,
    greedy: bool,
    overall: Callable[[Sequence[float]], float] = mean_accuracy,
) -> tuple[int, ...]:
    """Base numbers from first to last to be mixed, by validation accuracy.

    Greedy: the base that helps most comes next. Otherwise by the accuracy of each base alone (the paper's option).
    Only accuracies leave the clients, of which `overall` makes one.
    """
    asked = partial(_accuracies, engine, weights, clients, question, overall)
    if not greedy:
        alone = asked([(part,) for part in parts])
        return tuple(part.base for part in sorted(parts, key=lambda part: -alone[(part,)]))
    few = len(parts) <= 8  # then all subsets are counted in one pass over the images
    found = asked([mix for size in range(1, len(parts)) for mix in combinations(parts, size)]) if few else {}
    chosen: Mix = ()
    while len(chosen) < len(parts) - 1:
        wider = {part: tuple(p for p in parts if p in (*chosen, part)) for part in parts if part not in chosen}
        found = found if few else asked(tuple(wider.values()))
        chosen = (*chosen, max(wider, key=lambda part: found[wider[part]]))
    return tuple(part.base for part in (*chosen, *(part for part in parts if part not in chosen)))


def fit_times(
    engine: Engine,
    weights: Weights,
    mixes: Mapping[Width, Mix],
    clients: Sequence[int],
    question: Question,
    *,
    overall: Callable[[Sequence[float]], float] = mean_accuracy,
) -> dict[Width, tuple[int, ...]]:
    """How many times each base counts in a mix, for those widths at which that is better than once each.

    Ensemble selection (Caruana et al., ICML 2004) from equal shares on: the base that helps most counts once more,
    until none helps. One half of the images finds the shares, the other half decides whether they are used.
    """
    first, second = (
        partial(_accuracies, engine, weights, clients, replace(question, half=half), overall) for half in (1, 2)
    )
    times = {width: (1,) * len(mix) for width, mix in mixes.items() if len(mix) > 1}
    equal, growing = dict(times), set(times)
    for _ in range(MORE):
        tries = {width: [times[width], *_one_more(times[width])] for width in times if width in growing}
        found = _tried(first, mixes, tries)
        for width, counts in tries.items():
            best = max(counts, key=lambda count: found[width, count])  # of equals the first, which is as it was
            growing = growing if best != times[width] else growing - {width}
            times[width] = best
        if not growing:
            break
    tries = {width: [equal[width], times[width]] for width in times if times[width] != equal[width]}
    found = _tried(second, mixes, tries) if tries else {}
    return {width: fitted for width, (once, fitted) in tries.items() if found[width, fitted] > found[width, once]}


def _one_more(times: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(count + (i == base) for i, count in enumerate(times)) for base in range(len(times))]


def _tried(
    accuracies: Callable[[Sequence[Mix]], dict[Mix, float]],
    mixes: Mapping[Width, Mix],
    tries: Mapping[Width, Sequence[tuple[int, ...]]],
) -> dict[tuple[Width, tuple[int, ...]], float]:
    """The accuracy of each width with each of these times, from one pass over the images."""
    asked = {(width, times): repeated(mixes[width], times) for width, counts in tries.items() for times in counts}
    found = accuracies(list(asked.values()))
    return {key: found[mix] for key, mix in asked.items()}


def _accuracies(
    engine: Engine,
    weights: Weights,
    clients: Sequence[int],
    question: Question,
    overall: Callable[[Sequence[float]], float],
    mixes: Sequence[Mix],
) -> dict[Mix, float]:
    tallies = ask(engine, weights, mixes, clients, question)
    return {mix: overall([tally.accuracy(i) for tally in tallies]) for i, mix in enumerate(mixes)}


def calibrate(
    engine: Engine,
    net: Net,
    layout: Layout,
    weights: Weights,
    clients: Sequence[int],
    batch: int,
    noise: Attack | None = None,
    how: Federation | None = None,
) -> Weights:
    """Fixed norm statistics for all bases: each client's moments on its own training images, averaged ("post average").

    Nets that are nested in a base have statistics of their own, under the names that `at_width` gives. Those of noisy
    norms are of images that `noise` makes. Where `how` bounds updates, it bounds statistics as well.
    """
    widths = (layout.width, *layout.nested)
    parts = tuple(Part(base, width) for width in widths for base in range(layout.count))
    blank = {
        name if width == layout.width else at_width(width, name): weights[next(iter(weights))].new_zeros(
            (layout.count, *net.shapes(width)[name])
        )
        for width in widths
        for name in net.statistic_names(width)
    }
    believed, _ = plausible(engine.profiles(0), how.max_samples if how else None)
    samples = {profile.client: profile.samples for profile in believed}
    dials = (0.0,) if noise is None else (0.0, 1.0)
    jobs = [Calibrate(client, parts, batch, dials, noise) for client in clients]
    answers = (
        answer
        for job, answer in zip(jobs, engine.run(weights, jobs), strict=True)
        if valid_moments(job, answer, blank, samples.get(job.client, 0))
    )
    mean = averaged_moments(bounded(answers, how.clip) if how and how.clip else answers)
    if blank and not mean:
        raise UserError("no client gave norm statistics that can be used; see to the clients, or choose norm 'tracked'")
    return from_moments({**blank, **mean})


def bounded(answers: Iterable[Update], clip: float) -> list[Update]:
    """Moments of which none are far off; all of them are in memory at once."""
    held = list(answers)
    within = bounded_statistics([from_moments(answer.weights) for answer in held], clip)
    return [replace(answer, weights=to_moments(found)) for answer, found in zip(held, within, strict=True)]


def averaged_moments(answers: Iterable[Update]) -> Weights:
    """The mean by samples; one answer is in memory at a time."""
    mean: Weights = {}
    seen: dict[str, int] = {}
    for answer in answers:
        for name, value in answer.weights.items():
            seen[name] = seen.get(name, 0) + answer.samples
            mean[name] = torch.lerp(mean.get(name, value), value, answer.samples / seen[name])
    return mean


def _row(width: Width, bases: int, i: int, tallies: Sequence[Tally], domains: Mapping[int, str]) -> WidthScore:
    clients, by_domain = tuple(tally.accuracy(i) for tally in tallies), dict[str, list[float]]()
    for tally, accuracy in zip(tallies, clients, strict=True):
        by_domain.setdefault(domains[tally.client], []).append(accuracy)
    return WidthScore(
        width,
        bases,
        mean_accuracy(clients),
        sum(tally.correct[i] for tally in tallies) / sum(tally.samples for tally in tallies),
        {name: mean_accuracy(values) for name, values in by_domain.items()},
        clients,
    )
