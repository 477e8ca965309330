"""The runs that an entry needs: each is known by the hash of its full config, stored once and never run twice."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from splitmix.attacks import find_attack
from splitmix.core.errors import UserError
from splitmix.runs.config import Config, make_config, read_toml
from splitmix_paper.memory import Known, read_known
from splitmix_paper.studies import STUDIES, TINY, method_words
from splitmix_paper.tiny import tiny_folder

DIALS = (0.0, 0.2, 0.5, 0.8, 1.0)
USUAL_ATTACK, RELEASED_ATTACK = "pgd7", "pgd7-released"  # the paper's, and that of the authors' code
REPORT = "report.json"


@dataclass(frozen=True)
class Attacked:
    """What is to be measured under attack once a run is done: all dials at these widths."""

    widths: tuple[str, ...]
    images: int | None = None  # of each client; None: all
    attack: str = RELEASED_ATTACK

    def filled(self, grid: Mapping[str, Any]) -> bool:
        """Whether a stored grid has it all."""
        measured, same = {row["width"] for row in grid["rows"]}, grid["attack"] == find_attack(self.attack).name
        return same and grid.get("images") == self.images and measured >= set(self.widths)


@dataclass(frozen=True)
class Need:
    """A run that an entry needs, with each of its seeds."""

    label: str
    study: str
    own: Mapping[str, Any]
    seeds: tuple[int, ...] = (1,)
    attacked: Attacked | None = None

    def config(self, scale: str, seed: int, out: Path) -> Config:
        """The full config of one of its runs."""
        settings = STUDIES[self.study].settings(scale, self.own)
        if settings["task"] == TINY:
            settings["task"] = str(tiny_folder(out.resolve() / TINY))
        return make_config({key: value for key, value in settings.items() if value is not None} | {"seed": seed})


@dataclass(frozen=True)
class Change:
    """What a user changes of all runs: their seeds, if any are named, and the precision of local training."""

    seeds: tuple[int, ...] = ()
    mixed: bool = False

    def of(self, needs: Iterable[Need]) -> list[Need]:
        own = {"precision": "mixed"} if self.mixed else {}
        return [replace(need, own={**need.own, **own}, seeds=self.seeds or need.seeds) for need in needs]


AS_LISTED = Change()


class Store:
    """The folder of all runs. A run is found by its config wherever it lies below, so finished ones can be put there.

    A folder that was copied here from elsewhere counts if its config is the same; its name does not matter.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = out / "runs"

    def folder(self, config: Config) -> Path:
        """Where the run of this config is, or will be."""
        return self._known.get(config.digest()) or self.root / run_name(config)

    def holds(self, digest: str) -> bool:
        """Whether the folder of a finished run of this config is here."""
        return digest in self._known and (self._known[digest] / "result.json").exists()

    @cached_property
    def reported(self) -> dict[str, Known]:
        """What the last report of these runs tells, by entry."""
        return read_known(self.out / REPORT)

    @cached_property
    def _known(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for file in sorted([*self.root.glob("*/config.toml"), *self.root.glob("*/*/config.toml")]):
            try:
                digest = make_config(read_toml(file)).digest()
            except UserError:
                continue  # of another version, or damaged
            if digest not in found or (file.parent / "result.json").exists():
                found[digest] = file.parent
        return found


def run_name(config: Config) -> str:
    """A folder's name that people can read and that no other config has."""
    words = [Path(config.task).name, *method_words(config.method), f"s{config.seed}"]
    slug = re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower().replace("/", "of")).strip("-")
    return f"{slug}-{config.digest()[:10]}"
