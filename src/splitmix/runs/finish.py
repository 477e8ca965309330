"""The end of a run: its best round is ordered, calibrated and scored; what comes of it is stored and read back."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from splitmix import __version__
from splitmix.core.client import OwnNorms
from splitmix.core.errors import UserError, name_of
from splitmix.core.files import write_atomically
from splitmix.core.parts import cut
from splitmix.core.reproducible import one_thread
from splitmix.core.score import WidthScore, calibrate, fit_times, order_bases, score
from splitmix.core.types import Job, Part, Profile, Question, Weights, nested_width
from splitmix.core.width import parse_width
from splitmix.data.tasks import task_about
from splitmix.nets.cost import cost
from splitmix.runs.checks import samples_of
from splitmix.runs.folder import RunEngine, State, give_norms, weights_sha256
from splitmix.runs.progress import Watcher
from splitmix.runs.records import (
    Result,
    StoredClient,
    StoredScaling,
    StoredScore,
    need_finished,
    parse_record,
    write_record,
)
from splitmix.runs.setup import Setup, usual_net

NORM_TEXT = {
    "batch": "statistics of the test batch itself (batch average)",
    "client": "fixed statistics, calibrated by each client on its own training images (post average)",
    "global": "fixed statistics, one set for all clients (post average of all training images)",
    "chosen": "fixed statistics, of each client or one set for all, whichever did better on validation images",
    "tracked": "running statistics, averaged by the server",
    "local": "running statistics and affine that never leave the client",
    "none": "no statistics, as the net has no batch norm layers",
}
SCORED_NORMS = {
    "batch": ("batch", "client", "global"),
    "post": ("client", "global", "batch"),
    "tracked": ("tracked",),
    "local": ("local",),
}
TIMED = 30  # times that an image goes through a mix, to know how long one takes
STATISTICS = {"client": ("client",), "global": ("global",), "chosen": ("client", "global")}  # to choose from


@dataclass(frozen=True)
class Outcome:
    """A finished run: what `result.json` says, and the weights that it speaks of."""

    result: Result = field(repr=False)
    weights: Weights = field(repr=False)  # with statistics, so that they can serve a single image
    order: tuple[int, ...]


def finish(
    setup: Setup, engine: RunEngine, state: State, *, command: str = "", watchers: Sequence[Watcher] = ()
) -> Outcome:
    """Calibrate the best round, choose its norm statistics, order its bases, and score every width on test images."""
    began, config = perf_counter(), setup.config
    give_norms(engine, state.best_norms)
    norms = scored_norms(setup)
    engine = counted = Counted(engine, watchers, answers_to_come(setup, norms))
    measured = setup.has_statistics and "global" in norms
    weights = calibrated(setup, engine, state.best) if measured else state.best
    found = widest_accuracies(setup, engine, weights)
    norms = tuple(sorted(norms, key=lambda norm: bool(found) and norm != best_of(found)))
    order = ordered(setup, engine, weights, norms[0])
    setup = replace(setup, method=setup.method.ordered(order))
    setup = with_fitted_mixes(setup, engine, weights, norms[0]) if config.mix == "fitted" else setup
    rows = [row for norm in norms for row in scores_with(setup, engine, weights, norm)]
    counted.end()
    scores = with_costs(setup, weights, rows)
    seconds = state.seconds + perf_counter() - began
    result: Result = {
        "schema": 1,
        "task": setup.task.name,
        "data": task_about(config.task),
        "method": config.method_name,
        "net": usual_net(config, setup.task),
        "atom": config.atom,
        "objective": name_of(config.objective),
        "norm": config.norm,
        "norm_text": NORM_TEXT["none" if not setup.has_statistics else "chosen" if len(found) > 1 else norms[0]],
        "seed": config.seed,
        "rounds": config.rounds,
        "best_round": state.best_round,
        "order": config.order,
        "bases": list(order),
        "weights_sha256": weights_sha256(weights),
        "seconds": round(seconds, 1),
        "workers": engine.workers,
        "threads": 1,
        "versions": versions(),
        "command": command,
        "domains": list(setup.task.domains),
        "image": list(setup.image),
        "kind": setup.task.kind,
        "clients": client_rows(setup),
        "scores": scores,
    }
    return Outcome(with_what_few_have(result, setup, state, found), weights, order)


def with_what_few_have(result: Result, setup: Setup, state: State, found: Mapping[str, float]) -> Result:
    """The result, with what only some tasks, nets and settings give to tell."""
    result = result.copy()
    if setup.task.class_names:
        result["classes"] = list(setup.task.class_names)
    if (scaling := setup.task.scaling) is not None:
        mean, deviation, columns = list(scaling.mean), list(scaling.deviation), list(scaling.columns)
        result["scaling"] = StoredScaling(mean=mean, deviation=deviation, columns=columns)
    if setup.how.privacy and state.epsilon is not None and isfinite(state.epsilon):
        result["epsilon"], result["delta"] = state.epsilon, setup.how.privacy.delta
    if len(found) > 1:
        result["chosen_by"] = dict(found)
    if setup.config.mix == "fitted":
        result["times"] = {str(width): list(times) for width, times in setup.times.items()}
    if setup.net.rescaled is not None:
        result["rescaled"] = sorted(setup.net.rescaled) if setup.config.rescale_init else []
    if setup.net.stacking:
        result["stacked"] = setup.net.stacking
    return result


def scores_with(setup: Setup, engine: RunEngine, weights: Weights, norm: str) -> list[StoredScore]:
    """Every width on test images, with these norm statistics."""
    used, question = served_with(setup, weights, norm)
    return [score_row(row, norm, "test") for row in score(engine, used, setup.mixes(), setup.domains, question)]


@dataclass
class Counted:
    """An engine that tells watchers of each answer, of about so many to come."""

    engine: RunEngine
    watchers: Sequence[Watcher]
    total: int

    def __post_init__(self) -> None:
        for watcher in self.watchers:
            watcher.scoring(self.total)

    @property
    def workers(self) -> int:
        return self.engine.workers

    @property
    def own_norms(self) -> dict[int, OwnNorms]:
        return self.engine.own_norms

    def profiles(self, round: int) -> Sequence[Profile]:
        return self.engine.profiles(round)

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        try:
            for answer in self.engine.run(weights, jobs):
                for watcher in self.watchers:
                    watcher.answer()
                yield answer
        except BaseException:  # a bar must not stay on the terminal
            self.end()
            raise

    def end(self) -> None:
        for watcher in self.watchers:
            watcher.scored()


def answers_to_come(setup: Setup, norms: Sequence[str]) -> int:
    """How many answers of clients the end of a run needs; a search for shares or an order may ask for more."""
    config, searched = setup.config, setup.method.layout.count > 1
    chosen = len(STATISTICS[config.statistics]) if setup.has_statistics and config.statistics != "client" else 0
    searches = (searched and config.order != "natural") + 2 * (searched and config.mix == "fitted")
    return len(setup.domains) * ((setup.has_statistics and "global" in norms) + chosen + searches + len(norms))


def store_outcome(path: Path, outcome: Outcome, digest: str) -> None:
    """First the model, then the result that makes the run count as finished."""
    about = json.dumps({"bases": outcome.order, "config": digest})  # one entry: several have no fixed order
    write_atomically(path / "model.safetensors", save(outcome.weights, {"splitmix": about}))
    write_record(path / "result.json", outcome.result)


def stored_outcome(path: Path) -> Outcome:
    """A finished run, read back from its folder."""
    need_finished(path)
    try:
        result = parse_record((path / "result.json").read_bytes(), Result)
        weights = load((path / "model.safetensors").read_bytes())
        order, same = tuple(result["bases"]), weights_sha256(weights) == result["weights_sha256"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"'{path}' holds no finished run that can be read ({error}); train it first") from None
    if not same:
        raise UserError(f"the weights in '{path}' are not those that its result.json speaks of; train it anew")
    return Outcome(result, weights, order)


def finished_setup(setup: Setup, outcome: Outcome) -> Setup:
    """The set-up of a finished run: its bases in order, each counting in a mix as often as the run found."""
    setup = replace(setup, method=setup.method.ordered(outcome.order))
    found, mixes = outcome.result.get("times", {}), setup.mixes()
    times = {parse_width(width): tuple(counts) for width, counts in found.items()}
    if any(len(mixes.get(width, ())) != len(counts) or not any(counts) for width, counts in times.items()):
        raise UserError("the run's result.json has shares of bases that its method does not mix; train it anew")
    return replace(setup, times=times)


def scored_norms(setup: Setup) -> tuple[str, ...]:
    """The norm statistics that a run is scored with; with privacy none that leave the clients.

    Where a net has none, all is scored once, like one set that all clients share.
    """
    if not setup.has_statistics:
        return ("tracked" if setup.config.norm == "tracked" else "global",)
    return tuple(norm for norm in SCORED_NORMS[setup.config.norm] if norm != "global" or setup.how.privacy is None)


def calibrated(setup: Setup, engine: RunEngine, weights: Weights) -> Weights:
    """The weights, with fixed norm statistics of all clients' training images."""
    layout, clients, batch = setup.method.layout, list(setup.domains), setup.config.eval_batch
    return weights | calibrate(engine, setup.net, layout, weights, clients, batch, setup.noise, setup.how)


