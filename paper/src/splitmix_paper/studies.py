"""What the paper trains, and what becomes of it at each scale: the full setting, two cores, or a test."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from splitmix_paper.stand_in import NET

Settings = Mapping[str, Any]

SCALES = {
    "paper": "the paper's full setting, for a GPU",
    "cpu": "real data on two cores; what was reduced stands on each result",
    "smoke": "a few tiny pictures, to see that all parts work; its numbers mean nothing",
}
STAND_IN = "stand-in"  # for the folder of the pictures of the smallest scale
WIDTHS = ("1/8", "1/4", "1/2", "1")
SPLITMIX, SHETEROFL, HETEROFL = "Split-Mix", "SHeteroFL", "HeteroFL"
FEDAVG = tuple(f"FedAvg {width}" for width in WIDTHS)
PAPER_METHODS: Mapping[str, Any] = {
    SPLITMIX: "splitmix",
    SHETEROFL: "sheterofl",
    HETEROFL: "heterofl",
    **{label: {"name": "fedavg", "width": width} for label, width in zip(FEDAVG, WIDTHS, strict=True)},
}
_SMOKE: Settings = {
    **{"task": STAND_IN, "net": NET, "clients": 4, "val_ratio": 0.34},
    **{"rounds": 2, "epochs": 1, "batch": 8, "eval_every": 1, "eval_batch": 16},
}
_SMOKE_COHORTS = {2: 1, 5: 2, 10: 3, 20: 4, 50: None}


@dataclass(frozen=True)
class Study:
    """One of the paper's data sets in one setting; `changed` says what the cpu scale changes, besides the data."""

    title: str
    paper: Settings
    cpu: Settings
    changed: Sequence[str] = ()
    data: str = ""  # what stands in for the paper's data at cpu scale
    too_short: str = ""  # why runs at cpu scale can say nothing of the paper's claims
    recipe: bool = True  # whether the released settings hold at cpu scale, too
    rates: Mapping[str, float] = field(default_factory=dict)  # of methods that learn better at another at cpu scale

    def settings(self, scale: str, own: Settings) -> dict[str, Any]:
        """All settings of a run but its seed; `own` are those that set it apart, and count at every scale."""
        if scale == "smoke":
            changed = {"cohort": _SMOKE_COHORTS.get(own["cohort"], own["cohort"])} if "cohort" in own else {}
            kept = {key: value for key, value in own.items() if key not in ("rounds", "partition")}
            return {"recipe": "paper", **_SMOKE, **kept, **changed}
        if scale == "paper":
            return {"recipe": "paper", **self.paper, **own}
        method = " ".join(method_words(own["method"]))
        rate = {"lr": self.rates[method]} if method in self.rates else {}
        return {**({"recipe": "paper"} if self.recipe else {}), **self.cpu, **rate, **own}


def joined(series: str) -> str:
    """The series that a method's line or row belongs to: FedAvg's nets of several widths make one."""
    return "FedAvg" if series in FEDAVG else series


def method_words(method: str | Mapping[str, Any]) -> list[str]:
    """A method as a config names it, in words."""
    return [method] if isinstance(method, str) else [str(value) for value in method.values()]


def training_steps(rounds: int, share: float, epochs: int, images: int, batch: int) -> int:
    """Of a client's optimizer over a run; `share` is that of the clients in a round."""
    return round(rounds * share * epochs * math.ceil(images / batch))


def _study(entry: dict[str, Any]) -> Study:
    """An entry of studies.toml."""
    told = ""
    if (effort := entry.pop("effort", None)) is not None:
        ours, theirs = (training_steps(*effort[scale]) for scale in ("cpu", "paper"))
        told = f"a client takes {ours} training steps, {100 * ours / theirs:.1f} % of the {theirs:,} in the paper"
    return Study(**entry, too_short=told)


_FILE = files("splitmix_paper") / "studies.toml"
STUDIES = {name: _study(entry) for name, entry in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}
