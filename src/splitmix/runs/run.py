"""One run: train, select, order, calibrate, score; with a folder it can be killed at any moment and resumed."""

import json
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from splitmix import __version__
from splitmix.core.admission import Attendance
from splitmix.core.client import Memory
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.method import Engine, with_order
from splitmix.core.parts import cut
from splitmix.core.reproducible import one_thread
from splitmix.core.rounds import RoundReport, federate
from splitmix.core.score import WidthScore, calibrate, order_bases, score
from splitmix.core.types import Part, Question, Weights
from splitmix.data.tasks import task_about
from splitmix.engines.simulator import flat, unflat
from splitmix.nets.cost import mix_cost
from splitmix.runs.config import check_same_config, to_toml
from splitmix.runs.folder import RunFolder, State, weights_sha256
from splitmix.runs.records import AttendanceRow, MetricRow, Result, StoredScore, parse_record, write_record
from splitmix.runs.selection import judge
from splitmix.runs.setup import Setup

NORM_TEXT = {
    "batch": "statistics of the test batch itself (batch average)",
    "client": "fixed statistics, calibrated by each client on its own training images (post average)",
    "global": "fixed statistics, one set for all clients (post average of all training images)",
    "tracked": "running statistics, averaged by the server",
    "local": "running statistics and affine that never leave the client",
}
SCORED_NORMS = {
    "batch": ("batch", "client", "global"),
    "post": ("client", "global", "batch"),
    "tracked": ("tracked",),
    "local": ("local",),
}


class Watcher(Protocol):
    """Who wants to see a run while it lasts."""

    def begin(self, setup: Setup, start: int) -> None: ...

    def round(self, row: MetricRow) -> None: ...

    def scores(self, rows: Sequence[MetricRow]) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """A finished run: what `result.json` says, and the weights that it speaks of."""

    result: Result
    weights: Weights
    order: tuple[int, ...]


class RunEngine(Engine, Protocol):
    """An engine that a run can save and report: what clients keep to themselves, if it is here, and how many work."""

    @property
    def memories(self) -> dict[int, Memory]: ...

    @property
    def workers(self) -> int: ...


