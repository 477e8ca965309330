"""The catalogue: an entry for every table and figure of the paper."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from splitmix.core.errors import UserError, unknown
from splitmix_paper import expected, printed, sets
from splitmix_paper.claims import Claim
from splitmix_paper.needs import USUAL_ATTACK, Need
from splitmix_paper.printed import Printed
from splitmix_paper.studies import STUDIES

Needs = Callable[[str], Sequence[Need]]


@dataclass(frozen=True)
class Entry:
    """A table or figure: what must be run for it, how it is shown, what the paper says and prints."""

    name: str
    place: str  # in the paper
    title: str
    shown: str  # which of the ways to show results; see `views`
    needs: Needs
    claims: Sequence[Claim] = ()
    printed: Printed = field(default_factory=dict)
    labels: Sequence[str] = ()  # the names that the paper's source has for it
    net: str = ""  # whose printed costs stand beside ours
    unit: str = "accuracy in %"

    def studies(self) -> list[str]:
        """The settings that it rests on."""
        return list(dict.fromkeys(need.study for need in self.needs("cpu")))

    def reduced(self, scale: str) -> list[str]:
        """What a scale changes, in words."""
        if scale == "smoke":
            return ["a tiny net on a few tiny pictures, two rounds: nothing here says anything about the method"]
        if scale == "paper":
            return []
        studies = [STUDIES[name] for name in self.studies()]
        several = len({study.title for study in studies}) > 1
        told = [
            f"{study.title}: {', '.join(study.changed)}" if several else "; ".join(study.changed) for study in studies
        ]
        return list(dict.fromkeys(told))

    def substitutes(self, scale: str) -> list[str]:
        """Which data stands in for the paper's."""
        if scale != "cpu":
            return []
        return list(dict.fromkeys(STUDIES[name].data for name in self.studies() if STUDIES[name].data))


