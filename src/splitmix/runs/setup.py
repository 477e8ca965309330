"""From a config to the objects of a run, each checked before any training starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import Parameter, signature
from pathlib import Path

import torch

from splitmix.core.batches import as_images
from splitmix.core.errors import UserError
from splitmix.core.method import Method
from splitmix.core.net import Build, Net
from splitmix.core.objective import Attack, Objective, Trial
from splitmix.core.rounds import SCHEDULES, Federation
from splitmix.core.score import Mix, mean_accuracy, middle_accuracy
from splitmix.core.types import Layout, Plan, Question, Setting, Weights, repeated
from splitmix.core.width import Width, parse_width
from splitmix.data.budgets import RoundBudgets, check_budgets, parse_budgets
from splitmix.data.task import Task
from splitmix.data.tasks import find_task
from splitmix.engines.clients import TaskClients
from splitmix.engines.simulator import Simulator
from splitmix.engines.stopwatch import Stopwatch
from splitmix.methods import find_method
from splitmix.methods.optimizers import find_optimizer, find_server
from splitmix.methods.privacy import check_private, find_privacy
from splitmix.nets import NETS, USUAL, find_net
from splitmix.nets.native.library import library
from splitmix.nets.native.stages import NativeStages
from splitmix.nets.slim import Slim
from splitmix.nets.swap import Swap, stacked_net
from splitmix.nets.trace import channels_roll, rescaled_names, trace
from splitmix.objectives import find_objective
from splitmix.runs.checks import (
    TaskFacts,
    check_attacks,
    check_dial,
    check_net,
    check_norm,
    check_statistics,
    check_validation,
    noise_of,
    samples_of,
)
from splitmix.runs.config import Config


@dataclass(frozen=True)
class Setup:
    """Everything a run needs."""

    config: Config
    task: TaskFacts
    budgets: RoundBudgets
    method: Method
    net: Net
    objective: Objective
    how: Federation
    times: Mapping[Width, tuple[int, ...]] = field(default_factory=dict)  # that bases of a mix count, if not once each

    def __repr__(self) -> str:
        return f"Setup({self.about}, {self.config.rounds} rounds, seed {self.config.seed})"

    @property
    def about(self) -> str:
        """What is trained on what by whom, in a few words."""
        layout = self.method.layout
        who = f"{self.config.method_name} on {self.task.name}: {len(self.task.shards)} clients"
        return f"{who}, {layout.count} x width {layout.width}"

    @property
    def domains(self) -> dict[int, str]:
        """Each client and its domain."""
        return {client: shard.domain for client, shard in enumerate(self.task.shards)}

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """What the best round is chosen by."""
        return find_objective(self.config.objective).trials

    @cached_property
    def dial(self) -> bool:
        """Whether the model can be turned between accurate and robust."""
        return bool(find_objective(self.config.objective).needs)

    @property
    def has_statistics(self) -> bool:
        """Whether the net has norms that are served with statistics."""
        return bool(self.net.statistic_names(self.method.layout.width))

    @property
    def tracked(self) -> bool:
        """Whether clients keep running statistics in training; with a dial always: its attacks are on fixed norms."""
        return self.config.norm in ("tracked", "local") or (self.config.norm == "post" and self.dial)

    @property
    def noise(self) -> Attack | None:
        """The attack that makes the images on which noisy norms are calibrated, if there are any: that of training."""
        return noise_of(self.trials)

    @property
    def image(self) -> tuple[int, ...]:
        return self.task.image

    @property
    def overall(self) -> Callable[[Sequence[float]], float]:
        """What rounds and bases are chosen by, of the accuracies of the clients."""
        return middle_accuracy if self.how.clip else mean_accuracy

    def mixes(self, widths: Sequence[Width] = ()) -> dict[Width, Mix]:
        """The mix of each width, or of all if none is named."""
        mixes = {width: self.method.compose(width) for width in widths or self.method.widths}
        return {width: repeated(mix, self.times.get(width, (1,) * len(mix))) for width, mix in mixes.items()}

    def question(self, split: str, norm: str = "stored") -> Question:
        """How clients are asked for their accuracy."""
        local, noise = self.config.norm == "local", self.noise if norm == "client" else None
        return Question(split, norm, self.config.eval_batch, local_norms=local, noise=noise)

    def clients(self, device: str = "cpu") -> TaskClients:
        """The clients, if their images are here."""
        if not isinstance(self.task, Task):
            raise TypeError(f"the images of the task '{self.task.name}' are elsewhere; give the run an engine")
        return TaskClients(self.task, self.budgets, device)

    def engine(self, workers: int, device: str = "cpu", stopwatch: Stopwatch | None = None) -> Simulator:
        layout, clients = self.method.layout, self.clients(device)
        if self.config.kernels == "native":
            library()  # compiled before there are workers; and who cannot is told at once
        return Simulator(self.net, layout, clients, self.objective, workers, device, stopwatch=stopwatch)

    def fresh_weights(self) -> Weights:
        config, layout = self.config, self.method.layout
        return self.net.init(layout, config.seed, rescale=config.rescale_init, tracked=self.tracked)


def set_up(
    config: Config,
    *,
    root: Path | None = None,
    task: TaskFacts | None = None,
    source: object = None,
    build: Build | None = None,
) -> Setup:
    """Make the objects of a run; a user's own task (or data to make it of) and net take the place of the named ones."""
    if task is None:
        settings = {"clients": config.clients, "partition": config.partition, "val_ratio": config.val_ratio}
        source = config.task if source is None else source
        task = find_task(source, root=root, seed=config.seed, settings=settings, data=config.data)
    check_validation(config, task)
    atom = parse_width(config.atom)
    budgets = parse_budgets(config.budgets, clients=len(task.shards), seed=config.seed)
    check_budgets(budgets, atom)
    setting = Setting(atom, tuple(sorted(set(budgets.at(0)))), config.seed, config.rounds)
    method = find_method(config.method, setting)
    given = find_objective(config.objective)
    own = build is not None or needed_net(config, task) not in NETS
    if build is not None and config.kernels == "native":
        check_staged(build, "of your own")
    build = build or make_build(config, needed_net(config, task), task.classes, task.image)
    build = with_needs(build.on(samples_of(task, 2)) if isinstance(build, Slim) else build, given.needs)
    check_norm(config.norm, method, given, setting.budgets)
    if any(trial.attack for trial in given.trials):
        check_attacks(task)
    check_statistics(config)
    check_net(build, method.layout.width, task, dial=bool(given.needs))
    check_dial(build, method.layout.width)
    net = traced_net(build, method.layout, task) if own else Net(build)
    setup = Setup(config, task, budgets, method, net, method.objective(given), federation(config))
    if setup.how.privacy is not None:
        check_private(config.model_dump(), tracked=setup.tracked and config.norm != "local")
    return setup


