"""Scoring a finished run again: other widths, other images, other norm statistics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splitmix.core.errors import UserError, unknown
from splitmix.core.method import with_order
from splitmix.core.score import score
from splitmix.core.types import Question, Weights, Width
from splitmix.experiments.config import make_config, read_toml
from splitmix.experiments.folder import RunFolder
from splitmix.experiments.run import SCORED_NORMS, restore_memories, score_row, stored_outcome
from splitmix.experiments.setup import Setup, set_up

SPLITS = ("train", "val", "test")


def evaluate_run(
    path: Path, widths: Sequence[Width], split: str, norm: str | None, *, workers: int, root: Path | None = None
) -> list[dict[str, Any]]:
    """A row per width (all of them if none is named), as in the run's result."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    outcome = stored_outcome(path)
    setup = set_up(make_config(read_toml(path / "config.toml")), root=root)
    chosen = check_norm(setup, norm)
    weights, how = weights_for(setup, outcome.weights, chosen)
    method = with_order(setup.method, outcome.order)
    mixes = {width: method.compose(width) for width in widths or method.widths}
    local = setup.config.norm == "local"
    question = Question(split, how, setup.config.eval_batch, local_norms=local)
    with setup.engine(workers) as engine:
        if local:
            restore_memories(engine, stored_memories(setup, path))
        scores = score(engine, weights, mixes, setup.domains, question)
    return [{"norm": chosen, "split": split, **score_row(row)} for row in scores]


def stored_memories(setup: Setup, path: Path) -> Weights:
    """The norms that the clients kept to themselves, as they were after the best round."""
    state, _ = RunFolder(path).load_state(setup.config.digest(), setup.fresh_weights())
    if state is None:
        raise UserError(f"'{path}' has no checkpoint, and only there are the clients' own norms; train it anew")
    return state.best_memory


def check_norm(setup: Setup, norm: str | None) -> str:
    """The norm statistics asked for, if a run of this kind has them."""
    known = SCORED_NORMS[setup.config.norm]
    chosen = norm or known[0]
    if chosen not in known:
        raise UserError(
            f"a run with norm={setup.config.norm} has no '{chosen}' statistics to score with; choose {', '.join(known)}"
        )
    return chosen


def weights_for(setup: Setup, stored: Weights, norm: str) -> tuple[Weights, str]:
    """The weights with or without statistics, and how a client is to use them."""
    names = setup.net.statistic_names(setup.method.layout.width)
    bare = {name: value for name, value in stored.items() if name not in names}
    if norm == "batch":
        return bare, "stored"
    if norm == "client":
        return bare, "client"
    return stored, "stored"
