"""The same federations by other simulators and by us: in turns, each in its own environment, with the same accuracy.

python benchmarks/peer_speed.py [--envs FOLDER] [--data-root FOLDER] [WORK ...]    writes results/peer_speed.md

A peer is a program in `benchmarks/peers` that trains one round whenever it is told to. All are given the same file:
images, whose they are, who trains in which round, and the weights to start from. Their environments are made when they
are first needed; a peer that cannot be installed or fails is kept as a row that says why.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from charts import draw_ratios
from evidence import RESULTS, publish, read_rows
from peers.work import NETS, Work
from timing import in_turns, memory_mb, timed, told, tree

from splitmix.core.rounds import draw_cohort
from splitmix.core.types import Profile
from splitmix.core.width import Width
from splitmix.data.benchmarks import cifar_domain, digits_domains
from splitmix.data.budgets import parse_budgets
from splitmix.data.domain import Domain
from splitmix.engines.simulator import default_workers
from splitmix.methods.bases import SplitMix

HERE = Path(__file__).resolve().parent
TURNS = (5, 8)  # at least, and at most
NAME = "peer_speed"
TEST = 2000  # images that tell how well a peer does


@dataclass(frozen=True)
class Program:
    """A program of `benchmarks/peers`, what its environment needs besides PyTorch (None: ours), and how it starts."""

    name: str
    needs: tuple[str, ...] | None = None
    launcher: tuple[str, ...] = ()
    threads: int = 0  # of each process; 0: as many as there are cores
    settings: tuple[str, ...] = ()


CORES = default_workers()
RUN = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}")
NATIVE = "splitmix, native kernels"
PROGRAMS = {
    "splitmix": Program("by_us"),
    NATIVE: Program("by_us", settings=("native",)),
    "pfl-research": Program("by_pfl", ("pfl[pytorch]==0.6.0",)),
    "pfl-research, a process per core": Program("by_pfl", ("pfl[pytorch]==0.6.0",), RUN, threads=1),
    "Flower's simulation": Program("by_flower", ("flwr[simulation]==1.41.0",), threads=1),
    "FedJAX": Program(
        "by_fedjax",
        (
            "fedjax==0.0.17",
            "jax==0.4.25",
            "jaxlib==0.4.25",
            "dm-haiku==0.0.12",
            "optax==0.2.2",
            "chex==0.1.86",
            "scipy<1.13",
            "numpy<2",
        ),
    ),
    "the paper's loop": Program("by_paper"),
}
OTHERS = tuple(name for name in PROGRAMS if name not in ("splitmix", NATIVE, "the paper's loop"))


@dataclass(frozen=True)
class Setting:
    """A federation to be timed, and by whom."""

    text: str
    net: str
    width: str
    images: Callable[[Path | None], Domain]
    clients: int
    samples: int
    cohort: int
    batch: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    bases: int = 1
    peers: Sequence[str] = OTHERS


def cifar10(root: Path | None) -> Domain:
    """CIFAR-10 or its subset if the data root has them, else pictures of the same shape."""
    if root is None or not any((root / name).is_file() for name in ("cifar10.npz", "cifar10_small.npz")):
        return substitute(32, 10_000)
    return cifar_domain(root)


def digits(root: Path | None) -> Domain:
    """The digits of all five domains in one pot if the data root has them, else pictures of the same shape."""
    if root is None or not (root / "digits").is_dir():
        return substitute(28, 11_100)
    parts = digits_domains(root, percent=1.0)
    x, y, x_test, y_test = zip(*((d.x_train, d.y_train, d.x_test, d.y_test) for d in parts), strict=True)
    return Domain("digits", np.concatenate(x), np.concatenate(y), np.concatenate(x_test), np.concatenate(y_test))


def substitute(side: int, rows: int) -> Domain:
    """Pictures of ten classes, each a smooth pattern of its own under noise; nothing real."""
    rng = np.random.default_rng(0)
    patterns = np.kron(rng.normal(128, 40, (10, side // 4, side // 4, 3)), np.ones((1, 4, 4, 1)))
    labels = np.arange(rows + TEST) % 10
    pictures = (patterns[labels] + rng.normal(0, 80, (len(labels), side, side, 3))).clip(0, 255).astype(np.uint8)
    return Domain("substitute", pictures[:rows], labels[:rows], pictures[rows:], labels[rows:])


CIFAR = Setting("CNN of pfl-research's CIFAR-10 benchmark", "simple_cnn", "1", cifar10, 200, 50, 50, 10)
WITH_NATIVE = (NATIVE, *OTHERS)
DIGIT = Setting("Digit net of width 1/8, FedAvg", "digit", "1/8", digits, 100, 111, 50, 32, peers=WITH_NATIVE)
SPLIT = {"momentum": 0.9, "weight_decay": 5e-4, "bases": 8, "peers": (NATIVE, "the paper's loop")}
PLAIN = {**SPLIT, "peers": ("the paper's loop",)}
WORKS = {
    "cifar10": CIFAR,
    "digit": DIGIT,
    "splitmix-digit": Setting("Split-Mix, Digit net", "digit", "1/8", digits, 50, 111, 50, 32, **SPLIT),  # type: ignore[arg-type]
    "splitmix-preresnet18": Setting("Split-Mix, PreResNet18", "preresnet18", "1/8", cifar10, 8, 450, 8, 128, **PLAIN),  # type: ignore[arg-type]
}


def make_work(setting: Setting, root: Path | None, rounds: int) -> tuple[Work, str]:
    """The work, and what its images are."""
    domain, width = setting.images(root), Width(setting.width)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(domain.y_train))[: setting.clients * setting.samples].reshape(setting.clients, -1)
    budgets = parse_budgets("1/8 1/4 1/2 1" if setting.bases > 1 else "1", clients=setting.clients).at(0)
    profiles = [Profile(client, budgets[client], setting.samples) for client in range(setting.clients)]
    drawn = [draw_cohort(profiles, setting.cohort, 0, round) for round in range(rounds)]
    parts = []
    for round, cohort in enumerate(drawn if setting.bases > 1 else []):
        assigned = SplitMix().assign(round, cohort)
        parts.append([[part.base for part in assigned[profile.client]] for profile in cohort])
    start = []
    for base in range(setting.bases):
        torch.manual_seed(base)
        start.append({name: value.clone() for name, value in NETS[setting.net](width).state_dict().items()})
    some = rng.permutation(len(domain.y_test))[:TEST]
    arrays = (domain.x_train, domain.y_train, domain.x_test[some], domain.y_test[some], rows)
    x, y, x_test, y_test, dealt = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    cohorts = [[profile.client for profile in cohort] for cohort in drawn]
    rates = (0.1, setting.momentum, setting.weight_decay, setting.batch)
    work = Work(setting.net, float(width), *rates, x, y, x_test, y_test, dealt, cohorts, parts, start)
    return work, domain.name


class PeerError(Exception):
    """Why a peer has no figures."""


@dataclass
class Peer:
    """A running program of a peer."""

    process: subprocess.Popen[str]
    log: Path
    peak_mb: float = 0.0
    _ended: Event = field(default_factory=Event)

    def ask(self, word: str) -> dict[str, Any]:
        """Send a word, and wait for what is said to it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            if word:
                self.process.stdin.write(f"{word}\n")
                self.process.stdin.flush()
            while line := self.process.stdout.readline():
                if line.startswith("{"):
                    return dict(json.loads(line))
        except (OSError, ValueError):
            pass
        told = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        raise PeerError(told[-1][:300] if told else f"it ended with code {self.process.poll()}")

    def watch(self) -> None:
        """Note the highest memory until told otherwise."""
        while not self._ended.wait(0.25):
            self.peak_mb = max(self.peak_mb, memory_mb(self.process.pid))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure memory meanwhile; that takes time, so no turn that counts is watched."""
        watcher = Thread(target=self.watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()


@contextmanager
def started(program: Program, python: Path, work: Path, log: Path) -> Iterator[Peer]:
    """A peer that is ready; in the end it, and all that it started, is gone."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    if program.threads:
        environment["OMP_NUM_THREADS"] = str(program.threads)
    paths = [str(HERE), *([str(HERE.parent / "src")] if program.needs is None else [])]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "PEER_WORK": str(work)}
    command = [str(python), *program.launcher, str(HERE / "peers" / f"{program.name}.py"), str(work), *program.settings]
    with log.open("w") as errors:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen(command, text=True, env=environment, cwd=log.parent, **pipes)
    try:
        peer = Peer(process, log)
        peer.ask("")
        yield peer
    finally:
        below = tree(process.pid)
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in below[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def environment(program: Program, envs: Path) -> Path:
    """The Python of a program's environment, which is made if it is not there; with the PyTorch that is here."""
    if program.needs is None:
        return Path(sys.executable)
    folder = envs / program.name.removeprefix("by_")
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        share_torch(next(folder.glob("lib/python*/site-packages")), envs / "shared")
        (folder / "constraints.txt").write_text(f"torch=={torch.__version__}\n")
        pinned = ("-c", str(folder / "constraints.txt"), "torch")
        install = [str(python), "-m", "pip", "install", "--quiet", *pinned, *program.needs]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise PeerError(f"it does not install: {(errors or ['pip failed'])[-1][:300]}")
        ready.touch()
    return python


def share_torch(packages: Path, shared: Path) -> None:
    """Let an environment see our PyTorch, and nothing else of ours: all have the very same, and none loads it anew."""
    shared.mkdir(parents=True, exist_ok=True)
    ours = Path(torch.__file__).parents[1]
    for path in (*ours.glob("torch-*.dist-info"), *(ours / name for name in ("torch", "torchgen", "functorch"))):
        if path.exists() and not (shared / path.name).exists():
            (shared / path.name).symlink_to(path)
    (packages / "shared.pth").write_text(f"{shared}\n")


def measure(
    name: str, envs: Path, root: Path | None, wanted: Sequence[str], least: int, most: int
) -> list[dict[str, Any]]:
    """One row for each peer of a work."""
    setting = WORKS[name]
    work, data = make_work(setting, root, most + 1)
    folder = envs.parent / "work"
    folder.mkdir(parents=True, exist_ok=True)
    work.save(folder / f"{name}.npz")
    shared = {"part": name, "text": setting.text, "data": data, "cores": CORES}
    shared |= {key: getattr(setting, key) for key in ("clients", "samples", "cohort", "batch")}
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for title in ("splitmix", *(peer for peer in setting.peers if peer in wanted)):
            program, log = PROGRAMS[title], folder / f"{name}-{list(PROGRAMS).index(title)}.log"
            try:
                python = environment(program, envs)
                peer = stack.enter_context(started(program, python, folder / f"{name}.npz", log))
                with peer.watched():  # the round that warms up is also the one whose memory is watched
                    peer.ask("train")
                peers[title] = peer
            except PeerError as error:
                rows.append({**shared, "peer": title, "failed": str(error)})
                print(told(rows[-1]), flush=True)
        turns = in_turns(
            {title: partial(timed, partial(peer.ask, "train"), peer.process.pid) for title, peer in peers.items()},
            "splitmix",
            least=least,
            most=most,
        )
        for title, peer in peers.items():
            told_last = peer.ask("score")
            found = {"accuracy": told_last["accuracy"], "peak_mb": peer.peak_mb}
            found |= {"shares": told_last["shares"]} if told_last.get("shares") else {}
            rows.append({**shared, "peer": title, **found, **turns.row(title, "splitmix")})
            print(told(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--envs", type=Path, default=HERE.parent / "runs" / "peers" / "envs")
    parser.add_argument("--peers", nargs="*", default=list(PROGRAMS), choices=PROGRAMS, metavar="PEER")
    parser.add_argument("--turns", type=int, nargs=2, default=TURNS, metavar=("LEAST", "MOST"))
    parser.add_argument("--data-root", type=Path, default=os.environ.get("SPLITMIX_DATA"))
    given = parser.parse_args()
    kept = [row for row in read_rows(NAME) if row["part"] not in given.works] if given.works else []
    root = Path(given.data_root) if given.data_root else None
    rows = [
        row
        for name in given.works or WORKS
        for row in measure(name, given.envs.absolute(), root, given.peers, *given.turns)
    ]
    draw_ratios([*kept, *rows], RESULTS / f"{NAME}.svg")
    print(publish(NAME, [*kept, *rows]))


if __name__ == "__main__":
    main()