def widest_accuracies(setup: Setup, engine: RunEngine, weights: Weights) -> dict[str, float]:
    """What the widest mix, whose bases need no order, has on validation images with the norm statistics to choose from.

    Nothing, where those that clients measure are wanted, or there are none.
    """
    if not setup.has_statistics or setup.config.statistics == "client":
        return {}
    norms, widest = STATISTICS[setup.config.statistics], setup.mixes([setup.method.widths[-1]])
    served = {norm: served_with(setup, weights, norm, "val") for norm in norms}
    found = {norm: score(engine, used, widest, setup.domains, asked)[0] for norm, (used, asked) in served.items()}
    return {norm: setup.overall(scored.clients) for norm, scored in found.items()}


def best_of(accuracies: Mapping[str, float]) -> str:
    """The name of the highest accuracy; of equals the first."""
    return max(accuracies, key=lambda name: accuracies[name])


def ordered(setup: Setup, engine: RunEngine, weights: Weights, norm: str) -> tuple[int, ...]:
    """The bases from first to last to be mixed, as the config wants them chosen, with these norm statistics."""
    config, layout = setup.config, setup.method.layout
    natural = tuple(range(layout.count))
    if config.order == "natural" or layout.count == 1:
        return natural
    parts = tuple(Part(base, layout.width) for base in natural)
    weights, question = served_with(setup, weights, norm, "val")
    clients, greedy = list(setup.domains), config.order == "greedy"
    return order_bases(engine, weights, parts, clients, question, greedy=greedy, overall=setup.overall)


