"""A module of one width as a net of any: `slim(module)` is its `build(width)`, with the module's own code and names.

Only what layers put out is chosen: so many of the module's channels. What they take follows from what arrives when a
batch runs through: skips and concatenations, flattened maps and depthwise convolutions need no rule of their own. Where
the module's code does not go along with that, the sentence says at which layer.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from splitmix.core.errors import UserError
from splitmix.core.width import Width, parse_width
from splitmix.nets.fits import Scale, fit_of, other_sizes, outputs_of, reset
from splitmix.nets.layers import scaled
from splitmix.nets.swap import named

SAMPLES = 3  # of the batch that is run: no factor of usual sizes, so that one in the place of another is seen
OTHERWISE = "or give a build(width) of your own"
Entry = tuple[str, int]  # a bare parameter or buffer, by its name, and an axis of it


def slim(module: nn.Module, example: Tensor | None = None) -> "Slim":
    """The `build(width)` of a plain module: a ResNet, MobileNet, VGG, MLP ... as it is usually written.

    Its hidden channels are scaled; what it takes and its outputs, the classes, stay. Each net that is built starts
    afresh, by its layers' `reset_parameters`. `example` is a batch as the module takes it; `splitmix.train` finds one
    in its task.

    >>> plain = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    >>> slim(plain, torch.zeros(1, 3, 8, 8))("1/4")
    Sequential(
      (0): Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))
      (1): ReLU()
      (2): Flatten(start_dim=1, end_dim=-1)
      (3): Linear(in_features=144, out_features=10, bias=True)
    )
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"slim takes a module, not a {type(module).__name__}; give slim(net), for example")
    return Slim(module, example)


@dataclass(frozen=True, eq=False)
class Slim:
    """A module at any width; of each that was asked for, one that is copied."""

    module: nn.Module
    example: Tensor | None = None
    made: dict[Width, nn.Module] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """How a run's config speaks of the net."""
        kind = type(self.module)
        return f"{kind.__module__}:slim({kind.__qualname__})"

    def on(self, example: Tensor) -> "Slim":
        """The same for a batch like this, where none was given."""
        return self if self.example is not None else replace(self, example=example, made={})

    def __call__(self, width: Width | str | float) -> nn.Module:
        exact = parse_width(width)
        if self.example is None:
            raise UserError("slim(module) does not know what its module takes; give a batch of it: slim(module, batch)")
        if exact not in self.made:
            # the draws of the net that is built are its own; a batch goes through it, also where others are weightless
            with torch.random.fork_rng(devices=[]), self.example.device:
                self.made[exact] = narrowed(self.module, _batch(self.example), exact)
        built = copy.deepcopy(self.made[exact])
        for layer in reversed(list(built.modules())):  # what is inside first: an outer one may have its own way
            reset(layer)
        return built


@dataclass(frozen=True)
class Choice:
    """How sizes are scaled; which outputs are not, and which bare entries, of no layer, are."""

    held: frozenset[str] = frozenset()
    cut: frozenset[Entry] = frozenset()
    scale: Scale = lambda size: size


@dataclass(frozen=True)
class Attempt:
    """How far a batch got through a module of another width."""

    module: nn.Module
    arrived: Sequence[tuple[str, torch.Size]]  # what each layer was given, in the order of the calls
    steps: int
    out: Tensor | None
    mistake: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """The further the better; of those that get as far, the narrower."""
        return self.steps, -sum(entry.numel() for entry in self.module.parameters())


def narrowed(module: nn.Module, x: Tensor, width: Width) -> nn.Module:
    """The module with its hidden channels scaled to a width."""
    full = attempt(module, x, Choice())
    if full.out is None:
        raise UserError(f"the net cannot take a batch of shape {tuple(x.shape)}: {full.mistake}")
    if not isinstance(full.out, Tensor):
        raise UserError(f"the net gives a {type(full.out).__name__}; let its forward return the logits alone")
    if width == 1:
        return full.module
    choice = chosen(module, x, full)
    found = attempt(module, x, replace(choice, scale=lambda size: scaled(size, width)), full)
    if found.mistake:
        raise UserError(f"the net cannot be scaled to width {width}: {found.mistake}, {OTHERWISE}")
    _check_entries(module, full, choice)
    _tie(module, found.module, width)
    return found.module


