"""What hostile clients do to a run on `mini`, with and without the defaults of a federation: results/trust.md.

python benchmarks/trust.py [ATTACK:GUARD:WHO:SEED ...]      some minutes each; other rows stay
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from evidence import Row, publish, read_rows
from torch import Tensor

from splitmix.core.parts import cut
from splitmix.core.score import calibrate, score
from splitmix.core.types import Calibrate, Job, Profile, Train, Update, Weights
from splitmix.engines.simulator import Simulator
from splitmix.flower.server import STRANGERS
from splitmix.runs.config import make_config
from splitmix.runs.progress import Watcher
from splitmix.runs.run import train_rounds
from splitmix.runs.setup import Setup, set_up

SETTINGS = {"task": "mini", "clients": 20, "rounds": 12, "eval_every": 12, "batch": 16, "budgets": "1/8 1/4 1/2"}
GUARDS: dict[str, dict[str, Any]] = {
    "none": {},
    "default": {**STRANGERS},
    "trimmed": {**STRANGERS, "aggregate": "trimmed"},
    "median": {**STRANGERS, "aggregate": "median"},
}
WHO = {"nobody": (), "even": range(2, 20, 5), "wide": range(16, 20)}  # a fifth, of every budget or of the largest
TRACKED = ("tracked", "shifted")  # attacks on norm statistics that are tracked; other runs calibrate them
Trick = Callable[[Job, Weights, Any], Any]


def changed(change: Callable[[str, Tensor, Tensor], Tensor], job: type = Train) -> Trick:
    """A trick that makes something else of each entry, out of what it was and what it should be now."""

    def trick(asked: Job, old: Weights, new: Any) -> Any:
        spoilt = {name: change(name, old.get(name, value), value) for name, value in new.weights.items()}
        return replace(new, weights=spoilt) if isinstance(asked, job) else new

    return trick


def flipped_by(times: float) -> Trick:
    return changed(lambda name, was, now: now if "running" in name else was - times * (now - was))


flipped = flipped_by(4.5)
wiped = changed(lambda name, was, now: now if "running" in name else -3.5 * was)
POISON: dict[str, Trick] = {
    "flipped": flipped,
    "quietly": flipped_by(1.0),
    "denormal": changed(lambda name, was, now: torch.full_like(now, 1e-40)),
    "wiped": lambda job, old, new: new if getattr(job, "round", 1) else wiped(job, old, new),
    "boasting": lambda job, old, new: replace(flipped(job, old, new), samples=10**9),
    "shifted": changed(lambda name, was, now: now + 50 * name.endswith("running_mean")),
}
TRICKS: dict[str, Trick] = {
    **POISON,
    "moments": changed(lambda name, was, now: 100 * now, Calibrate),
    **dict.fromkeys(("honest", "tracked", "calibrated"), lambda job, old, new: new),
}
CASES = [
    *(f"honest:{guard}:nobody:{seed}" for seed in (1, 2, 3) for guard in ("none", "default")),
    *(f"honest:{guard}:nobody:1" for guard in ("trimmed", "median")),
    *(f"flipped:default:{who}:{seed}" for seed in (1, 2) for who in ("even", "wide")),
    *(f"{attack}:default:even:1" for attack in POISON if attack != "flipped"),
    *(f"{attack}:none:even:1" for attack in POISON),
    *(f"tracked:{guard}:nobody:1" for guard in ("none", "default")),
]


@dataclass
class Hostile:
    """The simulator, some of whose clients play a trick on the server."""

    engine: Simulator
    setup: Setup
    attack: str
    hostile: Collection[int]
    own_norms: dict[int, Any] = field(default_factory=dict)
    workers: int = 1

    def profiles(self, round: int) -> Sequence[Profile]:
        boasts = self.hostile if self.attack == "boasting" else ()
        return [replace(p, samples=10**9) if p.client in boasts else p for p in self.engine.profiles(round)]

    def run(self, weights: Weights, jobs: Sequence[Job]) -> Iterator[Any]:
        for job, answer in zip(jobs, self.engine.run(weights, jobs), strict=True):
            hostile = job.client in self.hostile and isinstance(answer, Update)
            yield TRICKS[self.attack](job, self._sent(weights, job), answer) if hostile else answer

    def _sent(self, weights: Weights, job: Any) -> Weights:
        return cut(self.setup.net, self.setup.method.layout, weights, job.parts)


@dataclass
class Shortened(Watcher):
    """Counts the updates of honest clients, and those of them that were shortened."""

    hostile: Collection[int]
    updates: int = 0
    shortened: int = 0

    def share(self) -> float:
        return self.shortened / self.updates

    def round(self, row: Any) -> None:
        self.updates += len(set(row["cohort"]) - set(self.hostile))
        self.shortened += len(set(row["clipped"]) - set(self.hostile))


def measured(attack: str, guard: str, who: str, seed: str) -> Iterator[Row]:
    """A run with hostile clients, as the test images of all clients see its widest mix."""
    norm, hostile = "tracked" if attack in TRACKED else "post", WHO[who]
    settings = {**SETTINGS, **GUARDS[guard], "norm": norm, "seed": int(seed)}
    setup = set_up(make_config(settings))
    watcher = Shortened(hostile)
    about = {"study": "trust", "guard": guard, "settings": settings, "seed": int(seed)}

    def row(attack: str, who: str, weights: Weights, norm: str) -> Row:
        question = setup.question("test", norm)
        (found,) = score(engine, weights, setup.mixes([setup.method.widths[-1]]), setup.domains, question)
        return {**about, "attack": attack, "who": who, "value": found.accuracy, "shortened": watcher.share()}

    with setup.engine(1) as engine:
        weights = train_rounds(setup, Hostile(engine, setup, attack, hostile), watchers=[watcher]).best
        yield row(attack, who, weights, "client" if norm == "post" else "stored")
        for trick, liars in (("calibrated", "nobody"), ("moments", "even")) if attack == "honest" else ():
            used = Hostile(engine, setup, trick, WHO[liars])
            layout, batch = setup.method.layout, setup.config.eval_batch
            found = calibrate(used, setup.net, layout, weights, range(20), batch, how=setup.how)
            yield row(trick, liars, weights | found, "stored")


def main() -> None:
    for text in sys.argv[1:] or CASES:
        for row in measured(*text.split(":")):
            case = {key: row[key] for key in ("attack", "guard", "who", "seed")}
            publish("trust", [*(old for old in read_rows("trust") if {key: old[key] for key in case} != case), row])


if __name__ == "__main__":
    main()
