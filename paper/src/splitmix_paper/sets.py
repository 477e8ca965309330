"""Which runs the entries need: functions of the scale, so that entries share what they have in common."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from splitmix_paper.needs import RELEASED_ATTACK, USUAL_ATTACK, Attacked, Need
from splitmix_paper.printed import SCALINGS, WIDTHS

Needs = Callable[[str], Sequence[Need]]

SPLITMIX, SHETEROFL = "Split-Mix", "SHeteroFL"
FEDAVG = tuple(f"FedAvg {width}" for width in WIDTHS)
METHODS: Mapping[str, Any] = {
    SPLITMIX: "splitmix",
    SHETEROFL: "sheterofl",
    "HeteroFL": "heterofl",
    **{label: {"name": "fedavg", "width": width} for label, width in zip(FEDAVG, WIDTHS, strict=True)},
}
OURS = "Split-Mix, recommended"  # rate 0.1, the most helpful base first
RELEASED = "SHeteroFL, released weights"
COHORTS = (2, 5, 10, 20, 50)
DISTRIBUTIONS = {
    "skewed-8111": "8-1-1-1",
    "skewed-8211": "8-2-1-1",
    "skewed-8221": "8-2-2-1",
    "skewed-8441": "8-4-4-1",
    "steps-eighth": "8-4-8/3-2",
    "steps-quarter": "4-2-4/3-1",
    "lognormal": "log-normal",
    "exponential": "8-4-2-1",
}
ABLATED = {"batch average": "batch", "tracked": "tracked", "locally tracked": "local"}  # post average: same as batch


def nothing(scale: str) -> list[Need]:
    """No run at all."""
    return []


def sized(study: str, labels: Sequence[str] = (SPLITMIX, *FEDAVG[:3], SHETEROFL, FEDAVG[3])) -> Needs:
    """The methods of the paper's tables: FedAvg is trained anew for each width."""

    def needs(scale: str) -> list[Need]:
        return [Need(label, study, {"method": METHODS[label]}) for label in labels]

    return needs


def table1_digits(scale: str) -> list[Need]:
    """Split-Mix with several seeds, as released and as we recommend it; FedAvg of width 1 as long as an hour allows."""
    seeds = (1, 2) if scale == "smoke" else (1, 2, 3)
    named = {need.label: need for need in sized("digits")(scale)}
    whole = {"method": METHODS[FEDAVG[3]], **({"rounds": 160} if scale == "cpu" else {})}
    released = Need(RELEASED, "digits", {"method": {"name": "sheterofl", "released_weighting": True}})
    return [
        Need(SPLITMIX, "digits", {"method": "splitmix"}, seeds),
        Need(OURS, "digits", {"method": "splitmix", "lr": 0.1, "order": "greedy"}, seeds),
        *(named[label] for label in (*FEDAVG[:3], SHETEROFL)),
        Need(FEDAVG[3], "digits", whole),
        *([released] if scale == "paper" else []),
    ]


def pick(needs: Needs, labels: Sequence[str]) -> Needs:
    """Only those with these labels, and one seed: what is drawn of single runs."""
    return lambda scale: [replace(need, seeds=need.seeds[:1]) for need in needs(scale) if need.label in labels]


def curves(studies: Sequence[str], labels: Sequence[str] = (*FEDAVG, SHETEROFL)) -> Needs:
    """Runs of several data sets, each named with its own."""

    def needs(scale: str) -> list[Need]:
        found = []
        for study in studies:
            every = table1_digits if study == "digits" else sized(study)
            own = pick(every, labels)(scale)
            found += [replace(need, label=f"{study}: {need.label}") for need in own]
        return found

    return needs


def three(labels: Sequence[str]) -> Needs:
    """The same for all three data sets of the paper."""
    return curves(("digits", "domainnet", "cifar10"), labels)


def wall_clock(scale: str) -> list[Need]:
    """A few rounds of each method in turn, for the time; the curves are those of the table."""
    labels = (FEDAVG[0], SPLITMIX, SHETEROFL)
    seeds = (1,) if scale == "smoke" else (1, 2, 3)
    timed = [Need(f"time of {label}", "clock", {"method": METHODS[label]}, seeds) for label in labels]
    return [*timed, *pick(table1_digits, labels)(scale)]


