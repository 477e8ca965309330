"""What methods of many small bases share: how the bases are laid out, and which of them make up a width."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from splitmix.core.errors import UserError
from splitmix.core.random import rng_for
from splitmix.core.types import Layout, Part, Setting, Width, check_multiple

EIGHTH = Width(1, 8)


@dataclass(frozen=True)
class Bases:
    """`count` bases of width `atom`; `order` names them from first to last to be mixed."""

    atom: Width = EIGHTH
    count: int = 8
    seed: int = 0
    order: tuple[int, ...] = ()

    @classmethod
    def for_setting(cls, setting: Setting) -> Self:
        """As many bases as the strongest client can train."""
        check_atom(setting)
        return cls(setting.atom, int(max(setting.budgets) / setting.atom), setting.seed)

    @property
    def layout(self) -> Layout:
        return Layout(self.count, self.atom)

    @property
    def widths(self) -> tuple[Width, ...]:
        return tuple(self.atom * bases for bases in range(1, self.count + 1))

    def compose(self, width: Width) -> tuple[Part, ...]:
        return first_bases(width, self.atom, self.order or tuple(range(self.count)))

    def in_turn(self, position: int) -> int:
        """The base at a position of an endless sequence in which every `count` consecutive ones are a fresh shuffle."""
        lap, place = divmod(position, self.count)
        return int(rng_for(self.seed, "cycle", lap).permutation(self.count)[place])


def first_bases(width: Width, atom: Width, order: Sequence[int]) -> tuple[Part, ...]:
    """The bases that make up a width, from the first of the order on."""
    check_multiple(width, atom)
    wanted = int(width / atom)
    if wanted > len(order):
        widest = atom * len(order)
        raise UserError(f"width {width} needs {wanted} bases but only {len(order)} were trained; widest: {widest}")
    return tuple(Part(base, atom) for base in order[:wanted])


def check_atom(setting: Setting) -> None:
    """Refuse an atom of which some budget holds no whole number: that client could not use all of its budget."""
    odd = [budget for budget in setting.budgets if budget % setting.atom != 0]
    if odd:
        fitting = Width(1, math.lcm(*(budget.denominator for budget in setting.budgets)))
        raise UserError(
            f"the atom {setting.atom} does not divide the budget {odd[0]}; "
            f"choose atom {fitting}, or budgets that are multiples of {setting.atom}"
        )
