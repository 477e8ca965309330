"""What the paper trains, and what becomes of it at each scale: the full setting, two cores, or a test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
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
METHODS: Mapping[str, Any] = {
    SPLITMIX: "splitmix",
    SHETEROFL: "sheterofl",
    HETEROFL: "heterofl",
    **{label: {"name": "fedavg", "width": width} for label, width in zip(FEDAVG, WIDTHS, strict=True)},
}
PLAIN = {"eval_every": 10, "checkpoint_every": 10}
_SMOKE: Settings = {
    "task": STAND_IN,
    "net": NET,
    "clients": 4,
    "val_ratio": 0.34,
    "rounds": 2,
    "epochs": 1,
    "batch": 8,
    "eval_every": 1,
    "eval_batch": 16,
}
_SMOKE_COHORTS = {2: 1, 5: 2, 10: 3, 20: 4, 50: None}


@dataclass(frozen=True)
class Study:
    """One of the paper's data sets in one setting; `changed` says what the cpu scale changes, besides the data."""

    title: str
    paper: Settings
    cpu: Settings
    changed: tuple[str, ...] = ()
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


def method_words(method: str | Mapping[str, Any]) -> list[str]:
    """A method as a config names it, in words."""
    return [method] if isinstance(method, str) else [str(value) for value in method.values()]


@dataclass(frozen=True)
class Effort:
    """How long a client trains in all."""

    rounds: int
    share: float  # of the clients in a round
    epochs: int
    images: int  # of a client
    batch: int

    @property
    def steps(self) -> int:
        """Of its optimizer."""
        return round(self.rounds * self.share * self.epochs * math.ceil(self.images / self.batch))

    def beside(self, paper: "Effort") -> str:
        """How little that is.

        >>> Effort(50, 0.1, 1, 90, 16).beside(Effort(400, 1, 5, 450, 128))
        'a client takes 30 training steps, 0.4 % of the 8,000 in the paper'
        """
        share = 100 * self.steps / paper.steps
        return f"a client takes {self.steps} training steps, {share:.1f} % of the {paper.steps:,} in the paper"


FEWER = "one seed"
SHORT_DIGITS = {"task": "digits", "rounds": 100, "cohort": 10, **PLAIN}
_ATTACKED_DIGITS = {**SHORT_DIGITS, "norm": "tracked", "clip": 5.0}
_BOUND = "updates that go more than five times as far as usual are shortened"
RATE = "learning rate 0.1 for every method, the best for each on validation images (the released code: 0.01 or 0.1)"
SUBSET = "a class-balanced subset of CIFAR-10 (10,000 + 2,000 images in place of 50,000 + 10,000)"
OFFICE = "Office-Caltech10 (4 domains, 96x96 pixels) in place of DomainNet (6 domains, 256x256 pixels)"


def _tuned(tried: str, rates: Mapping[str, float], rest: str) -> str:
    told = ", ".join(f"{_SPELT[method]} {rate:g}" for method, rate in rates.items())
    return f"learning rates with a cosine, the best of {tried} for each on validation images: {told}; {rest}"


def _tuned_on_cifar(rates: Mapping[str, float], sheterofl: str) -> str:
    recorded = {method: rate for method, rate in rates.items() if method != "sheterofl"}
    wider = "FedAvg's wider nets 0.1 as well (the released code: 0.01 or 0.1 in steps)"
    return _tuned("three", recorded, f"SHeteroFL {rates['sheterofl']:g}, {sheterofl}, and {wider}")


def _carried_over(rates: Mapping[str, float]) -> str:
    told = f"Split-Mix {rates['splitmix']:g}, FedAvg {rates['fedavg 1/8']:g}"
    return f"learning rates with a cosine, the best for each without attacks: {told}"


_SPELT = {"splitmix": "Split-Mix", "sheterofl": "SHeteroFL", "fedavg 1/8": "FedAvg 1/8"}
_CIFAR = {"epochs": 1, "batch": 16, "rounds": 50, "cohort": 10, "lr": 0.1, "schedule": "cosine", **PLAIN}
_CIFAR_SHORT = "10 of 100 clients a round, 1 local epoch instead of 5, batches of 16 instead of 128"
_CIFAR_EFFORT, _CIFAR_HALF = Effort(400, 1, 5, 450, 128), Effort(400, 1, 5, 225, 128)
_CIFAR_TOO_SHORT = Effort(50, 0.1, 1, 90, 16).beside(_CIFAR_EFFORT)
_CIFAR_HALF_TOO_SHORT = Effort(50, 0.1, 1, 45, 16).beside(_CIFAR_HALF)
_CIFAR_ATTACKED_TOO_SHORT = Effort(30, 0.1, 1, 90, 16).beside(_CIFAR_EFFORT)
_CIFAR_RATES = {"splitmix": 0.1, "sheterofl": 0.03, "fedavg 1/8": 0.1}
_CIFAR_IID_RATES = {"splitmix": 0.03, "sheterofl": 0.03, "fedavg 1/8": 0.1}
_CIFAR_TUNED = _tuned_on_cifar(_CIFAR_RATES, "the better of 0.03 and 0.1")
_CIFAR_IID_TUNED = _tuned_on_cifar(
    _CIFAR_IID_RATES, "by an earlier search over the same three of which no record is left"
)
_PICTURES = {"task": "office-caltech10", "rounds": 80, "cohort": 10, "lr": 0.03, "schedule": "cosine", **PLAIN}
_PICTURES_RATES = {"splitmix": 0.01, "sheterofl": 0.03, "fedavg 1/8": 0.1}
_PICTURES_CHANGED = (
    "80 rounds instead of 1000, 10 of 20 clients a round",
    _tuned(
        "four",
        _PICTURES_RATES,
        "FedAvg of 1/4 and 1/2 the best of two, 0.03, and FedAvg of 1 so, too (the released code: 0.01, constant)",
    ),
    FEWER,
)

