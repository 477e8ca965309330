"""Asking a finished run again: other widths, other images, other norm statistics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from splitmix.core.errors import UserError, unknown
from splitmix.core.score import score
from splitmix.core.types import Question, Weights
from splitmix.core.width import Width
from splitmix.engines.simulator import Simulator
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.finish import finished_setup, score_row, scored_norms, served_with, stored_outcome
from splitmix.runs.folder import Norms, RunFolder, give_norms
from splitmix.runs.records import Result, StoredScore, main_scores
from splitmix.runs.setup import Setup, set_up

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class FinishedRun:
    """A run that can be asked: its set-up with the bases in order, and how its clients are to use the weights."""

    path: Path
    setup: Setup
    weights: Weights
    norm: str  # which statistics are used, in the words of the run
    question: Question
    result: Result

    @contextmanager
    def engine(self, workers: int) -> Iterator[Simulator]:
        """Its clients, with the norms that they kept to themselves."""
        with self.setup.engine(workers) as engine:
            if self.question.local_norms:
                give_norms(engine, stored_norms(self.setup, self.path))
            yield engine


def open_run(
    path: Path, *, split: str = "test", norm: str | None = None, fixed: bool = False, root: Path | None = None
) -> FinishedRun:
    """A finished run, to be scored on a split with some norm statistics; `fixed`: not those of the batch."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    outcome = stored_outcome(path)
    setup = finished_setup(set_up(make_config(read_toml(path / "config.toml")), root=root), outcome)
    chosen = scored_norm(setup, main_scores(outcome.result)[0].get("norm"), norm, fixed=fixed)
    weights, question = served_with(setup, outcome.weights, chosen, split)
    return FinishedRun(path, setup, weights, chosen, question, outcome.result)


def evaluate_run(
    path: Path, widths: Sequence[Width], split: str, norm: str | None, *, workers: int, root: Path | None = None
) -> list[StoredScore]:
    """A row per width (all of them if none is named), as in the run's result."""
    run = open_run(path, split=split, norm=norm, root=root)
    mixes = run.setup.mixes(widths)
    with run.engine(workers) as engine:
        scores = score(engine, run.weights, mixes, run.setup.domains, run.question)
    return [score_row(row, run.norm, split) for row in scores]


def stored_norms(setup: Setup, path: Path) -> Norms:
    """The norms that the clients kept to themselves, as they were after the best round."""
    state, _ = RunFolder(path).load_state(setup.config.digests(), setup.fresh_weights())
    if state is None:
        raise UserError(f"'{path}' has no checkpoint, and only there are the clients' own norms; train it anew")
    return state.best_norms


def scored_norm(setup: Setup, main: str | None, norm: str | None, *, fixed: bool = False) -> str:
    """The norm statistics asked for, if a run of this kind has them; else its main ones."""
    known = [name for name in scored_norms(setup) if not (fixed and name == "batch")]
    known.sort(key=lambda name: name != main)
    chosen = norm or known[0]
    if fixed and chosen == "batch":
        raise UserError(
            f"with statistics of the batch an image's answer depends on its neighbours, which no attack can use; "
            f"choose --norm {' or '.join(known)}"
        )
    if chosen not in known:
        raise UserError(
            f"a run with norm={setup.config.norm} has no '{chosen}' statistics to score with; choose {', '.join(known)}"
        )
    return chosen
