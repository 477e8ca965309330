"""A run's folder: config, metrics, checkpoints and result, written so that a kill at any moment loses nothing."""

import errno
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NotRequired, Protocol

from safetensors import SafetensorError
from safetensors.torch import load, save
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.core.client import OwnNorms
from splitmix.core.errors import UserError, printable
from splitmix.core.files import write_atomically
from splitmix.core.method import Engine
from splitmix.core.rounds import served
from splitmix.core.types import Weights
from splitmix.runs.records import MetricRow, lenient, parse_record

log = logging.getLogger(__name__)
KEPT = 2  # checkpoints
Norms = Mapping[int, OwnNorms]  # of clients, each with its own for every base
_locks: set[IO[str]] = set()
# a lock goes with the process that took it: workers, which may outlive it for a moment, do not keep it
os.register_at_fork(after_in_child=lambda: [lock.close() for lock in _locks])


@lenient
class CheckpointRecord(TypedDict):
    """What stands beside the tensors of a checkpoint, and makes it count."""

    schema: int
    config: str
    round: int
    best_round: int
    best_accuracy: float
    seconds: NotRequired[float]
    sha256: str


@dataclass(frozen=True)
class State:
    """Where a run stands after a round: all that is needed to go on as if nothing had happened."""

    round: int  # rounds finished
    weights: Weights
    best_round: int = -1
    best_accuracy: float = -1.0
    best: Weights = field(default_factory=dict)
    norms: Norms = field(default_factory=dict)  # that clients keep to themselves
    best_norms: Norms = field(default_factory=dict)  # the same, after the best round
    seconds: float = 0.0  # spent so far, over all resumes
    kept: Weights = field(default_factory=dict)  # by the server from round to round, such as momenta
    epsilon: float | None = None  # what the weights may tell of a client; None: all. It follows from the metrics

    @property
    def served(self) -> Weights:
        """The model that is scored, and kept if it is the best."""
        return served(self.weights, self.kept)


class RunEngine(Engine, Protocol):
    """An engine that a run can save and report: what clients keep to themselves, if it is here, and how many work."""

    @property
    def own_norms(self) -> dict[int, OwnNorms]: ...

    @property
    def workers(self) -> int: ...


def kept_norms(engine: RunEngine) -> Norms:
    """The norms that clients have now."""
    return {client: dict(memory) for client, memory in engine.own_norms.items()}


