"""What an exhibit is: a table or figure of the paper that owns its runs, its numbers, its claims and its pictures.

To add one, list it in `exhibits.toml`, with a class in `exhibits/` or a new one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from splitmix.attacks import find_attack
from splitmix.core.width import parse_width
from splitmix.report.drawing import Picture
from splitmix.report.tables import Table
from splitmix.runs.config import Config, make_config
from splitmix_paper.claims import Cell, Claim, Place
from splitmix_paper.rows import SECONDS, WORK, Measured, Row, Rows, own_settings
from splitmix_paper.stand_in import stand_in_folder
from splitmix_paper.studies import STAND_IN, STUDIES, WIDTHS, method_words

Printed = Mapping[Place, float]  # what the paper prints
Draw = Callable[[], Picture]

DIALS = (0.0, 0.2, 0.5, 0.8, 1.0)
USUAL_ATTACK, RELEASED_ATTACK = "pgd7", "pgd7-released"  # the paper's, and that of the authors' code
SYNTH = "a substitute in place of SynthDigits (rendered after its description)"


@dataclass(frozen=True)
class Attacked:
    """What is to be measured under attack once a run is done: all dials at these widths."""

    widths: tuple[str, ...]
    images: int | None = None  # of each client; None: all
    attack: str = RELEASED_ATTACK

    def met_by(self, measured: Measured) -> bool:
        """Whether it was measured, just so."""
        name = find_attack(self.attack).name
        under = [row for row in measured.grid() if row.attack == name and row.images == self.images]
        return {row.width for row in under} >= set(self.widths)


@dataclass(frozen=True)
class Need:
    """A run that an exhibit needs, with each of its seeds."""

    series: str
    study: str
    own: Mapping[str, Any]
    seeds: tuple[int, ...] = (1,)
    group: str = ""  # series of several groups are told apart by it
    attacked: Attacked | None = None
    priced: bool = False  # whether what clients spend is asked for

    @property
    def label(self) -> str:
        return Place(self.series, "", self.group).heading

    def config(self, scale: str, seed: int, out: Path) -> Config:
        """The full config of one of its runs."""
        settings = STUDIES[self.study].settings(scale, self.own)
        if settings["task"] == STAND_IN:
            settings["task"] = str(stand_in_folder(out.resolve() / STAND_IN))
        return make_config({key: value for key, value in settings.items() if value is not None} | {"seed": seed})

    def about(self, scale: str, config: Config, domains: Iterable[str]) -> dict[str, Any]:
        """What all rows of such a run say of it."""
        data = STUDIES[self.study].data if scale == "cpu" else ""
        return {
            "study": self.study,
            "scale": scale,
            "method": " ".join(method_words(config.method)),
            "seed": config.seed,
            "config": config.digest(),
            "settings": own_settings(config),
            "substitutes": [*([data] if data else []), *([SYNTH] if "synth_substitute" in domains else [])],
        }

    def met_by(self, measured: Measured | None) -> bool:
        """Whether all that is shown of it is known."""
        if measured is None or (self.priced and measured.find(WORK) is None):
            return False
        return self.attacked is None or self.attacked.met_by(measured)


@dataclass(frozen=True)
class Change:
    """What a user changes of all runs: their seeds, if any are named, and the precision of local training."""

    seeds: tuple[int, ...] = ()
    mixed: bool = False

    def of(self, needs: Iterable[Need]) -> list[Need]:
        own = {"precision": "mixed"} if self.mixed else {}
        return [replace(need, own={**need.own, **own}, seeds=self.seeds or need.seeds) for need in needs]


AS_LISTED = Change()


@dataclass(frozen=True)
class Runs:
    """What is known of a need's runs, by seed."""

    need: Need
    seeds: Mapping[int, Measured]

    @property
    def first(self) -> Measured:
        return next(iter(self.seeds.values()))

    def cell(self, key: str, find: Callable[[Measured], Row | None], *, series: str = "", **place: str) -> Cell | None:
        """A number of the table, in per cent; none if no seed knows it."""
        rows = {seed: row for seed, run in self.seeds.items() if (row := find(run)) is not None}
        if not rows:
            return None
        return Cell(
            Place(series or self.need.series, key, place.pop("group", self.need.group), **place),
            {seed: 100 * row.value for seed, row in rows.items()},
            {seed: [None if v is None else 100 * v for v in row.clients] for seed, row in rows.items() if row.clients},
        )

    def by_width(self, widths: Sequence[str] = WIDTHS, norm: str = "batch", **place: str) -> Iterator[Cell]:
        """Test accuracy at each of these widths that all seeds serve."""
        served = set.intersection(*(set(run.widths) for run in self.seeds.values()))
        for width in sorted(served & set(widths), key=parse_width):
            if (cell := self.cell(width, lambda run, at=width: run.score(at, norm), **place)) is not None:  # type: ignore[misc]
                yield cell