def with_fitted_mixes(setup: Setup, engine: RunEngine, weights: Weights, norm: str) -> Setup:
    """The set-up, in whose mixes bases count as often as validation images say, with these norm statistics."""
    used, question = served_with(setup, weights, norm, "val")
    times = fit_times(engine, used, setup.mixes(), list(setup.domains), question, overall=setup.overall)
    return replace(setup, times=times)


def served_with(setup: Setup, weights: Weights, norm: str, split: str = "test") -> tuple[Weights, Question]:
    """The weights of a finished run as some norm statistics need them, and how clients are to use them.

    Statistics that a client measures take the place of those that all share; with these it makes its noisy images.
    """
    if norm == "batch" or (norm == "client" and not setup.dial):
        names = setup.net.statistic_names(setup.method.layout.width)
        weights = {n: value for n, value in weights.items() if n not in names and nested_width(n) is None}
    return weights, setup.question(split, "client" if norm == "client" else "stored")


def score_row(scored: WidthScore, norm: str, split: str) -> StoredScore:
    """A score as it is stored."""
    return {
        "norm": norm,
        "split": split,
        "width": str(scored.width),
        "bases": scored.bases,
        "accuracy": scored.accuracy,
        "pooled": scored.pooled,
        "domains": dict(scored.domains),
        "clients": list(scored.clients),
    }


def client_rows(setup: Setup) -> list[StoredClient]:
    """The clients as they are stored, with their budgets of the first round."""
    return [
        {
            "client": client,
            "domain": shard.domain,
            "budget": str(budget),
            "train": len(shard.train),
            "val": len(shard.val),
            "test": len(shard.test),
        }
        for client, (shard, budget) in enumerate(zip(setup.task.shards, setup.budgets.at(0), strict=True))
    ]


def with_costs(setup: Setup, weights: Weights, scores: Sequence[StoredScore]) -> list[StoredScore]:
    """Parameters, MACs and the time of a single image beside each accuracy."""
    found = {}
    blank = setup.net.init(setup.method.layout, 0, tracked=True)  # statistics, where there are none: to the same time
    for width in setup.method.widths:
        parts = setup.method.compose(width)
        one = cost(setup.net.build, parts[0].width, setup.image, tokens=setup.task.kind == "tokens")
        mix = one * len(parts)
        found[str(width)] = (mix.parameters, mix.macs, latency_ms(setup, blank | weights, parts))
    rows: list[StoredScore] = []
    for row in scores:
        parameters, macs, ms = found[row["width"]]
        rows.append({**row, "parameters": parameters, "macs": macs, "ms": ms})
    return rows


def latency_ms(setup: Setup, weights: Weights, parts: tuple[Part, ...]) -> float:
    """Time of one image through a mix, on one thread: the best of many, since other processes only add to it."""
    download = cut(setup.net, setup.method.layout, weights, parts)
    x = samples_of(setup.task, 1)
    times = []
    with one_thread(), torch.inference_mode():
        for _ in range(TIMED):
            began = perf_counter()
            setup.net.run(parts[0].width, download, x).mean(0)
            times.append(perf_counter() - began)
    return round(1e3 * min(times), 3)


def versions() -> dict[str, str]:
    """What a run or a bundle was made with."""
    made_with = {"splitmix": __version__, "torch": torch.__version__.split("+")[0]}
    return {**made_with, "python": platform.python_version()}
