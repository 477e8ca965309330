"""From a finished run to a bundle that a device can serve."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from splitmix.core.errors import UserError
from splitmix.core.inputs import Kind, made, spread
from splitmix.core.net import Build, Net
from splitmix.core.types import Weights
from splitmix.core.width import Width, parse_width
from splitmix.data.task import Task
from splitmix.methods.privacy import find_privacy
from splitmix.nets import NETS, find_net
from splitmix.nets.cost import weightless
from splitmix.nets.slim import Slim
from splitmix.runs.config import Config, make_config, read_toml
from splitmix.runs.finish import NORM_TEXT, Outcome, stored_outcome, versions
from splitmix.runs.graphs import MIXING, Sampled, graph_of
from splitmix.runs.measure.grid import GridRecord, read_grid
from splitmix.runs.measure.intervals import INTERVAL, interval
from splitmix.runs.records import Result, StoredClient, StoredScore
from splitmix.runs.setup import make_build, with_needs
from splitmix.runtime.about.examples import MOST_CLASSES, MOST_EACH, MOST_ROWS, Examples, example_row
from splitmix.runtime.bundle import Bundle, base_bytes, write_bundle
from splitmix.runtime.manifest import (
    GRAPHED,
    NAMED,
    PIXELS,
    BaseRecord,
    CostRecord,
    Manifest,
    NetRecord,
    NormKind,
    ScalingRecord,
    ScoreRecord,
    Storage,
    TableRecord,
)
from splitmix.runtime.strict import what_is_wrong

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
    config: Config,
    outcome: Outcome,
    out: Path,
    packing: Packing,
    grid: GridRecord | None = None,
    build: Build | None = None,
) -> Bundle:
    """Bundle a run: its bases in the order in which they are mixed, and all that was measured.

    `build` makes a user's own net; without it, it is imported by the name that the run was given.
    """
    check_objective(outcome.weights)
    check_method(config)
    result, kind = outcome.result, kind_of(outcome.result, packing.image)
    sampled = sampled_net(config, outcome, packing, build)
    net, atom = Net(weightless(sampled.build)), sampled.atom
    check_weights(net, atom, outcome.weights)
    if net.statistic_names(atom):
        check_bundled_norm(config, packing.calibrate)
    norm: NormKind = "tracked" if config.norm == "tracked" else "global"
    files = base_files(outcome, net.norm_names(atom), packing.storage)
    graph = graph_of(sampled, outcome.weights, outcome.order, own=str(result["net"]) not in NETS)
    classes = sampled.classes()
    try:
        manifest = Manifest(
            schema_version=NAMED if graph is None else GRAPHED,
            net=NetRecord(
                name=str(result["net"]),
                classes=classes,
                dual=is_dual(outcome),
                rescale_layers=config.rescale_layers is True,
            ),
            atom=str(atom),
            sample=kind,
            image=list(image_of(result, packing.image)),
            pixels=PIXELS[kind],
            classes=class_names(config.task, classes, packing.classes or result.get("classes", ())),
            norm=norm,
            norm_text=NORM_TEXT[norm if net.statistic_names(atom) else "none"],
            storage=packing.storage,
            bases=[
                BaseRecord(trained_as=base, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
                for base, data in zip(outcome.order, files, strict=True)
            ],
            costs=costs_of(sampled, [len(data) for data in files]),
            table=table_of(result, norm, grid),
            times=result.get("times", {}),
            graph=graph,
            scaling=ScalingRecord.model_validate(dict(said)) if (said := result.get("scaling")) else None,
            trained=trained_of(config, result),
            versions=versions(),
        )
    except ValidationError as error:
        raise UserError(f"the run cannot be bundled: {what_is_wrong(error)}") from None
    return write_bundle(out, manifest, files)


def sampled_net(config: Config, outcome: Outcome, packing: Packing, given: Build | None) -> Sampled:
    """The run's net, and what one sample is to it."""
    image, kind = image_of(outcome.result, packing.image), kind_of(outcome.result, packing.image)
    made = build_of(config, outcome, given)
    sampled = Sampled.of(made, parse_width(config.atom), image, kind)
    return replace(sampled, build=made.on(sampled.made_up(2))) if isinstance(made, Slim) else sampled