# cheap and important ones first: this is the order in which `all` is run
_LISTED = (
    Entry(
        "figure10-samples",
        "Figure 10",
        "Pictures of each domain",
        "samples",
        sets.nothing,
        labels=["fig:image_samples"],
    ),
    Entry(
        "table2-digit-net",
        "Table 2",
        "The net for Digits",
        "layers",
        sets.nothing,
        expected.layers(printed.DIGIT_NET),
        printed.DIGIT_NET,
        ["tbl:digits"],
        "digit",
        "outputs, and size of the kernel",
    ),
    Entry(
        "table3-alexnet",
        "Table 3",
        "The net for DomainNet",
        "layers",
        sets.nothing,
        expected.layers(printed.ALEXNET),
        printed.ALEXNET,
        ["tbl:AlexNet"],
        "alexnet",
        "outputs, and size of the kernel",
    ),
    Entry(
        "figure11c-lognormal",
        "Figure 11 (c)",
        "Log-normal budgets",
        "budgets",
        sets.budgets(("lognormal",), peer="HeteroFL"),
        expected.budgets(("lognormal",), "HeteroFL"),
        labels=["fig:ln_budget_dist"],
    ),
    Entry(
        "figure11b-steps",
        "Figure 11 (b)",
        "Budgets that rise in steps",
        "budgets",
        sets.budgets(("steps-eighth", "steps-quarter")),
        expected.budgets(("steps-eighth", "steps-quarter"), "SHeteroFL"),
        labels=["fig:vary_budget_dist_step"],
    ),
    Entry(
        "weighting-digits",
        "Beyond the paper",
        "SHeteroFL with fair and with the released weights of clients",
        "widths",
        sets.weighting,
        expected.WEIGHTING,
    ),
    Entry(
        "joint-digits",
        "Beyond the paper",
        "Width and robustness together, on Digits",
        "dials",
        sets.joint("attacked-digits", (0, 0.2, 0.5, 1), attack=USUAL_ATTACK, shown="pgd20", images=20),
        expected.JOINT,
        unit="accuracy in %, clean and under attack",
    ),
    Entry(
        "table4-ablation",
        "Table 4",
        "Norm statistics and rescaling",
        "ablation",
        sets.ablation,
        expected.ABLATION,
        printed.TABLE4,
        ["tab:ablation_scale"],
    ),
    Entry(
        "table1-digits",
        "Table 1, Digits",
        "Customising the width on Digits",
        "widths",
        sets.table1_digits,
        expected.table1(comparable=True),
        printed.TABLE1_DIGITS,
        ["tbl:per_size"],
        "digit",
    ),
    Entry(
        "figure9-wall-clock",
        "Figure 9",
        "Learning curves by measured time",
        "clock",
        sets.wall_clock,
        expected.CLOCK,
        labels=["fig:slimmable_converg_curves_time"],
        unit="seconds of a round",
    ),
    Entry(
        "figure5-clients",
        "Figure 5",
        "Accuracy, traffic and work of single clients",
        "clients",
        sets.pick(sets.table1_digits, ("Split-Mix", "SHeteroFL", "FedAvg 1/8")),
        expected.CLIENTS,
        labels=["fig:train_efficiency"],
        unit="as named",
    ),
    Entry(
        "domains-digits",
        "Beyond the paper",
        "Which domain trains what, and what it loses, Digits",
        "domains",
        sets.pick(sets.table1_digits, ("Split-Mix", "SHeteroFL", *sets.FEDAVG)),
        expected.DOMAINS,
        unit="as named",
    ),
    Entry(
        "figure12-contact",
        "Figure 12",
        "Fewer clients in each round",
        "contact",
        sets.contact,
        expected.CONTACT,
        labels=["fig:Digits_pr_nuser"],
    ),
    Entry(
        "figure11a-skewed",
        "Figure 11 (a)",
        "More clients with large budgets",
        "budgets",
        sets.budgets(("skewed-8111", "skewed-8211", "skewed-8221", "skewed-8441")),
        expected.budgets(("skewed-8111", "skewed-8211", "skewed-8221", "skewed-8441"), "SHeteroFL"),
        labels=["fig:vary_budget_dist_skew"],
    ),
    Entry(
        "table1-domainnet",
        "Table 1, DomainNet",
        "Customising the width on DomainNet",
        "widths",
        sets.sized("domainnet"),
        expected.table1(),
        printed.TABLE1_DOMAINNET,
        ["tbl:per_size"],
        "alexnet",
    ),
    Entry(
        "figure2-convergence",
        "Figure 2",
        "Learning curves by width, DomainNet",
        "convergence",
        sets.curves(("domainnet",)),
        expected.convergence(("domainnet",)),
        labels=["fig:domainnet_split_val_acc_converg"],
        unit="validation accuracy in % after the last round",
    ),
    Entry(
        "figure6-domains",
        "Figure 6",
        "Which domain trains what, and what it loses, DomainNet",
        "domains",
        sets.sized("domainnet"),
        expected.DOMAINS,
        labels=["fig:DomainNet_domain_width_mat"],
        unit="as named",
    ),
    Entry(
        "table1-cifar10",
        "Table 1, CIFAR10",
        "Customising the width on CIFAR10, three classes for each client",
        "widths",
        sets.sized("cifar10"),
        expected.table1(),
        printed.TABLE1_CIFAR10,
        ["tbl:per_size"],
        "preresnet18",
    ),
    Entry(
        "figure4-full-width",
        "Figure 4",
        "Learning curves of the widest affordable nets",
        "full-width",
        sets.three(("Split-Mix", "SHeteroFL", "FedAvg 1/8")),
        expected.FULL_WIDTH,
        labels=["fig:slimmable_converg_curves"],
        unit="validation accuracy in % after the last round",
    ),
    Entry(
        "figure13-convergence",
        "Figure 13",
        "Learning curves by width, Digits and CIFAR10",
        "convergence",
        sets.curves(("digits", "cifar10")),
        expected.convergence(("digits", "cifar10")),
        labels=["fig:ex_split_val_acc_converg"],
        unit="validation accuracy in % after the last round",
    ),
    Entry(
        "table5-iid",
        "Table 5, 100 %",
        "Customising the width on CIFAR10, split evenly",
        "widths",
        sets.sized("cifar10-iid"),
        expected.table1(),
        printed.TABLE5_IID,
        ["tbl:per_size_cls_niid"],
        "preresnet18",
    ),
    Entry(
        "table5-iid-half",
        "Table 5, 50 %",
        "Customising the width on half of CIFAR10, split evenly",
        "widths",
        sets.sized("cifar10-iid-half"),
        expected.table1(),
        printed.TABLE5_IID_HALF,
        ["tbl:per_size_cls_niid"],
        "preresnet18",
    ),
    Entry(
        "figure7b-digits",
        "Figure 7 (b)",
        "Robustness against accuracy of one net, Digits",
        "dials",
        sets.single("attacked-digits-x1", (0, 0.1, 0.2, 0.3, 0.5, 1), cpu_width="1/4", attack=USUAL_ATTACK, images=40),
        expected.SINGLE,
        labels=["fig:oat"],
        unit="accuracy in %, clean and under attack",
    ),
    Entry(
        "figure7d-domainnet",
        "Figure 7 (d)",
        "Width and robustness together, DomainNet",
        "dials",
        sets.joint("attacked-domainnet", (0, 0.5, 1)),
        expected.JOINT,
        labels=["fig:oat"],
        unit="accuracy in %, clean and under attack",
    ),
    Entry(
        "figure7c-cifar10",
        "Figure 7 (c)",
        "Width and robustness together, CIFAR10",
        "dials",
        sets.joint("attacked-cifar10", (0, 0.5, 1), images=5),
        expected.JOINT,
        labels=["fig:oat"],
        unit="accuracy in %, clean and under attack",
    ),
    Entry(
        "figure7a-cifar10",
        "Figure 7 (a)",
        "Robustness against accuracy of one net, CIFAR10",
        "dials",
        sets.single("attacked-cifar10-x1", (0, 0.5, 1), cpu_width="1/8", images=5),
        expected.SINGLE,
        labels=["fig:oat"],
        unit="accuracy in %, clean and under attack",
    ),
)
ENTRIES: Mapping[str, Entry] = {entry.name: entry for entry in _LISTED}


def in_order_of_the_paper() -> list[Entry]:
    """Tables by number, then figures, then what the paper does not have."""
    kinds = ("Table", "Figure", "Beyond")
    return sorted(ENTRIES.values(), key=lambda entry: (kinds.index(entry.place.split()[0]), _number(entry), entry.name))


def _number(entry: Entry) -> int:
    return int("".join(filter(str.isdigit, entry.place.split()[1].rstrip(","))) or 0)


def find_entries(names: Sequence[str]) -> list[Entry]:
    """The entries of these names, or all of them for `all`, in the order of the catalogue."""
    for name in names:
        if name != "all" and name not in ENTRIES:
            raise unknown("entry", name, (*ENTRIES, "all"))
    if not names:
        raise UserError("no entry is named; give some names of `splitmix paper list`, or all")
    return [entry for name, entry in ENTRIES.items() if name in names or "all" in names]
