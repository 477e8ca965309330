"""Accounts of what methods cost with the tiny net."""

from helpers.toys import ATOM, FULL, HALF, Tiny
from splitmix.compare.costs import Account
from splitmix.core.types import Setting
from splitmix.methods import find_method
from splitmix.objectives.losses import Plain

SETTING = Setting(ATOM, (ATOM, HALF, FULL), seed=3, rounds=4)
TINY = {width: 9 * c * c + 18 * c + 3 for width, c in ((ATOM, 2), (HALF, 4), (FULL, 8))}  # 75, 219, 723 parameters


def tiny(method, **options):
    made = find_method(method, SETTING)
    return Account(made, Tiny, (6, 6, 1), made.objective(Plain()), batch=4, **options)
