"""Every exhibit: the paper's tables and figures, and a few that it does not have."""

from collections.abc import Mapping, Sequence

from splitmix.core.errors import UserError, unknown
from splitmix_paper.exhibit import Exhibit
from splitmix_paper.exhibits.ablation import TABLE4
from splitmix_paper.exhibits.budgets import FIGURE11A, FIGURE11B, FIGURE11C, FIGURE12
from splitmix_paper.exhibits.clients import DOMAINS_DIGITS, FIGURE5, FIGURE6
from splitmix_paper.exhibits.curves import FIGURE2, FIGURE4, FIGURE9, FIGURE13
from splitmix_paper.exhibits.dials import FIGURE7A, FIGURE7B, FIGURE7C, FIGURE7D, JOINT_DIGITS
from splitmix_paper.exhibits.nets import FIGURE10, TABLE2, TABLE3
from splitmix_paper.exhibits.widths import (
    TABLE1_CIFAR10,
    TABLE1_DIGITS,
    TABLE1_DOMAINNET,
    TABLE5_HALF,
    TABLE5_IID,
    WEIGHTING,
)

# cheap and important ones first: this is the order in which `all` is run
_LISTED: tuple[Exhibit, ...] = (
    *(FIGURE10, TABLE2, TABLE3, FIGURE11C, FIGURE11B, WEIGHTING, JOINT_DIGITS, TABLE4, TABLE1_DIGITS, FIGURE9, FIGURE5),
    *(DOMAINS_DIGITS, FIGURE12, FIGURE11A, TABLE1_DOMAINNET, FIGURE2, FIGURE6, TABLE1_CIFAR10, FIGURE4, FIGURE13),
    *(TABLE5_IID, TABLE5_HALF, FIGURE7B, FIGURE7D, FIGURE7C, FIGURE7A),
)
EXHIBITS: Mapping[str, Exhibit] = {exhibit.name: exhibit for exhibit in _LISTED}


def in_order_of_the_paper() -> list[Exhibit]:
    """Tables by number, then figures, then what the paper does not have."""
    kinds = ("Table", "Figure", "Beyond")

    def order(exhibit: Exhibit) -> tuple[int, int, str]:
        kind, number, *_ = exhibit.place.split()
        return kinds.index(kind), int("".join(filter(str.isdigit, number)) or 0), exhibit.name

    return sorted(EXHIBITS.values(), key=order)


def find_exhibits(names: Sequence[str]) -> list[Exhibit]:
    """The exhibits of these names, or all of them for `all`, in the order in which they are run."""
    for name in names:
        if name != "all" and name not in EXHIBITS:
            raise unknown("entry", name, (*EXHIBITS, "all"))
    if not names:
        raise UserError("no entry is named; give some names of `splitmix paper list`, or all")
    return [exhibit for name, exhibit in EXHIBITS.items() if name in names or "all" in names]