def chosen(module: nn.Module, x: Tensor, full: Attempt) -> Choice:
    """Tries what must stay as it is, and what else must be cut, until a batch runs through a net of half the channels.

    Of half, but never of one: that would fit to any size.
    """
    choice = Choice(frozenset(_heads(module, full)[:1]), scale=lambda size: min(size, max(2, size // 2)))
    best = attempt(module, x, choice, full)
    while best.mistake:
        tried = [(option, attempt(module, x, option, full)) for option in _options(module, full, best, choice)]
        choice, further = max(tried, key=lambda pair: pair[1].rank, default=(choice, best))
        if further.steps <= best.steps:
            raise UserError(f"the net cannot be scaled: {best.mistake}, {OTHERWISE}")
        best = further
    return choice


def attempt(module: nn.Module, x: Tensor, choice: Choice, full: Attempt | None = None) -> Attempt:
    """Run a batch through a copy whose layers take on their sizes when they are reached."""
    made = copy.deepcopy(module).train()
    for entry, axis in choice.cut:
        _cut(made, entry, axis, choice.scale)
    run = _Run(choice, full)
    handles = [handle for name, layer in _layers(made) for handle in run.watch(name, layer)]
    out, mistake = None, ""
    try:
        with torch.no_grad(), run:
            out = made(x)
        if full is not None and full.out is not None and (wrong := _unlike(out, full.out)):
            run.steps, mistake = run.steps + 1, f"its output {wrong}; let its last layer put out the classes"
    except Exception as error:  # whatever the module's code raises
        mistake = run.told(error)
    finally:
        for handle in handles:
            handle.remove()
    return Attempt(made, run.arrived, run.steps if mistake else run.steps + 2, None if mistake else out, mistake)


class _Run(TorchFunctionMode):
    """Counts the steps of a batch, and fits each layer to what arrives."""

    def __init__(self, choice: Choice, full: Attempt | None) -> None:
        super().__init__()
        self.choice, self.full = choice, full
        self.arrived: list[tuple[str, torch.Size]] = []
        self.fitted: set[nn.Module] = set()
        self.place, self.steps, self.counting = "at its start", 0, True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.steps += self.counting
        return result

    def watch(self, name: str, layer: nn.Module) -> Iterator[Any]:
        """Look at a layer before and after each of its calls."""
        told = named(layer, name)

        def before(layer: nn.Module, args: Any, kwargs: Any) -> None:
            self.place, self.counting = f"in its {told}", False
            given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if given:
                self._fit(name, layer, given[0])
            self.counting = True

        def after(layer: nn.Module, args: Any, out: Any) -> None:
            self.place = f"behind its {told}"

        yield layer.register_forward_pre_hook(before, with_kwargs=True)
        yield layer.register_forward_hook(after)

    def told(self, error: Exception) -> str:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        remedy = "; write sizes of channels in its code as x.shape[1]" if self.full is not None else ""
        return f"{self.place} it does not go on ({reason}){remedy}"

    def _fit(self, name: str, layer: nn.Module, x: Tensor) -> None:
        if self.full is not None and len(self.arrived) < len(self.full.arrived):
            before, shape = self.full.arrived[len(self.arrived)]
            if before != name or not _narrower(x.shape, shape):
                raise ValueError(f"shape {tuple(x.shape)} arrives, at full width {tuple(shape)}")
        self.arrived.append((name, x.shape))
        fit = fit_of(layer)
        if self.full is not None and fit is not None and layer not in self.fitted:
            self.fitted.add(layer)
            fit(layer, x, (lambda size: size) if name in self.choice.held else self.choice.scale)
            reset(layer)


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What is looked at as a whole: layers that can be fitted, and whatever else has nothing in it."""
    inside: tuple[str, ...] = ()
    for name, layer in module.named_modules():
        if not (inside and name.startswith(inside)) and (fit_of(layer) is not None or not layer._modules):
            inside = (*inside, f"{name}.")
            yield name, layer


def _heads(module: nn.Module, full: Attempt) -> list[str]:
    """Layers that may put out the classes, the last first."""
    sizes = () if full.out is None else full.out.shape[1:]
    layers = {name: module.get_submodule(name) for name, _ in reversed(full.arrived)}
    return [name for name, layer in layers.items() if outputs_of(layer) in sizes]


def _options(module: nn.Module, full: Attempt, best: Attempt, choice: Choice) -> Iterator[Choice]:
    """What may help a batch further: another output that stays, or a bare entry that is cut."""
    for heads in accumulate([name] for name in _heads(module, full)):
        yield replace(choice, held=choice.held | set(heads))
    fixed = _fixed_sizes(module, full)
    for name in dict.fromkeys(name for name, _ in best.arrived):
        if outputs_of(module.get_submodule(name)) in fixed and name not in choice.held:
            yield replace(choice, held=choice.held | {name})
    for name, entry in _bare_entries(module):
        axes = [axis for axis, size in enumerate(entry.shape) if size > 1 and (name, axis) not in choice.cut]
        yield from (replace(choice, cut=choice.cut | {(name, axis)}) for axis in axes)


def _fixed_sizes(module: nn.Module, full: Attempt) -> set[int]:
    """Sizes that no width changes: of what the module takes, and of pixels, steps or tokens on the way."""
    layers = [(module.get_submodule(name), shape) for name, shape in full.arrived]
    inside = {size for layer, shape in layers if fit_of(layer) is not None for size in other_sizes(layer, shape)}
    return inside | set(full.arrived[0][1][1:])


def _bare_entries(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers that belong to no layer of a known kind."""
    known = tuple(f"{name}." for name, layer in module.named_modules() if fit_of(layer) is not None)
    for name, entry in (*module.named_parameters(), *module.named_buffers()):
        if not name.startswith(known):
            yield name, entry


def _check_entries(module: nn.Module, full: Attempt, choice: Choice) -> None:
    """Refuse a net of which a part would stay as wide as it is, although a batch runs through."""
    fixed, cut = {1} | _fixed_sizes(module, full), {name for name, _ in choice.cut}
    for name, entry in _bare_entries(module):
        if isinstance(entry, nn.Parameter) and name not in cut and not fixed.issuperset(entry.shape):
            layer = named(module.get_submodule(where := name.rpartition(".")[0]), where)
            raise UserError(
                f"the net cannot be scaled: its {layer} has an entry '{name}' of shape {tuple(entry.shape)}, and "
                f"nothing tells which of that are channels; use layers of torch.nn, {OTHERWISE}"
            )


def _cut(module: nn.Module, name: str, axis: int, scale: Scale) -> None:
    """A bare entry keeps the first of its numbers."""
    where, _, entry = name.rpartition(".")
    owner = module.get_submodule(where)
    value = getattr(owner, entry).detach()
    value = value.narrow(axis, 0, scale(value.shape[axis])).clone()
    if entry in owner._parameters:
        setattr(owner, entry, nn.Parameter(value))
    else:
        owner._buffers[entry] = value


def _tie(module: nn.Module, made: nn.Module, width: Width) -> None:
    """Layers that share a weight in the module share one in its copy."""
    first: dict[int, str] = {}
    entries: Mapping[str, Tensor] = dict(made.named_parameters(remove_duplicate=False))
    for name, value in module.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(value), name)
        if entries[other].shape != entries[name].shape:
            raise UserError(
                f"the net cannot be scaled to width {width}: '{other}' and '{name}' are one weight, but would have "
                f"shapes {tuple(entries[other].shape)} and {tuple(entries[name].shape)}; untie them, {OTHERWISE}"
            )
        where, _, entry = name.rpartition(".")
        made.get_submodule(where)._parameters[entry] = entries[other]  # type: ignore[assignment]


def _batch(example: Tensor) -> Tensor:
    given = torch.as_tensor(example)
    return given[torch.arange(SAMPLES) % max(1, len(given))]


def _unlike(out: Any, full: Tensor) -> str:
    if not isinstance(out, Tensor):
        return f"is a {type(out).__name__}"
    return "" if out.shape == full.shape else f"has shape {tuple(out.shape)}, at full width {tuple(full.shape)}"


def _narrower(shape: torch.Size, full: torch.Size) -> bool:
    """Whether all that a shape can be told from the full one by are fewer channels; samples stay as many."""
    return len(shape) == len(full) and shape[:1] == full[:1] and all(map(int.__le__, shape, full))
