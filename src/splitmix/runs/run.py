"""One run: its rounds, and its folder, in which it can be killed at any moment and resumed."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import isinf
from pathlib import Path
from time import perf_counter

from splitmix.core.admission import Attendance
from splitmix.core.errors import UserError
from splitmix.core.objective import Trial
from splitmix.core.rounds import RoundReport, federate
from splitmix.core.score import WidthScore, score
from splitmix.core.types import Question, Weights
from splitmix.engines.stopwatch import Stopwatch
from splitmix.runs.config import check_same_config, to_toml
from splitmix.runs.finish import STATISTICS, Outcome, best_of, calibrated, finish, served_with, store_outcome
from splitmix.runs.folder import RunEngine, RunFolder, State, give_norms, kept_norms
from splitmix.runs.progress import Watcher
from splitmix.runs.records import AttendanceRow, MetricRow, StoredTrial, cohorts_asked, read_metrics
from splitmix.runs.setup import Setup

TRIED = 512  # images, over all clients, that are attacked to choose a round: an attack takes its time


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
    stopwatch: Stopwatch | None = None,
) -> Outcome | None:
    """Train and finish in a folder that nobody else writes to; None where the run was finished before.

    Clients are simulated by `workers` processes, unless an engine is given. What a stopwatch counts is stored as
    `profile.json`: seconds of each step, from the start of this call, which may have resumed a run.
    """
    with ExitStack() as stack:
        folder, state = stack.enter_context(opened(setup, path, resume, watchers))
        if folder.finished():
            return None
        used = engine or stack.enter_context(setup.engine(workers, device, stopwatch))
        state = train_rounds(setup, used, state, watchers=watchers, folder=folder)
        outcome = finish(setup, used, state, command=command, watchers=watchers)
        if stopwatch is not None:
            folder.write("profile.json", json.dumps({"workers": used.workers, "seconds": stopwatch.seconds}, indent=1))
        store_outcome(path, outcome, setup.config.digest())
        return outcome


def train_in_folder(
    setup: Setup, path: Path, *, workers: int = 1, device: str = "cpu", watchers: Sequence[Watcher] = ()
) -> State | None:
    """Only the rounds, begun or gone on with, and no test image looked at; None where the run was finished before."""
    with ExitStack() as stack:
        folder, state = stack.enter_context(opened(setup, path, True, watchers))
        if folder.finished():
            return None
        engine = stack.enter_context(setup.engine(workers, device))
        return train_rounds(setup, engine, state, watchers=watchers, folder=folder)


@contextmanager
def opened(
    setup: Setup, path: Path, resume: bool, watchers: Sequence[Watcher]
) -> Iterator[tuple[RunFolder, State | None]]:
    """A folder that is this run's alone, and where the run stands in it."""
    folder, text = RunFolder(path), to_toml(setup.config)
    with folder.locked():
        if not folder.exists():
            folder.write("config.toml", text)
            yield folder, None
            return
        if not resume:
            raise UserError(f"'{path}' already holds a run; go on with --resume or choose another --out")
        check_same_config(path, text)
        if folder.finished():
            yield folder, None
            return
        state, notes = folder.load_state(setup.config.digests(), setup.fresh_weights())
        for watcher in watchers:
            for note in notes:
                watcher.note(note)
        yield folder, state


def train_rounds(
    setup: Setup,
    engine: RunEngine,
    state: State | None = None,
    *,
    watchers: Sequence[Watcher] = (),
    folder: RunFolder | None = None,
) -> State:
    """Train from a state, or from the start, to the last round; where that leaves the run, its best round included."""
    now, config = state or State(0, setup.fresh_weights()), setup.config
    began = perf_counter() - now.seconds
    rows = read_metrics(folder.path) if folder and now.round else []
    cohorts = cohorts_asked(rows, now.round)
    # None: the rows do not say it of each round
    asked = sum(map(len, cohorts)) if len(cohorts) == now.round > 0 else None
    now = replace(now, epsilon=spent(setup, cohorts, now.round))
    lost: list[str] = []  # why a round changed nothing

    def after_round(report: RoundReport) -> None:
        nonlocal now
        cohorts.append(report.seen.cohort)
        now = replace(now, round=report.round + 1, weights=report.weights, kept=report.kept)
        now = replace(now, epsilon=spent(setup, cohorts, now.round))
        record([round_row(report, now.epsilon)], watchers, folder)
        if report.seen.rejected and not report.seen.accepted:
            lost.append(f"client {report.seen.rejected[0].client}: {report.seen.rejected[0].reason}")
            for watcher in watchers if len(lost) == 1 else ():
                watcher.note(f"in round {now.round} no client's update counted ({lost[0]})")
        last = now.round == config.rounds
        if last or now.round % config.eval_every == 0:
            now, rows = validated(setup, engine, now)
            record(rows, watchers, folder)
        now = replace(now, norms=kept_norms(engine), seconds=perf_counter() - began)
        if folder is not None and (last or now.round % config.checkpoint_every == 0):
            folder.save_state(now, config.digest())

    give_norms(engine, now.norms)
    for watcher in watchers:
        watcher.begin(setup, now.round)
    try:
        federate(
            setup.method,
            engine,
            setup.net,
            now.weights,
            setup.how,
            start=now.round,
            asked=asked,
            kept=now.kept,
            on_round=after_round,
        )
    finally:
        for watcher in watchers:
            watcher.end()
    if lost and len(lost) == config.rounds:
        raise UserError(
            f"nothing was trained, as in no round a client's update counted ({lost[0]}); lower lr, and look for NaN in "
            "the data and in what the net computes"
        )
    return now


