"""What does not fit is said before any training: a task, a net, norms and a method that cannot go together."""

from collections.abc import Collection, Sequence, Sized
from pathlib import Path
from traceback import extract_tb
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from splitmix.core.batches import as_images
from splitmix.core.errors import UserError
from splitmix.core.inputs import Kind, Scaling, made
from splitmix.core.method import Method
from splitmix.core.net import Build, Net, entries_of
from splitmix.core.objective import Attack, Objective, Trial
from splitmix.core.width import Width
from splitmix.data.task import Task
from splitmix.methods.bases import Bases
from splitmix.nets.swap import Swap
from splitmix.runs.config import Config


class ClientFacts(Protocol):
    """What a run knows of a client: where its images are from, and how many there are."""

    @property
    def domain(self) -> str: ...

    @property
    def train(self) -> Sized: ...

    @property
    def val(self) -> Sized: ...

    @property
    def test(self) -> Sized: ...


class TaskFacts(Protocol):
    """What a run knows of its task, wherever the images are."""

    @property
    def name(self) -> str: ...

    @property
    def domains(self) -> tuple[str, ...]: ...

    @property
    def shards(self) -> Sequence[ClientFacts]: ...

    @property
    def image(self) -> tuple[int, ...]: ...

    @property
    def classes(self) -> int: ...

    @property
    def net(self) -> str: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def scaling(self) -> Scaling | None: ...


def check_validation(config: Config, task: TaskFacts) -> None:
    """The best round is chosen on validation images; norms that use the batch's statistics need two of them.

    Shares of bases are fitted on one half of them and tried on the other.
    """
    least = (1 if config.norm in ("tracked", "local") else 2) * (2 if config.mix == "fitted" else 1)
    if all(len(shard.val) < least for shard in task.shards):
        raise UserError(
            f"no client of the task '{task.name}' has {least} validation images, by which the best round is chosen; "
            "raise val_ratio or ask for fewer clients"
        )


def check_statistics(config: Config) -> None:
    """Only where norms are calibrated after training is there a choice between statistics."""
    if config.statistics != "client" and config.norm != "post":
        raise UserError(
            f"statistics '{config.statistics}' are measured after training, but norm '{config.norm}' has its own; "
            "choose norm 'post', or leave statistics out"
        )


def noise_of(trials: Sequence[Trial]) -> Attack | None:
    """The attack that an objective is judged by with its noisy norms."""
    return next((trial.attack for trial in trials if trial.robust and trial.attack), None)


def check_norm(norm: str, method: Method, given: Objective, budgets: Collection[Width]) -> None:
    """A dial blends fixed statistics, which must be tracked; norms that stay on a client know one width only."""
    dial = bool(given.needs)
    if dial and (norm == "batch" or (norm == "post" and noise_of(given.trials) is None)):
        raise UserError(
            f"norm '{norm}' keeps no statistics of attacked images, which a net with a robustness dial needs; "
            "choose norm 'tracked' or 'local', or 'post' with an objective that attacks"
        )
    if (norm == "tracked" or dial) and method.layout.nested and method.layout.width > max(budgets):
        others = "choose" if dial else "choose norm 'post' or 'batch', or"
        raise UserError(
            f"nobody tracks statistics of width {method.layout.width}, the largest budget is {max(budgets)}; "
            f"{others} a width that some client trains"
        )
    if norm == "local" and isinstance(method, Bases) and method.forked:
        raise UserError(
            "with norm 'local' the norms of base 0 stay on the clients, and no other base could start from them; "
            "choose norm 'post', 'batch' or 'tracked', or a method without a fork"
        )
    if norm == "local" and method.layout.nested:
        raise UserError(
            f"norm 'local' needs parts of one width, but this method nests {len(method.layout.nested) + 1} widths in "
            "one net, and a client's own norms fit just one of them; choose norm 'post', 'batch' or 'tracked'"
        )


def check_attacks(task: TaskFacts) -> None:
    """An attack moves pixels between 0 and 1: other samples have no such bounds."""
    if task.kind in ("signal", "tokens") or task.scaling is not None:
        raise UserError(
            f"attacks are made on images in [0, 1], but the task '{task.name}' has {task.kind}; leave the attack out"
        )


def check_net(build: Build, width: Width, task: TaskFacts, *, dial: bool = False) -> None:
    """Run two images through the net: what does not fit is said before training."""
    shape = task.image
    if task.classes < 2:
        raise UserError(f"all samples of '{task.name}' are of one class, of which nothing is learnt; give two or more")
    module = _built(build, width, task)
    check_entries(module, _built(build, width, task))
    wanted = None if getattr(module, "any_size", False) else getattr(module, "image", None)
    if wanted is not None and len(wanted) == len(shape) and wanted != shape:
        files = f", those of a folder of pictures by data={{size={wanted[0]}}}" if len(shape) == 3 else ""
        raise UserError(
            f"the net takes images of shape {wanted}, but the task '{task.name}' has {shape}; "
            f"choose another net or resize the images{files}"
        )
    try:
        logits = _try(module, task, dial)
    except UserError:
        raise  # such as a picture that cannot be read
    except Exception as error:  # whatever the net's code raises
        told = f"shape {shape}"
        if task.kind == "tokens" and isinstance(task, Task):
            most = max(int(np.asarray(part.images).max()) for part in (task.train, task.test))
            told += f", whole numbers up to {most}, for which an embedding needs {most + 1} rows"
        what = "images" if task.kind == "image" else "samples"
        first = len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)
        hint = "; channels stand last in the data, and first in what the net is given" if first else ""
        if task.kind == "features" and task.scaling is None and _whole(samples_of(task, 2)):
            hint = '; whole numbers that are not measured but name things, such as words, are data={kind="tokens"}'
        raise UserError(f"the net cannot take the {what} of '{task.name}', {told}: {_reason(error)}{hint}") from None
    if logits.dim() != 2 or logits.shape[1] != task.classes:
        given = tuple(logits.shape[1:])
        raise UserError(f"the net gives outputs of shape {given} for an image, but the task has {task.classes} classes")