def budgets(names: Sequence[str], peer: str = SHETEROFL) -> Needs:
    """Split-Mix and a peer under each distribution; FedAvg knows no budgets."""

    def needs(scale: str) -> list[Need]:
        found = [
            Need(f"{DISTRIBUTIONS[name]}: {label}", "digits-short", {"method": METHODS[label], "budgets": name})
            for name in names
            for label in (SPLITMIX, peer)
        ]
        return [*found, *(Need(label, "digits-short", {"method": METHODS[label]}) for label in FEDAVG)]

    return needs


def contact(scale: str) -> list[Need]:
    seeds = (1, 2, 3) if scale == "paper" else (1,)
    return [
        Need(f"{cohort} clients: {label}", "contact", {"method": METHODS[label], "cohort": cohort}, seeds)
        for cohort in COHORTS
        for label in (SPLITMIX, SHETEROFL)
    ]


def weighting(scale: str) -> list[Need]:
    released = {"method": {"name": "sheterofl", "released_weighting": True}}
    return [*sized("digits-short", (SPLITMIX, SHETEROFL))(scale), Need(RELEASED, "digits-short", released)]


def ablation(scale: str) -> list[Need]:
    """Twelve runs for sixteen rows: the post average is taken after a training with the statistics of the batch."""
    return [
        Need(
            f"{words}, {scaling}",
            "ablation",
            {
                "method": "splitmix",
                "norm": norm,
                "rescale_init": scaling in ("init", "both"),
                "rescale_layers": scaling in ("layers", "both"),
            },
        )
        for words, norm in ABLATED.items()
        for scaling in SCALINGS
    ]


def joint(
    study: str,
    weights: Sequence[float],
    *,
    attack: str = RELEASED_ATTACK,
    shown: str = RELEASED_ATTACK,
    images: int | None = None,
) -> Needs:
    """Split-Mix with dual norms at all widths and dials; FedAvg at width 1/8, trained anew for each trade-off.

    All are trained against one attack, and shown under the same or another.
    """

    def needs(scale: str) -> list[Need]:
        every = Attacked(WIDTHS, _images(scale, images), shown)
        dual = {"method": "splitmix", "objective": _objective("adversarial", attack)}
        return [
            Need("Split-Mix + DAT", study, dual, attacked=every),
            *_trained_against(study, _weights(scale, study, weights), attack, replace(every, widths=("1/8",))),
        ]

    return needs


def single(
    study: str,
    weights: Sequence[float],
    *,
    cpu_width: str,
    attack: str = RELEASED_ATTACK,
    images: int | None = None,
) -> Needs:
    """One net for all clients: a single base with dual norms, adversarial training by trade-off, once for all."""

    def needs(scale: str) -> list[Need]:
        width = cpu_width if scale == "cpu" else "1"
        here = Attacked((width,), _images(scale, images), attack)
        one = {"method": {"name": "fedavg", "width": width}}
        return [
            Need("Split-Mix + DAT", study, {**one, "objective": _objective("adversarial", attack)}, attacked=here),
            *_trained_against(study, _weights(scale, study, weights), attack, here),
            Need("FedAvg + OAT", study, {**one, "objective": _objective("oat", attack)}, attacked=here),
        ]

    return needs


def _trained_against(study: str, weights: Sequence[float], attack: str, attacked: Attacked) -> Iterator[Need]:
    for weight in weights:
        objective = _objective("adversarial", attack, weight=weight, dual=False)
        own = {"method": {"name": "fedavg", "width": attacked.widths[0]}, "objective": objective}
        yield Need(f"FedAvg + AT {weight:g}", study, own, attacked=attacked)


def _objective(name: str, attack: str, **options: Any) -> str | dict[str, Any]:
    """An objective as a config names it: what is usual is left out."""
    table = {"name": name, **({"attack": attack} if attack != USUAL_ATTACK else {}), **options}
    return table if len(table) > 1 else name


def _weights(scale: str, study: str, fewer: Sequence[float]) -> Sequence[float]:
    """At full scale those of the released sweeps."""
    if scale != "paper":
        return fewer
    return (0, 0.2, 0.3, 0.5, 0.8, 1) if "digits" in study else (0, 0.3, 0.5, 1)


def _images(scale: str, images: int | None) -> int | None:
    return {"paper": None, "cpu": images, "smoke": 4}[scale]