@dataclass(frozen=True)
class Exhibit:
    """A table or figure: what must be run for it, its numbers, what the paper says and prints, and its pictures."""

    name: str
    place: str  # in the paper
    title: str
    labels: Sequence[str] = ()  # the names that the paper's source has for it
    printed: Printed = field(default_factory=dict)
    unit: str = "accuracy in %"

    shareable = True  # whether its pictures may stand in a repository: images of the data may not

    @staticmethod
    def read_printed(table: Any) -> Printed:
        """What the paper prints, from an entry of `exhibits.toml`."""
        raise NotImplementedError

    def needs(self, scale: str) -> Sequence[Need]:
        """The runs that it rests on."""
        return ()

    def cells(self, evidence: "Evidence") -> Iterator[Cell]:
        """The numbers of its table."""
        return iter(())

    def derived(self, evidence: "Evidence", cells: Sequence[Cell]) -> Iterator[Cell]:
        """Further numbers that claims look at."""
        return iter(())

    def claims(self) -> Sequence[Claim]:
        """What the paper says of it."""
        return ()

    def pictures(self, evidence: "Evidence", cells: Sequence[Cell]) -> Iterator[Draw]:
        """What is drawn, if there is enough to draw."""
        return iter(())

    def costs(self) -> Table | None:
        """The cost of each width beside the printed one, where the paper prints it."""
        return None

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


@dataclass(frozen=True)
class Evidence:
    """What rows tell of the runs that an exhibit needs, at a scale."""

    exhibit: Exhibit
    scale: str
    rows: Rows
    change: Change = AS_LISTED
    root: Path | None = None  # of the data, for sample images

    @cached_property
    def wanted(self) -> list[tuple[Need, int, Config]]:
        """Every run that it needs, with the seed and the config of each."""
        out = self.rows.file.parent
        needs = self.change.of(self.exhibit.needs(self.scale))
        return [(need, seed, need.config(self.scale, seed, out)) for need in needs for seed in need.seeds]

    @cached_property
    def known(self) -> dict[str, tuple[Config, Measured]]:
        """The runs that the numbers are of, by the hash of their config."""
        met: dict[str, list[bool]] = {}
        found = {}
        for need, _, config in self.wanted:
            digest = config.digest()
            if (measured := self.rows.of(digest)) is not None:
                met.setdefault(digest, []).append(need.met_by(measured))
                found[digest] = (config, measured)
        return {digest: pair for digest, pair in found.items() if all(met[digest])}

    @cached_property
    def runs(self) -> dict[str, Runs]:
        """What is known of each need, by its label; needs of which nothing is known are left out."""
        found: dict[str, tuple[Need, dict[int, Measured]]] = {}
        for need, seed, config in self.wanted:
            if (pair := self.known.get(config.digest())) is not None:
                found.setdefault(need.label, (need, {}))[1][seed] = pair[1]
        return {label: Runs(need, seeds) for label, (need, seeds) in found.items()}

    @property
    def total(self) -> int:
        return len({config.digest() for _, _, config in self.wanted})

    @property
    def complete(self) -> bool:
        return len(self.known) == self.total

    @property
    def begun(self) -> bool:
        return not self.total or bool(self.known)

    @property
    def state(self) -> str:
        """How far it is, in words."""
        if self.complete:
            return "done"
        return f"{len(self.known)} of {self.total} runs done" if self.begun else "not run yet"

    @cached_property
    def substitutes(self) -> list[str]:
        """Which data is not the paper's."""
        told = (text for _, measured in self.known.values() for text in measured.rows[0].substitutes)
        return list(dict.fromkeys([*self.exhibit.substitutes(self.scale), *told]))

    @property
    def stand_ins(self) -> list[str]:
        """The same in short."""
        return [re.sub(r" \([^)]*\)", "", text) for text in self.substitutes]

    @property
    def seconds(self) -> list[float]:
        """How long the runs took, as far as that is known."""
        found = (measured.find(SECONDS) for _, measured in self.known.values())
        return [row.value for row in found if row is not None]

    @property
    def sources(self) -> dict[str, int]:
        """Where rows come from that were not read from a run, and of how many runs."""
        told = [measured.rows[0].source for _, measured in self.known.values() if not measured.own]
        return {source: told.count(source) for source in dict.fromkeys(told)}

    def cells(self) -> list[Cell]:
        return list(self.exhibit.cells(self)) if self.begun else []