def _whole(x: torch.Tensor) -> bool:
    return bool((x >= 0).all() and torch.equal(x, x.round()))


def _built(build: Build, width: Width, task: TaskFacts) -> nn.Module:
    try:
        module = build(width)
    except UserError:
        raise
    except Exception as error:  # whatever the user's code raises
        hint = "; build(width) is given a fraction, so count channels by int(64 * width), or give splitmix.slim(module)"
        raise UserError(
            f"the net cannot be built at width {width} for {task.classes} classes: {_reason(error)}"
            f"{hint if isinstance(error, TypeError) else ''}"
        ) from None
    if not isinstance(module, nn.Module):
        raise UserError(f"build(width) gives a {type(module).__name__}; let it return a plain module of PyTorch")
    return module


def check_entries(module: nn.Module, again: nn.Module) -> None:
    """Refuse a net whose weights have no shapes yet, or which is another one whenever it is built."""
    lazy = [name for name, value in module.named_parameters() if is_lazy(value)]
    if lazy:
        raise UserError(
            f"the net has a lazy layer: '{lazy[0]}' has no shape before a batch has come; give the layer its input size"
        )
    odd = [name for name, value in module.named_parameters() if not value.is_floating_point()]
    if odd:
        raise UserError(f"the net's parameter '{odd[0]}' is complex; keep it as real numbers, by torch.view_as_real")
    odd = [name for name, value in module.named_parameters() if value.dtype != torch.float32]
    if odd:
        kind = str(dict(module.named_parameters())[odd[0]].dtype).removeprefix("torch.")
        raise UserError(
            f"the net's parameter '{odd[0]}' is {kind}; keep parameters in float32 (precision = 'mixed' is for less)"
        )
    if not any(value.requires_grad for value in module.parameters()):
        raise UserError("nothing in the net learns: none of its parameters requires a gradient; leave some unfrozen")
    shapes, other_shapes = ({n: tuple(v.shape) for n, v in entries_of(made).items()} for made in (module, again))
    if shapes != other_shapes:
        name = min(name for name, _ in shapes.items() ^ other_shapes.items())
        raise UserError(
            f"build(width) gives another net each time: its entry '{name}' has the shape {shapes.get(name)}, then "
            f"{other_shapes.get(name)}; let its sizes depend on the width alone"
        )
    held, others = entries_of(module), dict(again.named_buffers())
    for name, value in module.named_buffers():
        if name not in held and not torch.equal(value, others[name]):
            raise UserError(
                f"the net draws its buffer '{name}' anew whenever it is built, and it is not among the weights that "
                "travel; draw it by a generator with a seed of its own, or register it as persistent floats"
            )


def check_dial(build: Build, width: Width) -> None:
    """A plain net has a robustness dial if it has batch norms: each has got a noisy twin."""
    if isinstance(build, Swap) and not any(".noisy." in f".{name}" for name in Net(build).statistic_names(width)):
        raise UserError(
            "this net has no batch norms of PyTorch's own, so it has no robustness dial; choose one with batch norms, "
            'or train it without a dial by objective={name="adversarial", dual=false}'
        )


def samples_of(task: TaskFacts, count: int) -> torch.Tensor:
    """So many samples as a net takes them: some of the task's own, or zeros where those are elsewhere."""
    if not isinstance(task, Task):
        return as_images(torch.zeros(count, *task.image, dtype=torch.int64 if task.kind == "tokens" else torch.float32))
    rows = np.linspace(0, len(task.train.labels) - 1, count).round().astype(np.int64)
    return as_images(torch.from_numpy(made(task.train.images, rows)))


def _reason(error: Exception) -> str:
    """What went wrong, and in which line of the user's own code."""
    said = (str(error) or type(error).__name__).splitlines()[0]
    said = f"{type(error).__name__} {said}" if isinstance(error, KeyError) else said
    ours = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
    lines = [at for at in extract_tb(error.__traceback__) if not at.filename.startswith(ours)]
    return f"{said} ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else said


def _try(module: nn.Module, task: TaskFacts, dial: bool) -> torch.Tensor:
    """The logits of two samples, in training; some modules go other ways when they are served."""
    two = _largest(task) if task.kind == "tokens" and isinstance(task, Task) else samples_of(task, 2)
    with torch.no_grad():
        served = module.eval()(two, *([1.0] if dial else []))
    trained = module.train()(two, *([1.0] if dial else []))
    for logits in (served, trained):
        if not isinstance(logits, torch.Tensor):
            raise UserError(f"the net gives a {type(logits).__name__}; let its forward return the logits alone")
    if not trained.requires_grad:
        raise UserError(
            "the net's logits have no gradient, so nothing would learn; leave detach(), .data, numpy() and no_grad() "
            "out of its forward"
        )
    return trained


def _largest(task: Task) -> torch.Tensor:
    """The samples with the largest token, of training and of testing: what knows these knows all."""
    parts = [np.asarray(part.images) for part in (task.train, task.test)]
    return torch.from_numpy(np.stack([x[x.reshape(len(x), -1).max(1).argmax()] for x in parts]))