@dataclass
class Run:
    """The steps of a run over one set-up; `folder` None keeps everything in memory."""

    setup: Setup
    engine: RunEngine
    watchers: Sequence[Watcher] = ()
    folder: RunFolder | None = None
    command: str = ""

    def go(self, state: State | None = None) -> Outcome:
        self.state = state or State(0, self.setup.fresh_weights())
        self.began = perf_counter() - self.state.seconds
        restore_memories(self.engine, self.state.memory)
        for watcher in self.watchers:
            watcher.begin(self.setup, self.state.round)
        setup, start = self.setup, self.state.round
        try:
            federate(
                setup.method,
                self.engine,
                setup.net,
                self.state.weights,
                setup.how,
                start=start,
                usual=self.state.usual,
                on_round=self._after_round,
            )
        finally:
            for watcher in self.watchers:
                watcher.end()
        return self._finish()

    def _after_round(self, report: RoundReport) -> None:
        config = self.setup.config
        last = report.round + 1 == config.rounds
        self._record([round_row(report)])
        state = replace(self.state, round=report.round + 1, weights=report.weights, usual=report.usual)
        if last or (report.round + 1) % config.eval_every == 0:
            state = self._validated(state, report.round)
        self.state = replace(state, seconds=perf_counter() - self.began)
        if self.folder is not None and (last or (report.round + 1) % config.checkpoint_every == 0):
            self.folder.save_state(replace(self.state, memory=all_memories(self.engine)), config.digest())

    def _validated(self, state: State, round: int) -> State:
        """Score on validation images and keep the best round, by what the objective is judged by at the widest mix."""
        scores = self._score(state.weights, self._question("val"))
        rows = [validation_row(scored, round) for scored in scores]
        judged, trials = judge(self.setup, self.engine, state.weights, scores[-1], self._question("val"))
        if trials:
            rows[-1] |= {"trials": trials, "judged": judged}
        self._record(rows)
        if judged > state.best_accuracy:
            best = replace(state, best_round=round, best_accuracy=judged, best=state.weights)
            return replace(best, best_memory=all_memories(self.engine))
        return state

    def _finish(self) -> Outcome:
        config, setup = self.setup.config, self.setup
        weights = self.state.best
        restore_memories(self.engine, self.state.best_memory)
        order = self._order(weights)
        self.setup = setup = replace(setup, method=with_order(setup.method, order))
        statistics = {}
        if config.norm in ("batch", "post"):
            layout = setup.method.layout
            statistics = calibrate(self.engine, setup.net, layout, weights, list(setup.domains), config.eval_batch)
        calibrated = {**weights, **statistics}
        rows: list[StoredScore] = []
        for norm in SCORED_NORMS[config.norm]:
            question = Question("test", "client" if norm == "client" else "stored", config.eval_batch)
            question = replace(question, local_norms=config.norm == "local")
            used = calibrated if norm == "global" else weights
            rows += [score_row(scored, norm, "test") for scored in self._score(used, question)]
        self._add_costs(rows, calibrated)
        kept = calibrated  # with statistics, so that it can serve a single image
        result = self._result(rows, order, kept, perf_counter() - self.began)
        if self.folder is not None:
            about = json.dumps({"bases": order, "config": config.digest()})  # one entry: several have no fixed order
            write_atomically(self.folder.path / "model.safetensors", save(kept, {"splitmix": about}))
            write_record(self.folder.path / "result.json", result)
        return Outcome(result, kept, order)

    def _order(self, weights: Weights) -> tuple[int, ...]:
        config, layout = self.setup.config, self.setup.method.layout
        natural = tuple(range(layout.count))
        if config.order == "natural" or layout.count == 1:
            return natural
        parts = tuple(Part(base, layout.width) for base in natural)
        question = self._question("val")
        if config.norm == "post":
            question = replace(question, norm="client")
        clients = list(self.setup.domains)
        return order_bases(self.engine, weights, parts, clients, question, greedy=config.order == "greedy")

    def _question(self, split: str) -> Question:
        return Question(split, batch=self.setup.config.eval_batch, local_norms=self.setup.config.norm == "local")

    def _score(self, weights: Weights, question: Question) -> list[WidthScore]:
        method = self.setup.method
        mixes = {width: method.compose(width) for width in method.widths}
        return score(self.engine, weights, mixes, self.setup.domains, question)

    def _record(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            if self.folder is not None:
                self.folder.append_metric(row)
        for watcher in self.watchers:
            if rows[0]["kind"] == "round":
                watcher.round(rows[0])
            else:
                watcher.scores(rows)

    def _add_costs(self, rows: list[StoredScore], weights: Weights) -> None:
        """Parameters, MACs and the time of a single image beside each accuracy."""
        setup = self.setup
        for width in setup.method.widths:
            parts = setup.method.compose(width)
            cost = mix_cost(setup.net.build, parts[0].width, len(parts), setup.image)
            ms = latency_ms(setup, weights, parts)
            for row in rows:
                if row["width"] == str(width):
                    row |= {"parameters": cost.parameters, "macs": cost.macs, "ms": ms}

    def _result(self, rows: list[StoredScore], order: tuple[int, ...], kept: Weights, seconds: float) -> Result:
        setup, config, task = self.setup, self.setup.config, self.setup.task
        main = rows[0]["norm"]
        budgets = setup.budgets.at(0)
        return {
            "schema": 1,
            "task": task.name,
            "data": task_about(config.task),
            "method": config.method_name,
            "net": config.net or task.net,
            "atom": config.atom,
            "objective": config.objective if isinstance(config.objective, str) else config.objective["name"],
            "norm": config.norm,
            "norm_text": NORM_TEXT[main],
            "seed": config.seed,
            "rounds": config.rounds,
            "best_round": self.state.best_round,
            "order": config.order,
            "bases": list(order),
            "weights_sha256": weights_sha256(kept),
            "seconds": round(seconds, 1),
            "workers": self.engine.workers,
            "threads": 1,
            "versions": {
                "splitmix": __version__,
                "torch": torch.__version__.split("+")[0],
                "python": platform.python_version(),
            },
            "command": self.command,
            "domains": list(task.domains),
            "clients": [
                {
                    "client": i,
                    "domain": shard.domain,
                    "budget": str(budgets[i]),
                    "train": len(shard.train),
                    "val": len(shard.val),
                    "test": len(shard.test),
                }
                for i, shard in enumerate(task.shards)
            ],
            "scores": rows,
        }


def run_in_folder(
    setup: Setup,
    path: Path,
    *,
    resume: bool = False,
    workers: int = 1,
    device: str = "cpu",
    watchers: Sequence[Watcher] = (),
    command: str = "",
    engine: RunEngine | None = None,
) -> Outcome | None:
    """Run in a folder that nobody else writes to; None where the run was finished before.

    Clients are simulated by `workers` processes, unless an engine is given.
    """
    folder = RunFolder(path)
    with ExitStack() as stack:
        stack.enter_context(folder.held())
        if folder.exists() and not resume:
            raise UserError(f"'{path}' already holds a run; go on with --resume or choose another --out")
        text = to_toml(setup.config)
        state: State | None = None
        notes: list[str] = []
        if folder.exists():
            check_same_config(path, text)
            if (path / "result.json").exists():
                return None
            state, notes = folder.load_state(setup.config.digest(), setup.fresh_weights())
        else:
            folder.write("config.toml", text)
        for watcher in watchers:
            for note in notes:
                watcher.note(note)
        used = engine or stack.enter_context(setup.engine(workers, device))
        return Run(setup, used, watchers, folder, command).go(state)


def stored_outcome(path: Path) -> Outcome:
    """A finished run, read back from its folder."""
    try:
        result = parse_record((path / "result.json").read_bytes(), Result)
        weights = load((path / "model.safetensors").read_bytes())
        order, same = tuple(result["bases"]), weights_sha256(weights) == result["weights_sha256"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"'{path}' holds no finished run that can be read ({error}); train it first") from None
    if not same:
        raise UserError(f"the weights in '{path}' are not those that its result.json speaks of; train it anew")
    return Outcome(result, weights, order)


def all_memories(engine: RunEngine) -> Weights:
    return {
        f"memory/{client}/{name.removeprefix('memory/')}": value
        for client, memory in engine.memories.items()
        for name, value in flat(memory).items()
    }


def restore_memories(engine: RunEngine, stored: Weights) -> None:
    per_client: dict[int, Weights] = {}
    for name, value in stored.items():
        _, client, rest = name.split("/", 2)
        per_client.setdefault(int(client), {})[f"memory/{rest}"] = value
    memories: dict[int, Memory] = {client: unflat(tensors)[0] for client, tensors in per_client.items()}
    engine.memories.clear()
    engine.memories.update(memories)


def latency_ms(setup: Setup, weights: Weights, parts: tuple[Part, ...], repeats: int = 30) -> float:
    """Time of one image through a mix, on one thread: the best of many, since other processes only add to it."""
    download = cut(setup.net, setup.method.layout, weights, parts)
    image = torch.rand(1, *setup.image)
    x = image.permute(0, 3, 1, 2) if image.dim() == 4 else image
    times = []
    with one_thread(), torch.inference_mode():
        for _ in range(repeats):
            began = perf_counter()
            setup.net.run(parts[0].width, download, x).mean(0)
            times.append(perf_counter() - began)
    return round(1e3 * min(times), 3)


def score_row(scored: WidthScore, norm: str, split: str) -> StoredScore:
    """A score as it is stored in a result."""
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


def validation_row(scored: WidthScore, round: int) -> MetricRow:
    """A score on validation images as it is stored among the metrics."""
    return {
        "kind": "score",
        "round": round,
        "split": "val",
        "width": str(scored.width),
        "bases": scored.bases,
        "accuracy": scored.accuracy,
        "pooled": scored.pooled,
        "domains": dict(scored.domains),
    }


def round_row(report: RoundReport) -> MetricRow:
    """A round as it is stored: all but its weights."""
    return {
        "kind": "round",
        "round": report.round,
        "lr": report.lr,
        "clients": report.clients,
        "loss": report.loss,
        "parameters": report.parameters,
        "seconds": report.seconds,
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
        **attendance_row(report.seen),
        "repeated": [attendance_row(seen) for seen in report.repeated],
        "usual": dict(report.usual),
    }


def attendance_row(seen: Attendance) -> AttendanceRow:
    """Who came to a try of a round, as it is stored."""
    return {
        "cohort": list(seen.cohort),
        "clipped": seen.clipped,
        "rejected": [{"client": one.client, "kind": one.kind, "reason": one.reason} for one in seen.rejected],
        "missing": [{"client": one.client, "reason": one.reason} for one in seen.missing],
    }