def spent(setup: Setup, cohorts: Sequence[Sequence[int]], rounds: int) -> float | None:
    """What the weights may tell of the client that was asked most often; a round without a row counts for everyone."""
    if setup.how.privacy is None:
        return None
    often = Counter(client for cohort in cohorts for client in cohort)
    return setup.how.privacy.epsilon(max(often.values(), default=0) + rounds - len(cohorts))


def record(rows: Sequence[MetricRow], watchers: Sequence[Watcher], folder: RunFolder | None) -> None:
    """Store the row of a round, or those of its scores, and show them."""
    if folder is not None:
        for row in rows:
            folder.append_metric(row)
    for watcher in watchers:
        if rows[0]["kind"] == "round":
            watcher.round(rows[0])
        else:
            watcher.scores(rows)


def validated(setup: Setup, engine: RunEngine, state: State) -> tuple[State, list[MetricRow]]:
    """Score on validation images and keep the best round, by what the objective is judged by at the widest mix."""
    served = validation_norms(setup, engine, state.served)
    found = {norm: score(engine, used, setup.mixes(), setup.domains, asked) for norm, (used, asked) in served.items()}
    norm = best_of({norm: setup.overall(scores[-1].clients) for norm, scores in found.items()})
    rows = [validation_row(scored, state.round - 1) for scored in found[norm]]
    rows = rows if norm == "stored" else [{**row, "norm": norm} for row in rows]
    accuracy, trials = worth(setup, engine, *served[norm], found[norm][-1])
    if trials:
        rows[-1] |= {"trials": trials, "judged": accuracy}
    if accuracy > state.best_accuracy or setup.how.privacy is not None:  # a choice would tell of clients' images
        best = replace(state, best_round=state.round - 1, best_accuracy=accuracy, best=state.served)
        state = replace(best, best_norms=kept_norms(engine))
    return state, rows


def validation_norms(setup: Setup, engine: RunEngine, weights: Weights) -> dict[str, tuple[Weights, Question]]:
    """The norm statistics that a round may be scored with; those at hand, unless the config wants others or a choice.

    At hand are running statistics, or else those of the batch.
    """
    config = setup.config
    if setup.tracked or config.statistics == "client":
        return {"stored": (weights, setup.question("val"))}
    weights = calibrated(setup, engine, weights)
    return {norm: served_with(setup, weights, norm, "val") for norm in STATISTICS[config.statistics]}


def worth(
    setup: Setup, engine: RunEngine, weights: Weights, asked: Question, clean: WidthScore
) -> tuple[float, list[StoredTrial]]:
    """What a round is chosen by: the sum of all trials by their shares, and each as it is stored; `clean` is known."""
    if setup.trials == (Trial(),):
        return setup.overall(clean.clients), []
    found = [(trial, tried(trial, setup, engine, weights, asked, clean)) for trial in setup.trials]
    rows: list[StoredTrial] = [
        {"robust": trial.robust, "attack": trial.attack.name if trial.attack else None, "accuracy": accuracy}
        for trial, accuracy in found
    ]
    return sum(trial.share * accuracy for trial, accuracy in found), rows


def tried(trial: Trial, setup: Setup, engine: RunEngine, weights: Weights, asked: Question, clean: WidthScore) -> float:
    """The accuracy at the dial and under the attack of a trial."""
    if trial == Trial(trial.share):
        return setup.overall(clean.clients)
    question = replace(asked, robust=trial.robust, attack=trial.attack)
    if trial.attack is not None:
        fixed = setup.net.has_statistics(setup.method.layout.width, weights)
        norm = asked.norm if fixed else "client"  # fixed while images are attacked
        question = replace(question, images=max(1, TRIED // len(setup.domains)), norm=norm, seed=setup.config.seed)
    return setup.overall(score(engine, weights, setup.mixes([clean.width]), setup.domains, question)[0].clients)


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


def round_row(report: RoundReport, epsilon: float | None = None) -> MetricRow:
    """A round as it is stored: all but its weights."""
    row: MetricRow = {
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
    }
    return row if epsilon is None or isinf(epsilon) else {**row, "epsilon": epsilon}


def attendance_row(seen: Attendance) -> AttendanceRow:
    """Who came to a try of a round, as it is stored."""
    return {
        "cohort": list(seen.cohort),
        "clipped": seen.clipped,
        "rejected": [{"client": one.client, "kind": one.kind, "reason": one.reason} for one in seen.rejected],
        "missing": [{"client": one.client, "reason": one.reason} for one in seen.missing],
    }
