"""The table of objectives: a name, and the local loss that clients minimise."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import signature
from typing import Any

from splitmix.attacks import find_attack
from splitmix.attacks.pgd import PGD
from splitmix.core.errors import UserError, by_name, make_named
from splitmix.core.objective import Objective
from splitmix.objectives.adversarial import Adversarial, OnceForAll
from splitmix.objectives.losses import Masked, Plain

OF_ATTACK = tuple(field.name for field in fields(PGD))  # settings of an objective that are those of its attack


def find_objective(value: str | Mapping[str, Any]) -> Objective:
    """An objective by its name, or by {name=..., its own settings, those of its attack}.

    >>> find_objective({"name": "adversarial", "weight": 0.3, "eps": "4/255", "steps": 3}).attack.name
    'L-inf PGD, eps 4/255, 3 steps of 2/255, random start, 1 restart'
    """
    name, options = by_name("objective", value, OBJECTIVES)
    attacks = "attack" in signature(OBJECTIVES[name]).parameters
    of_attack = OF_ATTACK if attacks else ()
    if attacks:
        chosen = {key: options.pop(key) for key in of_attack if key in options}
        options["attack"] = find_attack({"name": options.get("attack", "pgd7"), **chosen})
    objective = make_named("objective", name, OBJECTIVES[name], options, of_attack)
    if not isinstance(objective, Objective):
        raise UserError(f"objective {name} is a mere function; make it a class that inherits from {__name__}.Objective")
    if isinstance(objective, Adversarial) and objective.dual and objective.weight in (0, 1):
        raise UserError(
            f"with weight {objective.weight:g} one of the two norms is never trained; "
            "choose a weight between 0 and 1, or dual=false for single norms"
        )
    return objective


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "plain": Plain,
    "masked": Masked,
    "adversarial": Adversarial,
    "oat": OnceForAll,
}