def base_files(outcome: Outcome, norms: set[str], storage: Storage) -> list[bytes]:
    """A file for each base, in the order in which they are mixed."""
    rows = [{entry: value[row].numpy() for entry, value in outcome.weights.items()} for row in outcome.order]
    return [base_bytes(row, norms, storage, f"base {i} of the run") for i, row in zip(outcome.order, rows, strict=True)]


def is_dual(outcome: Outcome) -> bool:
    """Whether the net has noisy norms beside its clean ones."""
    return any(".noisy." in entry for entry in outcome.weights)


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


def check_bundled_norm(config: Config, calibrate: bool) -> None:
    """A bundle has the statistics of its norms; a device must give one image the answer that it gives many."""
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


def build_of(config: Config, outcome: Outcome, given: Build | None) -> Build:
    """What makes the run's net at a width: a net of ours by its name, a user's own as it is given, or imported."""
    name, needs = str(outcome.result["net"]), {"dual": True} if is_dual(outcome) else {}
    if name not in NETS and given is not None:
        return given
    sample = tuple(outcome.result.get("image") or ())
    named = partial(make_build, config, name, sample=sample)
    atom, takes = parse_width(config.atom), "classes" in signature(find_net(name)).parameters or name in NETS
    if not takes:
        return with_needs(named(1), needs)
    two, three = (Net(weightless(named(classes))).shapes(atom) for classes in (2, 3))
    last = next((entry for entry in two if two[entry] != three[entry]), "")
    classes = outcome.weights[last].shape[1] if last in outcome.weights else 0
    return with_needs(named(max(1, classes)), needs)


def image_of(result: Result, given: Sequence[int]) -> tuple[int, ...]:
    """The shape of a sample: as the run says, as the user says, or as the net has it."""
    net = NETS.get(str(result["net"]))
    if found := tuple(result.get("image") or given):
        return found
    if net is None or getattr(net, "any_size", False):
        raise UserError("the run does not say how large its images are; give --image, such as 256x256x3")
    return tuple(net.image)  # type: ignore[attr-defined]


def kind_of(result: Result, given: Sequence[int]) -> Kind:
    """What a sample is, as the run says; older ones tell by its shape alone."""
    rank = len(result.get("image") or given or (0, 0, 0))
    kinds: dict[str, Kind] = {"image": "image", "features": "features", "signal": "signal", "tokens": "tokens"}
    return kinds.get(result.get("kind", ""), "image" if rank == 3 else "features" if rank == 1 else "signal")


def check_weights(net: Net, atom: Width, weights: Weights) -> None:
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


def costs_of(net: Sampled, sizes: Sequence[int]) -> list[CostRecord]:
    one = net.cost()
    return [
        CostRecord(
            width=str(net.atom * bases),
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


def choose_examples(task: Task, names: Sequence[str], each: int) -> Examples:
    """The first test pictures of each class, or of ten of them, in every domain: nobody picks them.

    They are the data of somebody: a bundle has them only if it is asked to.
    """
    if not 1 <= each <= MOST_EACH:
        raise UserError(f"{each} examples of a class were asked for; give 1 to {MOST_EACH}")
    if task.kind != "image" or len(task.image) != 3 or task.image[2] not in (1, 3):
        raise UserError(
            "examples are pictures with one or three colours, which this task does not have; leave them out"
        )
    shown = spread(range(len(names)), MOST_CLASSES)
    rows = []
    for number, domain in enumerate(task.domains[:MOST_ROWS]):
        here = np.flatnonzero(task.test.domain == number)
        labels = task.test.labels[here]
        places = np.concatenate([here[labels == label][:each] for label in shown])
        of = [names[label] for label in task.test.labels[places]]
        rows.append(example_row(domain, made(task.test.images, places), of))
    return Examples(rows=[row for row in rows if row.pictures])