def give_norms(engine: RunEngine, norms: Norms) -> None:
    """Let clients have these norms, and no others."""
    engine.own_norms.clear()
    engine.own_norms.update({client: dict(memory) for client, memory in norms.items()})


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def exists(self) -> bool:
        return (self.path / "config.toml").exists()

    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second writer out; the lock goes with the process, however it ends."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise UserError(f"cannot write to the output folder '{self.path}': {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"the output folder '{self.path}' is in use by another run; wait for it or choose another --out"
                ) from None
            _locks.add(lock)
            try:
                self._sweep()
                yield
            finally:
                _locks.discard(lock)

    def write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())

    def append_metric(self, row: MetricRow) -> None:
        """One line in one system call, taken back if the disk is full: there is never half a line."""
        line = (json.dumps(row) + "\n").encode()
        try:
            with (self.path / "metrics.jsonl").open("ab", buffering=0) as file:
                before = file.tell()
                if file.write(line) != len(line):
                    file.truncate(before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise UserError(
                f"cannot write to '{self.path}': {error.strerror}; free some space and use --resume"
            ) from None

    def save_state(self, state: State, digest: str) -> None:
        """Write a checkpoint: first the tensors, then the manifest that makes it count; keep the last two."""
        tensors = {f"weights/{n}": v for n, v in state.weights.items()}
        if state.best_round != state.round - 1:  # else the best are the newest
            tensors |= {f"best/{n}": v for n, v in state.best.items()}
            kept = to_tensors("best-memory", state.best_norms)
            tensors |= {name: value.clone() for name, value in kept.items()}  # may be the newest as well
        tensors |= to_tensors("memory", state.norms) | {f"server/{n}": v for n, v in state.kept.items()}
        data = save(tensors)
        manifest: CheckpointRecord = {
            "schema": 1,
            "config": digest,
            "round": state.round,
            "best_round": state.best_round,
            "best_accuracy": state.best_accuracy,
            "seconds": state.seconds,
            "sha256": "",
        }
        manifest["sha256"] = _seal(data, manifest)
        stem = self.checkpoints / f"round-{state.round:06d}"
        write_atomically(stem.with_suffix(".safetensors"), data)
        write_atomically(stem.with_suffix(".json"), json.dumps(manifest, indent=1).encode())
        mine = [file for file in sorted(self.checkpoints.glob("round-*.json")) if file.stem <= stem.name]
        for old in mine[:-KEPT]:  # a later one is of another run
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def load_state(self, digests: Collection[str], like: Weights) -> tuple[State | None, list[str]]:
        """The newest checkpoint that is whole, of this run, and with such weights; a note for each that is not."""
        notes: list[str] = []
        for manifest in sorted(self.checkpoints.glob("round-*.json"), reverse=True):
            try:
                return _read_state(manifest, digests, like), notes
            except (OSError, ValueError, SafetensorError) as error:
                notes.append(f"checkpoint {manifest.stem} is not used: {printable(str(error)[:200])}")
        if notes:
            raise UserError(
                f"no checkpoint in '{self.checkpoints}' can be used ({'; '.join(notes)}); "
                "start anew in another --out folder"
            )
        return None, notes

    def _sweep(self) -> None:
        """Remove what a killed process left: temporary files, and tensors whose manifest was never written."""
        for left in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
            left.unlink(missing_ok=True)
        for tensors in self.checkpoints.glob("round-*.safetensors"):
            if not tensors.with_suffix(".json").exists():
                tensors.unlink()


def weights_sha256(weights: Weights) -> str:
    """A hash of names, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name}{tuple(weights[name].shape)}".encode())
        digest.update(weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def to_tensors(kind: str, norms: Norms) -> Weights:
    """Clients' own norms as a checkpoint names them.

    >>> import torch
    >>> list(to_tensors("memory", {7: {0: {"norm1.weight": torch.ones(1)}}}))
    ['memory/7/0/norm1.weight']
    """
    return {
        f"{kind}/{client}/{base}/{name}": value
        for client, memory in norms.items()
        for base, entries in memory.items()
        for name, value in entries.items()
    }


def from_tensors(named: Weights) -> Norms:
    """Clients' own norms from tensors named by client, base and entry."""
    norms: dict[int, OwnNorms] = {}
    for key, value in named.items():
        client, base, name = key.split("/", 2)
        norms.setdefault(int(client), {}).setdefault(int(base), {})[name] = value
    return norms


def _read_state(manifest: Path, digests: Collection[str], like: Weights) -> State:
    told = manifest.read_bytes()
    said = parse_record(told, CheckpointRecord)
    if said["config"] not in digests:
        raise ValueError("it was made with other settings")
    data = manifest.with_suffix(".safetensors").read_bytes()
    seals = (_seal(data, json.loads(told)), hashlib.sha256(data).hexdigest())  # the latter is that of older files
    if said["sha256"] not in seals:
        raise ValueError("its bytes do not match their hash")
    tensors = load(data)

    def under(prefix: str) -> Weights:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    weights, kept = under("weights/"), under("server/")
    newest = said["best_round"] == said["round"] - 1
    best = served(weights, kept) if newest else under("best/")
    fits = all(_shapes(found) == _shapes(like) for found in (weights, best if said["best_round"] >= 0 else weights))
    fits &= all(_shapes(like).get(name.partition("/")[2]) == shape for name, shape in _shapes(kept).items())
    if manifest.stem != f"round-{said['round']:06d}" or not fits:
        raise ValueError("it is of another run")
    norms = from_tensors(under("memory/"))
    return State(
        said["round"],
        weights,
        said["best_round"],
        said["best_accuracy"],
        best,
        norms,
        norms if newest else from_tensors(under("best-memory/")),
        said.get("seconds", 0.0),
        kept,
    )


def _seal(data: bytes, said: Mapping[str, object]) -> str:
    """The hash of a checkpoint: of its tensors, and of all that its manifest says but the hash itself."""
    digest = hashlib.sha256(data)
    digest.update(json.dumps({**said, "sha256": ""}, sort_keys=True).encode())
    return digest.hexdigest()


def _shapes(weights: Weights) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}