STUDIES = {
    "digits": Study(
        "Digits",
        {"task": "digits"},
        {"task": "digits"},
        ("FedAvg of width 1: 160 rounds instead of 300", "one seed but for Split-Mix, which has three"),
    ),
    "digits-short": Study(
        "Digits",
        {"task": "digits"},
        SHORT_DIGITS,
        ("100 rounds instead of 300, 10 of 50 clients a round", RATE, "greedy order of bases", FEWER),
        recipe=False,
    ),
    "contact": Study(
        "Digits",
        {"task": "digits", "rounds": 600, "lr": 0.01},
        SHORT_DIGITS,
        ("100 rounds instead of 600", RATE, "greedy order of bases", "one seed instead of three"),
        recipe=False,
    ),
    "ablation": Study(
        "Digits",
        {"task": "digits"},
        SHORT_DIGITS,
        (
            "100 rounds instead of 300, 10 of 50 clients a round, so that a client meets a base only a few times and "
            "the statistics that clients track by themselves are far from settled",
            FEWER,
        ),
    ),
    "clock": Study(
        "Digits",
        {"task": "digits", "rounds": 3},
        {"task": "digits", "rounds": 3},
        ("seconds are those of three rounds with each of three seeds, the methods in turn",),
    ),
    "cifar10": Study(
        "CIFAR10, three classes for each client",
        {"task": "cifar10"},
        {"task": "cifar10-small", **_CIFAR},
        (f"50 rounds instead of 400, {_CIFAR_SHORT}", _CIFAR_TUNED, FEWER),
        SUBSET,
        _CIFAR_TOO_SHORT,
        rates=_CIFAR_RATES,
    ),
    "cifar10-iid": Study(
        "CIFAR10, split evenly",
        {"task": "cifar10", "partition": "iid"},
        {"task": "cifar10-small", "partition": "iid", **_CIFAR},
        (f"50 rounds instead of 400, {_CIFAR_SHORT}", _CIFAR_IID_TUNED, FEWER),
        SUBSET,
        _CIFAR_TOO_SHORT,
        rates=_CIFAR_IID_RATES,
    ),
    "cifar10-iid-half": Study(
        "half of CIFAR10, split evenly",
        {"task": "cifar10-half", "partition": "iid"},
        {"task": "cifar10-half", "partition": "iid", **_CIFAR},
        (f"50 rounds instead of 400, {_CIFAR_SHORT}", f"{_CIFAR_IID_TUNED}, found on the whole subset", FEWER),
        f"half of {SUBSET}",
        _CIFAR_HALF_TOO_SHORT,
        rates=_CIFAR_IID_RATES,
    ),
    "domainnet": Study(
        "DomainNet", {"task": "domainnet-256"}, _PICTURES, _PICTURES_CHANGED, OFFICE, rates=_PICTURES_RATES
    ),
    "attacked-digits": Study(
        "Digits, adversarial training",
        {"task": "digits", "rescale_layers": False},
        {**_ATTACKED_DIGITS, "rounds": 150, "eval_every": 25, "order": "natural"},
        ("150 rounds instead of 300, 10 of 50 clients a round", "learning rate 0.1 with a cosine", _BOUND, FEWER),
        recipe=False,
    ),
    "attacked-cifar10": Study(
        "CIFAR10 split evenly, adversarial training",
        {"task": "cifar10", "partition": "iid"},
        {"task": "cifar10-small", "partition": "iid", **_CIFAR, "rounds": 30},
        (f"30 rounds instead of 400, {_CIFAR_SHORT}", _carried_over(_CIFAR_IID_RATES), FEWER),
        SUBSET,
        _CIFAR_ATTACKED_TOO_SHORT,
        rates=_CIFAR_IID_RATES,
    ),
    "attacked-cifar10-x1": Study(
        "CIFAR10 split evenly, adversarial training of one full net",
        {"task": "cifar10", "partition": "iid", "norm": "local"},
        {"task": "cifar10-small", "partition": "iid", **_CIFAR, "rounds": 30},
        (
            "nets of width 1/8 instead of 1",
            f"30 rounds instead of 400, {_CIFAR_SHORT}",
            "norm statistics averaged by the server instead of kept by each client",
            "learning rate 0.1 with a cosine, the best of three for FedAvg without attacks",
            FEWER,
        ),
        SUBSET,
        _CIFAR_ATTACKED_TOO_SHORT,
    ),
    "attacked-digits-x1": Study(
        "Digits, adversarial training of one full net",
        {"task": "digits"},
        {**_ATTACKED_DIGITS, "rounds": 40},
        (
            "nets of width 1/4 instead of 1",
            "40 rounds instead of 300, 10 of 50 clients a round",
            "learning rate 0.1 with a cosine, the best of three for each kind of training",
            _BOUND,
            FEWER,
        ),
        recipe=False,
    ),
    "attacked-domainnet": Study(
        "DomainNet, adversarial training",
        {"task": "domainnet-256", "norm": "local"},
        {**_PICTURES, "rounds": 60, "cohort": 5},
        (
            "60 rounds instead of 800, 5 of 20 clients a round",
            "norm statistics averaged by the server instead of kept by each client",
            _carried_over(_PICTURES_RATES),
            FEWER,
        ),
        OFFICE,
        rates=_PICTURES_RATES,
    ),
}
