"""From a finished run to a bundle that a device can serve."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pydantic import ValidationError

from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.core.types import Weights
from splitmix.core.width import Width, parse_width
from splitmix.methods.privacy import find_privacy
from splitmix.nets import NETS
from splitmix.nets.cost import cost, weightless
from splitmix.runs.config import Config, make_config, read_toml
from splitmix.runs.finish import NORM_TEXT, Outcome, stored_outcome, versions
from splitmix.runs.measure.grid import GridRecord, read_grid
from splitmix.runs.measure.intervals import INTERVAL, interval
from splitmix.runs.records import Result, StoredClient, StoredScore
from splitmix.runtime.bundle import Bundle, base_bytes, write_bundle
from splitmix.runtime.manifest import (
    SCHEMA,
    BaseRecord,
    CostRecord,
    Manifest,
    NetRecord,
    NormKind,
    ScoreRecord,
    Storage,
    TableRecord,
    what_is_wrong,
)

MIXING = ("splitmix", "fedensemble")  # methods whose widths are mixes of bases
CLASSES = {"cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")}


@dataclass(frozen=True)
class Packing:
    """How a run is to be bundled."""

    storage: Storage = "float32"
    calibrate: bool = False  # serve a batch-average run with its global statistics
    classes: tuple[str, ...] = ()
    image: tuple[int, ...] = ()


def bundle_run(run: Path, out: Path, packing: Packing = Packing()) -> Bundle:  # noqa: B008  (frozen)
    """Bundle the finished run in a folder."""
    outcome = stored_outcome(run)
    config = make_config(read_toml(run / "config.toml"), own=("task", "net"))  # neither is needed here
    return bundle_outcome(
        config, outcome, out, packing, read_grid(file) if (file := run / "grid.json").exists() else None
    )


def bundle_outcome(
    config: Config, outcome: Outcome, out: Path, packing: Packing, grid: GridRecord | None = None
) -> Bundle:
    """Bundle a run: its bases in the order in which they are mixed, and all that was measured."""
    check_objective(outcome.weights)
    check_method(config)
    norm = served_norm(config, packing.calibrate)
    atom, result = parse_width(config.atom), outcome.result
    net = net_record(config, outcome, atom)
    made = Net(weightless(net.build()))
    check_entries(made, atom, outcome.weights)
    files = [base_bytes(outcome.weights, row, made.norm_names(atom), packing.storage) for row in outcome.order]
    image = image_of(result, net, packing.image)
    try:
        manifest = Manifest(
            schema_version=SCHEMA,
            net=net,
            atom=str(atom),
            image=list(image),
            classes=class_names(config.task, net.classes, packing.classes or result.get("classes", ())),
            norm=norm,
            norm_text=NORM_TEXT[norm],
            storage=packing.storage,
            bases=[
                BaseRecord(trained_as=base, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
                for base, data in zip(outcome.order, files, strict=True)
            ],
            costs=costs_of(net, atom, image, [len(data) for data in files]),
            table=table_of(result, norm, grid),
            times=result.get("times", {}),
            trained=trained_of(config, result),
            versions=versions(),
        )
    except ValidationError as error:
        raise UserError(f"the run cannot be bundled: {what_is_wrong(error)}") from None
    return write_bundle(out, manifest, files)


def check_objective(weights: Weights) -> None:
    """A device turns robustness by blending two norms; a dial that goes through layers of its own is another thing."""
    if any(".film." in entry for entry in weights):
        raise UserError(
            "a run with objective=oat cannot be bundled, as its robustness dial is not a blend of two norms; "
            f"train with method={' or '.join(MIXING)} and objective=adversarial"
        )


def check_method(config: Config) -> None:
    """Only where a width is a mix of bases can a device do with the first few of them."""
    if config.method_name not in MIXING:
        raise UserError(
            f"a run of '{config.method_name}' cannot be bundled, as its widths are not mixes of bases; "
            f"train with {' or '.join(MIXING)}"
        )


def served_norm(config: Config, calibrate: bool) -> NormKind:
    """Which statistics the bundle has; a device must give one image the answer that it gives many."""
    if find_privacy(config.privacy) is not None:
        raise UserError(
            "a run with privacy cannot be bundled, as no norm statistics left its clients and a device needs some; "
            "score it where it was trained, with: splitmix eval"
        )
    if config.norm == "local":
        raise UserError(
            "a run with norm=local cannot be bundled, as its norms never left the clients; train with norm=post or "
            "norm=tracked"
        )
    if config.norm == "batch" and not calibrate:
        raise UserError(
            "a run with norm=batch normalises by the batch at hand, which a single image has not; "
            "give --calibrate to bundle it with fixed statistics, one set for all clients"
        )
    return "tracked" if config.norm == "tracked" else "global"


def net_record(config: Config, outcome: Outcome, atom: Width) -> NetRecord:
    name = str(outcome.result["net"])
    if name not in NETS:
        raise UserError(
            f"the net '{name}' is one of your own, which a device could not build from its name; "
            f"bundle runs of {', '.join(NETS)}"
        )
    two, three = (Net(weightless(partial(NETS[name], classes=classes))).shapes(atom) for classes in (2, 3))
    last = next(entry for entry in two if two[entry] != three[entry])
    classes = outcome.weights[last].shape[1] if last in outcome.weights else 0
    dual = any(".noisy." in entry for entry in outcome.weights)
    return NetRecord(name=name, classes=max(1, classes), dual=dual, rescale_layers=config.rescale_layers is True)


def image_of(result: Result, net: NetRecord, given: Sequence[int]) -> tuple[int, ...]:
    """Height, width and channels: as the run says, as the user says, or as the net has it."""
    found = tuple(result.get("image") or given or ())
    if found:
        return found
    if getattr(NETS[net.name], "any_size", False):
        raise UserError("the run does not say how large its images are; give --image, such as 256x256x3")
    return tuple(NETS[net.name].image)  # type: ignore[attr-defined]


def check_entries(net: Net, atom: Width, weights: Weights) -> None:
    """The run's weights are those of the named net, with statistics in every norm."""
    lost = sorted(net.statistic_names(atom) - weights.keys())
    blank = [
        n for n in net.statistic_names(atom) if n.endswith("running_var") and not weights.get(n, torch.ones(1)).any()
    ]
    if lost or blank:
        raise UserError(
            f"the run has no statistics for '{(lost or sorted(blank))[0]}'; train it with norm=tracked to bundle it"
        )
    if {name: tuple(value.shape[1:]) for name, value in weights.items()} != {
        name: tuple(shape) for name, shape in net.shapes(atom).items()
    }:
        raise UserError("the run's weights are not those of its net; train it anew")


