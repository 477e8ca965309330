"""Recipes: sets of defaults under one name; a recipe fills in what the user left open, and nothing else."""

from collections.abc import Callable, Mapping

from splitmix.core.errors import name_of

Settings = Mapping[str, object]  # not yet checked

NESTED = ("heterofl", "sheterofl", "fedrolex", "fjord")  # slices of one wide net, like the authors' slimmable one


def apply_recipe(given: Settings) -> dict[str, object]:
    """The settings with what their recipe adds; an unknown recipe stays where it is, to be refused with all mistakes.

    >>> apply_recipe({"task": "digits", "recipe": "paper", "lr": 0.5})["lr"]
    0.5
    """
    name = given.get("recipe")
    if not isinstance(name, str) or name not in RECIPES:
        return dict(given)
    own = {key: value for key, value in given.items() if key != "recipe"}
    made = RECIPES[name](own)
    for key in ("method", "objective"):  # whose own settings a recipe fills in, too
        if isinstance(filled := made.get(key), Mapping) and name_of(filled) == name_of(own.get(key)):
            own[key] = {**filled, **as_table(own[key])}
    return {**made, **own}


def as_table(named: object) -> dict[str, object]:
    """What a setting names, with its own settings if it has any."""
    return dict(named) if isinstance(named, Mapping) else {"name": named}


def method_name(given: Settings) -> str:
    """The method that settings name, or else the default one."""
    return name_of(given.get("method", "splitmix"))


def under_attack(given: Settings) -> bool:
    """Whether the objective that settings name attacks the images that it trains on."""
    return name_of(given.get("objective", "plain")) not in ("plain", "masked")


def released(given: Settings) -> dict[str, object]:
    """What the authors' released scripts use, by task and method; where these differ from the paper, the scripts count.

    Peers that they did not run get the settings of the nearest one they did.
    """
    name = method_name(given)
    scaled = name in ("splitmix", "fedensemble")
    made = {
        "norm": "tracked" if under_attack(given) else "batch",
        "order": "natural",
        "eval_every": 5,
        "rescale_init": scaled,  # slices of a wide net begin like one anyway
        "rescale_layers": scaled or name in NESTED,
        **_PAPER_TASKS.get(_family(given), _digits)(name, given),
    }
    return {**made, **_against_attacks(name, given)} if under_attack(given) else made


def recommended(given: Settings) -> dict[str, object]:
    """What our own runs support, on validation images: a high rate, server momentum, calibrated norms, the better ones.

    Photographs and drawings, with far fewer images a class, want a tenth of that rate. Split-Mix trains its first base
    most often.
    """
    rate = 0.01 if _family(given) == "domainnet" else 0.1
    made: dict[str, object] = {"lr": rate, "order": "greedy", "norm": "post", "rescale_init": True}
    made["server"] = {"name": "momentum", "beta": 0.5}
    if given.get("privacy") is None and given.get("norm", "post") == "post":
        made["statistics"] = "chosen"  # each client's own suit other domains, those of all suit other classes
    if method_name(given) == "splitmix":
        made["method"] = {"name": "splitmix", "draws": "anchored"}
    return {**made, **_withstanding(given)} if under_attack(given) else made


def _withstanding(given: Settings) -> dict[str, object]:
    """What the recommended recipe adds against attacks.

    The affines of norms have thirty times the rate, so that the two norms of a layer part; less where a round has more
    epochs, as a blend of norms that are too far apart is worse than either. Rates stay high and late rounds are
    averaged: at low rates a net learns its few attacked images by heart. These are attacked an eighth further than they
    will be, unless the user says how.
    """
    from splitmix.objectives import OF_ATTACK  # which loads PyTorch

    epochs, objective = given.get("epochs"), as_table(given["objective"])
    rate = max(30.0 / epochs, 1.0) if isinstance(epochs, int) and epochs > 0 else 30.0
    made: dict[str, object] = {"norm_rate": rate, "floor": 0.5, "average": 0.4}
    if objective.get("name") == "adversarial" and not objective.keys() & {"attack", *OF_ATTACK}:
        made["objective"] = {"name": "adversarial", "attack": "pgd7-strong"}
    return made


RECIPES: dict[str, Callable[[Settings], dict[str, object]]] = {"paper": released, "recommended": recommended}


def _digits(name: str, given: Settings) -> dict[str, object]:
    return {"lr": 0.01 if name == "splitmix" else 0.1, "schedule": "cosine", "epochs": 1, "batch": 32}


def _cifar10(name: str, given: Settings) -> dict[str, object]:
    """Three classes for each client and a masked loss, or an even split and the plain one."""
    even = given.get("partition") == "iid"
    low = name == "splitmix" or (name == "fedavg" and not even)
    return {
        "lr": 0.01 if low else 0.1,
        "schedule": "steps",
        "milestones": [250, 350] if even and name == "splitmix" else [150, 250],
        "objective": "plain" if even else "masked",
        "rounds": 400,
        "epochs": 5,
        "batch": 128,
    }


def _domainnet(name: str, given: Settings) -> dict[str, object]:
    return {"lr": 0.01, "schedule": "constant", "rounds": 1000, "epochs": 1, "batch": 32}


def _against_attacks(name: str, given: Settings) -> dict[str, object]:
    """What changes in their scripts for adversarial training; there CIFAR10 is split evenly."""
    unscaled = {"rescale_init": False, "rescale_layers": False}
    changed: dict[str, dict[str, object]] = {
        "cifar10": {"lr": 0.1, "milestones": [200, 300] if name == "splitmix" else [150, 250], **unscaled},
        "domainnet": {"rounds": 800, **unscaled},
    }
    return changed.get(_family(given), {"lr": 0.1})


def _family(given: Settings) -> str:
    """Which of the paper's three tasks settings are for; sets of pictures that it does not have go with DomainNet."""
    task = str(given.get("task", "mini"))
    return next((family for family, tasks in _FAMILIES.items() if task.startswith(tasks)), task)


_FAMILIES = {"cifar10": ("cifar10",), "domainnet": ("domainnet", "office-caltech10", "pacs")}
_PAPER_TASKS = {"digits": _digits, "cifar10": _cifar10, "domainnet": _domainnet}