def usual_net(config: Config, task: TaskFacts) -> str:
    """The net that is named, that of the task, or the usual one for such samples; nothing where there is none."""
    return config.net or task.net or USUAL.get((task.kind, len(task.image)), "")


def needed_net(config: Config, task: TaskFacts) -> str:
    name = usual_net(config, task)
    if not name:
        raise UserError(
            f"there is no net in the table for {task.kind} of shape {task.image}, which those of '{task.name}' have; "
            "give one of your own, by net=module:function or as the function build(width)"
        )
    return name


def make_build(config: Config, name: str, classes: int, sample: tuple[int, ...] = ()) -> Build:
    """The named net with what it takes of these: a user's own may take the width alone."""
    net = find_net(name)
    offered: dict[str, object] = {"classes": classes, "rescale_layers": config.rescale_layers}
    if config.kernels == "native":
        check_staged(net, name)
        offered["stages"] = NativeStages()
    takes = signature(net).parameters
    offered |= {"sample": sample} if sample and "sample" in takes else {}
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in takes.values()):
        return partial(net, **offered)
    taken = {key: value for key, value in offered.items() if key in takes}
    return partial(net, **taken) if taken else net


def check_staged(net: object, name: str) -> None:
    """Refuse native kernels for a net that has none: not one of ours that is made of stages, given by its name."""
    if not getattr(net, "staged", False):
        raise UserError(f"there are no native kernels for a net {name}, only for digit; use kernels = 'torch'")


def with_needs(build: Build, needs: Mapping[str, bool]) -> Build:
    """The net as the objective needs it, such as with dual norms: a plain net is given those by itself."""
    takes = signature(build).parameters
    if not needs or any(parameter.kind is Parameter.VAR_KEYWORD for parameter in takes.values()):
        return partial(build, **needs) if needs else build
    for need in needs.keys() - takes.keys():
        if need == "dual":
            return Swap(build, stacked=False, dual=True)
        raise UserError(
            f"this objective needs a net with a robustness dial, but this one takes no setting '{need}'; "
            f"write it as build(width, *, {need}=False) with norms from splitmix.nets, or choose another net"
        )
    return partial(build, **needs)


def traced_net(build: Build, layout: Layout, task: TaskFacts) -> Net:
    """A user's own net, with what must be known of it: to start narrow nets well, to shift windows, to stack bases."""
    width, plain = layout.width, Net(build)
    rng = torch.Generator().manual_seed(0)
    x = samples_of(task, 4) if task.kind == "tokens" else as_images(torch.rand(4, *task.image, generator=rng))
    traced = trace(build(width), x)
    loop = layout.count > 1 and not plain.template(width).stackable
    net = stacked_net(build, width, x) if loop else plain
    net.axes, net.known_blocks = len(task.image), traced.blocks
    net.rescaled = rescaled_names(net, width, traced)
    if layout.moving and not channels_roll(net, width, net.init(Layout(1, width), 0), x):
        raise UserError(
            "this method shifts its windows over the channels, but this net computes something else when its channels "
            "are moved on together, as with groups or heads; choose a method without shifts, such as heterofl, or "
            "another net"
        )
    return net


def federation(config: Config) -> Federation:
    options: dict[str, dict[str, object]] = {
        "cosine": {"floor": config.floor},
        "steps": {"milestones": tuple(config.milestones)},
    }
    schedule = SCHEDULES[config.schedule](**options.get(config.schedule, {}))  # type: ignore[arg-type]
    plan = Plan(
        config.lr,
        config.epochs,
        config.batch,
        config.momentum,
        config.weight_decay,
        config.precision,
        config.norm_rate,
        proximal=config.proximal,
        **find_optimizer(config.optimizer),
    )
    return Federation(
        config.rounds,
        plan,
        schedule,
        config.cohort,
        config.seed,
        config.norm == "local",
        run=config.digest()[:16],
        clip=config.clip,
        min_share=config.min_share,
        repeats=config.repeats,
        min_updates=config.min_updates,
        max_samples=config.max_samples,
        server=find_server(config.server),
        average=round(config.average * config.rounds),
        aggregate=config.aggregate,
        privacy=find_privacy(config.privacy),
    )
