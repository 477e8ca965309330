"""The shape that each table and figure should have: what the paper says of it, as claims that code can judge."""

from collections.abc import Sequence

from splitmix_paper.claims import Claim, grows, higher, near, times
from splitmix_paper.printed import NORMS, WIDTHS, Printed
from splitmix_paper.sets import COHORTS, DISTRIBUTIONS, FEDAVG, OURS, RELEASED, SHETEROFL, SPLITMIX

FULL = "1"
AUTHORS, PRINTED = "authors' code", "paper"  # what others measured
_HALF, _WHOLE = "1/2", "1"


def layers(listed: Printed) -> tuple[Claim, ...]:
    """Every layer has as many outputs, and every convolution the kernel, that the paper lists."""
    pairs = [((name, key), (name, f"{key} of the paper")) for name, keys in listed.items() for key in keys]
    return (near("Our net has the layers that the paper lists", *pairs, within=0),)


def table1(*, comparable: bool = False) -> tuple[Claim, ...]:
    """What the paper says of its tables of widths."""
    claims = [
        grows("Wider is better for Split-Mix", SPLITMIX, WIDTHS),
        higher("SHeteroFL falls from width 1/2 to 1", ((SHETEROFL, _HALF), (SHETEROFL, _WHOLE))),
        higher("At full width Split-Mix is above SHeteroFL", ((SPLITMIX, _WHOLE), (SHETEROFL, _WHOLE))),
        higher("At width 1/2 Split-Mix is above SHeteroFL", ((SPLITMIX, _HALF), (SHETEROFL, _HALF))),
        higher(
            "With the same width Split-Mix is above SHeteroFL (the text, for all widths)",
            *(((SPLITMIX, width), (SHETEROFL, width)) for width in WIDTHS),
        ),
        higher(
            "Split-Mix at full width is above FedAvg of width 1/8, the only one within all budgets",
            ((SPLITMIX, _WHOLE), (FEDAVG[0], "1/8")),
        ),
    ]
    if comparable:
        claims += [
            near(
                "At full width Split-Mix is comparable with FedAvg of width 1 (within 1 point)",
                ((SPLITMIX, _WHOLE), (FEDAVG[3], _WHOLE)),
                within=1.0,
            ),
            higher(
                "With our recommended settings Split-Mix is above itself as released",
                *(((OURS, width), (SPLITMIX, width)) for width in WIDTHS),
            ),
            near(
                "With the released settings Split-Mix is within 0.8 points of the authors' code on the same data",
                *(((SPLITMIX, width), (AUTHORS, width)) for width in WIDTHS),
                within=0.8,
            ),
            higher(
                "With our recommended settings Split-Mix is above the authors' code and the printed values",
                *(((OURS, width), (other, width)) for other in (AUTHORS, PRINTED) for width in WIDTHS),
            ),
        ]
    return tuple(claims)


