"""The table of attacks: a name, and how the attack is made."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from splitmix.attacks.autoattack import AutoAttack
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError, by_name, make_named, shown
from splitmix.core.objective import Attack
from splitmix.core.width import parse_number


def fgsm(eps: float = 8 / 255, norm: str = "linf") -> PGD:
    """The fast gradient sign method: one step of size eps from the image."""
    return PGD(eps=eps, steps=1, step=eps, norm=norm, random_start=False)


def find_attack(value: str | Mapping[str, Any]) -> Attack:
    """An attack by its name, or by {name=..., its own settings}; distances may be written as fractions.

    >>> print(find_attack({"name": "pgd20", "eps": "4/255"}).name)
    L-inf PGD, eps 4/255, 20 steps of 2/255, random start, 5 restarts
    """
    name, options = by_name("attack", value, ATTACKS)
    options |= {what: _distance(what, options[what]) for what in ("eps", "step") if what in options}
    return make_named("attack", name, ATTACKS[name], options)


def _distance(what: str, value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else float(parse_number(value))
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise UserError(
            f"{what} {shown(value)} is not a distance; write a number or a fraction such as 8/255"
        ) from None


ATTACKS: dict[str, Callable[..., Attack]] = {
    "fgsm": fgsm,
    "pgd2": partial(PGD, steps=2, step=8 / 255),  # to train on: a step takes half the time that it does on pgd7
    "pgd7": PGD,  # the paper's
    "pgd7-strong": partial(PGD, eps=9 / 255, step=2.25 / 255),  # to train on, where 8/255 is to be withstood
    "pgd7-released": partial(PGD, step=10 / 7 / 255),  # the authors' code: min(1.25 eps, eps + 4/255) / steps
    "pgd20": partial(PGD, steps=20, restarts=5),
    "l2-fgsm": partial(fgsm, eps=128 / 255, norm="l2"),
    "l2-pgd20": partial(PGD, eps=128 / 255, steps=20, step=16 / 255, norm="l2", restarts=5),  # step: 2.5 eps / steps
    "autoattack": AutoAttack,
    "l2-autoattack": partial(AutoAttack, eps=128 / 255, norm="l2"),
}