def class_names(task: str, count: int, given: Sequence[str]) -> list[str]:
    names = list(given) or list(CLASSES.get(task, ())) or [str(i) for i in range(count)]
    if len(names) != count or len(set(names)) < count:
        raise UserError(f"{len(names)} names of classes are given, but the run has {count}; name each class once")
    return names


def costs_of(net: NetRecord, atom: Width, image: tuple[int, ...], sizes: Sequence[int]) -> list[CostRecord]:
    one = cost(net.build(), atom, image)
    return [
        CostRecord(
            width=str(atom * bases),
            bases=bases,
            parameters=one.parameters * bases,
            macs=one.macs * bases,
            bytes=sum(sizes[:bases]),
        )
        for bases in range(1, len(sizes) + 1)
    ]


def table_of(result: Result, norm: str, grid: GridRecord | None) -> TableRecord:
    """What was measured with the statistics that are served: the run's grid, or else its clean accuracies."""
    if grid is None:
        rows = [clean_row(row, result["clients"]) for row in result["scores"] if row["norm"] == norm]
        return TableRecord(split="test", norm=norm, clients=len(result["clients"]), interval=INTERVAL, rows=rows)
    if grid["norm"] != norm:
        raise UserError(
            f"the run's grid.json was measured with '{grid['norm']}' statistics, but a device has '{norm}' ones; "
            f"measure it again with: splitmix eval RUN --norm {norm} --robust ..."
        )
    if grid.get("weights_sha256", result.get("weights_sha256")) != result.get("weights_sha256"):
        raise UserError("the run's grid.json is of other weights; measure it again with: splitmix eval")
    known = {key: value for key, value in grid.items() if key in TableRecord.model_fields}
    kept = [{key: value for key, value in row.items() if key in ScoreRecord.model_fields} for row in grid["rows"]]
    return TableRecord.model_validate({**known, "rows": kept})


def clean_row(row: StoredScore, clients: Sequence[StoredClient]) -> ScoreRecord:
    """A clean accuracy of the run's result, with its interval over clients."""
    values = [value for value in row.get("clients", ()) if value is not None]
    domains = [client.get("domain") for client in clients]
    low, high = interval(values, domains) if len(values) == len(domains) else (None, None)
    return ScoreRecord(width=row["width"], robust=0.0, clean=row["accuracy"], clean_low=low, clean_high=high)


def trained_of(config: Config, result: Result) -> dict[str, str]:
    kept = ("task", "data", "method", "seed", "rounds", "best_round", "command", "weights_sha256")
    texts = {key: " ".join(str(result.get(key, "")).split())[:2000] for key in kept}
    return {**texts, "config": config.digest()}