WEIGHTING = (
    higher("SHeteroFL falls at full width when each client counts once", ((SHETEROFL, _HALF), (SHETEROFL, _WHOLE))),
    higher("It falls with the released weights, too", ((RELEASED, _HALF), (RELEASED, _WHOLE))),
)
ABLATION = (
    higher(
        "Rescaled initialisation improves Split-Mix whatever the norm statistics",
        *(((f"{norm}, init", width), (f"{norm}, neither", width)) for norm in NORMS for width in (WIDTHS[0], FULL)),
    ),
    near(
        "Rescaled layers barely matter with the statistics of the batch (within 1 point)",
        *(
            ((f"batch average, {a}", FULL), (f"batch average, {b}", FULL))
            for a, b in (("layers", "neither"), ("both", "init"))
        ),
        within=1.0,
    ),
    higher(
        "Rescaled layers are poisonous for tracked statistics (by 30 points or more)",
        *(((f"{norm}, init", FULL), (f"{norm}, both", FULL)) for norm in ("tracked", "locally tracked")),
        by=30,
    ),
    higher(
        "Locally tracked statistics are above tracked ones",
        *(((f"locally tracked, {s}", FULL), (f"tracked, {s}", FULL)) for s in ("neither", "init")),
    ),
    higher(
        "Post average is the best of all (both rescaled, full width)",
        *(((f"post average, {s}", FULL), (f"batch average, {s}", FULL)) for s in ("both",)),
    ),
)
FULL_WIDTH = tuple(
    claim
    for study in ("digits", "domainnet", "cifar10")
    for claim in (
        higher(
            f"{study}: Split-Mix ends above both rivals",
            ((f"{study}: {SPLITMIX}", FULL), (f"{study}: {SHETEROFL}", FULL)),
            ((f"{study}: {SPLITMIX}", FULL), (f"{study}: {FEDAVG[0]}", "1/8")),
        ),
        times(
            f"{study}: Split-Mix needs fewer rounds than SHeteroFL for what both reach",
            (f"{study}: {SPLITMIX}", "rounds"),
            (f"{study}: {SHETEROFL}", "rounds"),
            most=1.0,
        ),
    )
)
CLIENTS = (
    higher(
        "Full-width accuracy of the clients is above SHeteroFL's", ((SPLITMIX, "accuracy"), (SHETEROFL, "accuracy"))
    ),
    higher("It varies less from client to client than SHeteroFL's", ((SHETEROFL, "spread"), (SPLITMIX, "spread"))),
    times(
        "A client loads fewer parameters in a round than under SHeteroFL",
        (SPLITMIX, "download"),
        (SHETEROFL, "download"),
        most=1.0,
    ),
    times("A client computes less for a batch than under SHeteroFL", (SPLITMIX, "work"), (SHETEROFL, "work"), most=1.0),
    times("FedAvg of width 1/8 needs least", (FEDAVG[0], "work"), (SPLITMIX, "work"), most=1.0),
)
DOMAINS = (
    near(
        "Every domain trains all parameters of Split-Mix",
        ((SPLITMIX, "least trained"), (SPLITMIX, "all")),
        within=0.1,
    ),
    higher("Under SHeteroFL some domains train only a part", ((SHETEROFL, "all"), (SHETEROFL, "least trained")), by=10),
    higher(
        "SHeteroFL's worst loss against FedAvg, of all domains and widths, is larger",
        ((SPLITMIX, "worst domain"), (SHETEROFL, "worst domain")),
    ),
)
CLOCK = (
    times(
        "A round of SHeteroFL takes longer than one of Split-Mix",
        (SHETEROFL, "seconds"),
        (SPLITMIX, "seconds"),
        least=1,
    ),
    times(
        "Split-Mix is only slightly slower than FedAvg of width 1/8 (1.2 times at most)",
        (SPLITMIX, "seconds"),
        (FEDAVG[0], "seconds"),
        most=1.2,
    ),
)
CONTACT = (
    higher(
        "At full width Split-Mix is above SHeteroFL however few clients come",
        *(((f"{n} clients: {SPLITMIX}", FULL), (f"{n} clients: {SHETEROFL}", FULL)) for n in COHORTS),
    ),
    *(
        grows(f"Fewer clients, less accuracy: {label} at full width", label, [f"{n} clients" for n in COHORTS])
        for label in (SPLITMIX, SHETEROFL)
    ),
)
SINGLE = (
    higher(
        "The dial trades accuracy for robustness",
        (("Split-Mix + DAT", "clean at 0"), ("Split-Mix + DAT", "clean at 1")),
        (("Split-Mix + DAT", "attacked at 1"), ("Split-Mix + DAT", "attacked at 0")),
    ),
    higher(
        "One training with DAT is above FedAvg + AT of the same weight: accurate at one end, robust at the other",
        (("Split-Mix + DAT", "clean at 0"), ("FedAvg + AT 0.5", "clean at 0")),
        (("Split-Mix + DAT", "attacked at 1"), ("FedAvg + AT 0.5", "attacked at 0")),
    ),
    higher(
        "It is above FedAvg + OAT under attack",
        (("Split-Mix + DAT", "attacked at 1"), ("FedAvg + OAT", "attacked at 1")),
    ),
)
JOINT = (
    *(
        grows(f"Wider is better: {words}", f"Split-Mix + DAT, {key}", WIDTHS)
        for words, key in (("clean images, dial at 0", "clean at 0"), ("under attack, dial at 1", "attacked at 1"))
    ),
    higher(
        "The dial trades accuracy for robustness at every width",
        *(
            pair
            for width in WIDTHS
            for pair in (
                (("Split-Mix + DAT, clean at 0", width), ("Split-Mix + DAT, clean at 1", width)),
                (("Split-Mix + DAT, attacked at 1", width), ("Split-Mix + DAT, attacked at 0", width)),
            )
        ),
    ),
)


def budgets(names: Sequence[str], peer: str) -> tuple[Claim, ...]:
    """Under every distribution the widest mix is above the peer."""
    widest = {name: "1/2" if name == "steps-eighth" else FULL for name in names}
    labels = {name: DISTRIBUTIONS[name] for name in names}
    return tuple(
        claim
        for name in names
        for claim in (
            higher(
                f"{labels[name]}: at the largest width Split-Mix is above {peer}",
                ((f"{labels[name]}: {SPLITMIX}", widest[name]), (f"{labels[name]}: {peer}", widest[name])),
            ),
        )
    )


def convergence(studies: Sequence[str]) -> tuple[Claim, ...]:
    """Without budgets wider is better; with budgets the wide slices of one net fall behind."""
    return tuple(
        claim
        for study in studies
        for claim in (
            grows(f"{study}: FedAvg without budgets: wider is better", f"{study}: FedAvg", WIDTHS),
            higher(
                f"{study}: with budgets SHeteroFL's full width ends below its narrower ones",
                ((f"{study}: {SHETEROFL}", "1/2"), (f"{study}: {SHETEROFL}", FULL)),
            ),
        )
    )
