"""Add a federated method of your own: one class, one line in the table. Run: python examples/add_a_method.py"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import splitmix
from splitmix.core.reproducible import rng_for
from splitmix.core.types import Layout, Part, Profile, Setting
from splitmix.data.mini import mini_domains
from splitmix.data.task import make_task
from splitmix.methods import METHODS
from splitmix.methods.nested import Nested, affordable


@dataclass(frozen=True)
class RandomWindow(Nested):
    """Like HeteroFL, but a client's window begins at a random channel, drawn anew in every round."""

    seed: int = 0

    @classmethod
    def for_setting(cls, setting: Setting) -> Self:
        return cls(setting.budgets, setting.seed)

    @property
    def layout(self) -> Layout:
        return replace(super().layout, moving=True)

    def assign(self, round: int, cohort: Sequence[Profile]) -> Mapping[int, tuple[Part, ...]]:
        return {profile.client: (self._window(round, profile),) for profile in cohort}

    def _window(self, round: int, profile: Profile) -> Part:
        shift = int(rng_for(self.seed, "window", round, profile.client).integers(1000))  # wraps around in each layer
        return Part(0, affordable(self.widths, profile)[-1], shift)


METHODS["randomwindow"] = RandomWindow.for_setting  # the line that makes it known to configs and to the command line


def main() -> None:
    task = make_task("pen", mini_domains()[:1], clients=4, val_ratio=0.25)  # the first domain of the embedded task
    print(f"{'method':14}{'width 1/8':>11}{'width 1/4':>11}")
    for method in ("heterofl", "randomwindow"):
        model = splitmix.train(task, method=method, rounds=4, budgets="1/8 1/4", workers=1, progress=False)
        rows = [row for row in model.result["scores"] if row["norm"] == "client"]
        print(f"{method:14}" + "".join(f"{row['accuracy']:>11.1%}" for row in rows))


if __name__ == "__main__":
    main()
