"""A net at any width, run as a pure function of its weights: all bases of one width in one call."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from splitmix.core.reproducible import drawing_for
from splitmix.core.types import Layout, Weights, at_width
from splitmix.core.width import Width

Build = Callable[[Width], nn.Module]
TorchNorm = nn.modules.batchnorm._BatchNorm


class Net:
    """What `build(width)` makes, at every width, without any state of its own.

    A module whose class says `stackable = True` (its layers come from `splitmix.nets`) runs its bases side by
    side, in training on a CPU at most `stack` of them if the class says so; any other module runs base after base.
    """

    def __init__(self, build: Build, *, stacked: bool = True) -> None:
        self.build, self.stacked = build, stacked
        self.rescaled: Collection[str] | None = None  # entries that start smaller in a narrow net; None: see `init`
        self.known_blocks: Mapping[str, int] = {}  # of a net that does not name them itself
        self.axes = 3  # of one sample; with two more, each base has a batch of its own
        self.stacking = ""  # of a user's own net: "yes", or why its bases run one after another
        self.apart = False  # whether bases cannot run side by side when each has a batch of its own
        self._templates: dict[tuple[Width, str], Template] = {}
        self.windows: dict[tuple[Width, Width, int], Any] = Recent()  # what `core.parts` found of windows in this net

    def __repr__(self) -> str:
        name = getattr(self.build, "__qualname__", type(self.build).__name__)
        return f"Net({name}{', stacked' if self.stacked else ''})"

    def template(self, width: Width, norm: str = "stored") -> "Template":
        """The net at a width; its norms hold statistics (`stored`), none (`batch`), or the last batch's (`measure`).

        Of one that is `folded` only those norms are left that cannot be part of other layers.
        """
        if (width, norm) not in self._templates:
            with torch.random.fork_rng(devices=[]):  # whenever it is made, nobody else's draws are other ones
                self._templates[width, norm] = Template(_with_norms(self.build(width), norm))
        return self._templates[width, norm]

    def shapes(self, width: Width) -> dict[str, torch.Size]:
        """Shape of every entry of one base."""
        return self.template(width).shapes

    def blocks(self, width: Width) -> Mapping[str, int]:
        """Entries whose input axis is a flattened image: how many inputs belong to one channel."""
        return getattr(type(self.template(width).module), "blocks", self.known_blocks)

    def parameter_names(self, width: Width) -> set[str]:
        return self.template(width).parameters

    def norm_names(self, width: Width) -> set[str]:
        """Every entry of a norm layer: statistics and affine."""
        return self.template(width).norms

    def statistic_names(self, width: Width) -> set[str]:
        """The running statistics of the norms."""
        return self.template(width).statistics

    def init(self, layout: Layout, seed: int, *, rescale: bool = True, tracked: bool = False) -> Weights:
        """Independent weights for each base; rescaled, a narrow net starts like a slice of the full one.

        That are the entries in `rescaled`; if it is None, those of all layers but the first and the norms.
        With tracked norms each nested width has statistics of its own: a narrow net sees other sums than the wide one.
        """
        bases = [self._fresh(layout.width, (seed, base), rescale, tracked) for base in range(layout.count)]
        weights = {name: torch.stack([b[name] for b in bases]) for name in bases[0]}
        for width in layout.nested if tracked else ():
            for name in sorted(self.statistic_names(width)):
                shape = self.shapes(layout.width if layout.moving else width)[name]
                start = torch.ones if is_variance(name) else torch.zeros
                weights[at_width(width, name)] = start(layout.count, *shape)
        return weights

    def run(
        self, width: Width, weights: Weights, x: Tensor, robust: float | Tensor = 0.0, *, training: bool = False
    ) -> Tensor:
        """Logits of every base in `weights`, (base, batch, class).

        In training, and wherever the weights hold no statistics, the norms use those of the batch.
        """
        template = self.template(width, "stored" if self.has_statistics(width, weights) else "batch")
        return self._run(template, weights, x, robust, training)

    def fixed(self, width: Width, weights: Weights, robust: float | Tensor = 0.0) -> Callable[[Tensor], Tensor]:
        """The same with fixed norms, as a function of images alone: gradients flow to them, none to the weights.

        Norms become part of the layers before them, once for all images, where the net can do that (`fold`).
        """
        weights = {name: value.detach() for name, value in weights.items()}
        fold = getattr(self.template(width).module, "fold", None)
        folded = fold(weights, robust) if fold and self.has_statistics(width, weights) else None
        if folded is None:
            return lambda x: self.run(width, weights, x, robust)
        bare = self.template(width, "folded")
        return lambda x: self._run(bare, folded, x, robust, training=False)

    def has_statistics(self, width: Width, weights: Weights) -> bool:
        names = self.statistic_names(width)
        return bool(names) and names <= weights.keys()

    def packable(self, width: Width) -> bool:
        """Whether bases run side by side also when each has a batch of its own."""
        return self.template(width).stackable and self.stacked and not self.apart

    def measure(self, width: Width, weights: Weights, x: Tensor, robust: float = 0.0) -> Weights:
        """The statistics of one batch in every norm that the dial touches, stacked over bases."""
        first, shapes = next(iter(weights.values())), self.shapes(width)
        found = {name: first.new_full((len(first), *shapes[name]), -1.0) for name in self.statistic_names(width)}
        with torch.no_grad():
            self._run(self.template(width, "measure"), {**weights, **found}, x, robust, training=True)
        untouched = tuple(
            name.removesuffix("var") for name, v in found.items() if name.endswith("var") and (v < 0).any()
        )
        return {name: value for name, value in found.items() if not name.startswith(untouched)}

    def _run(self, template: "Template", weights: Weights, x: Tensor, robust: float | Tensor, training: bool) -> Tensor:
        template.set_training(training)
        bases, own = next(iter(weights.values())).shape[0], x.dim() == self.axes + 2  # own samples for each base
        if not template.stackable:
            rows = _rows(weights, template.shapes)
            x = x.contiguous() if template.fragile else x
            logits = [template(row, x[i] if own else x, robust) for i, row in enumerate(rows)]
            return logits[0].unsqueeze(0) if bases == 1 else torch.stack(logits)
        few = training and x.device.type == "cpu"  # what pays off there
        most = getattr(type(template.module), "stack", bases) if few else bases
        size = min(bases, most) if self.stacked and not (own and self.apart) else 1
        if size >= bases:
            return _stacked(template, weights, x, robust, own)
        pieces = {name: torch.split(weights[name], size) for name in template.shapes}
        images = torch.split(x, size) if own else [x] * -(-bases // size)
        chunks = [{name: piece[i] for name, piece in pieces.items()} for i in range(len(images))]
        return torch.cat([_stacked(template, w, i, robust, own) for w, i in zip(chunks, images, strict=True)])

    def _fresh(self, width: Width, address: tuple[int, int], rescale: bool, tracked: bool) -> Weights:
        with drawing_for(torch.device("cpu"), "init", *address):
            module = _with_norms(self.build(width), "stored" if tracked else "batch")
        squeeze = _stackable(module)
        entries = {name: value.detach()[0 if squeeze else ...] for name, value in entries_of(module).items()}
        if rescale and width != 1:
            for name in _rescaled_names(module) if self.rescaled is None else self.rescaled:
                entries[name] = entries[name] * float(width) ** 0.5
        return entries


class Recent(dict[Any, Any]):
    """A small memory of what is costly to find: it forgets the oldest of more than 64."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= 64:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class Template:
    """A module as a function of its entries: they are put in place before each call, its own are never used."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.stackable = module, _stackable(module)
        self.fragile = _has_strided_points(module)
        entries = entries_of(module)
        self.shapes = {name: value.shape[1 if self.stackable else 0 :] for name, value in entries.items()}
        self.parameters = {name for name, value in entries.items() if value.requires_grad}  # not those that are frozen
        self.norms = {name for name in entries if is_norm(module.get_submodule(name.rpartition(".")[0]))}
        self.statistics = {name for name in self.norms if name.rpartition(".")[2].startswith("running_")}
        names = {id(value): name for name, value in entries.items()}
        held: list[tuple[dict[str, Any], str, Tensor]] = [
            (owned, entry, value)
            for layer in module.modules()
            for owned in (layer._parameters, layer._buffers)
            for entry, value in owned.items()
            if value is not None
        ]
        self._places = [(owned, entry, names[id(value)]) for owned, entry, value in held if id(value) in names]
        self._constants = [(owned, entry, value) for owned, entry, value in held if id(value) not in names]

    def __call__(self, weights: Weights, x: Tensor, robust: float | Tensor = 0.0) -> Tensor:
        for owned, entry, name in self._places:  # what functional_call does, without its checks on every call
            owned[entry] = weights[name]
        for owned, entry, value in self._constants:
            owned[entry] = value.to(x.device)
        if isinstance(robust, float | int) and robust == 0:
            return self.module(x)  # type: ignore[no-any-return]
        return self.module(x, robust)  # type: ignore[no-any-return]

    def set_training(self, training: bool) -> None:
        if self.module.training != training:
            self.module.train(training)


def entries_of(module: nn.Module) -> dict[str, Tensor]:
    """The numbers of a module by name: one that stands in several places has the first of its names.

    Whole numbers, such as places and masks, are no weights: they are as `build` makes them.
    """
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def is_norm(module: nn.Module) -> bool:
    """Batch norms, ours or PyTorch's own."""
    return isinstance(module, TorchNorm) or (hasattr(module, "running_mean") and hasattr(module, "running_var"))


def _with_norms(module: nn.Module, norm: str) -> nn.Module:
    if norm == "folded":
        return module.without_norms()  # type: ignore[operator,no-any-return]
    for layer in module.modules():
        if isinstance(layer, _NormBase):
            layer.num_batches_tracked = None
            layer.track_running_stats = norm != "batch" and layer.running_mean is not None
        if is_norm(layer) and norm == "batch":
            layer.running_mean, layer.running_var = None, None  # type: ignore[assignment]
        if is_norm(layer) and norm == "measure":
            layer.momentum = 1.0  # type: ignore[assignment]
            layer.divisor = 1.0  # type: ignore[assignment]  # what is measured is what is served
    return module


def _rescaled_names(module: nn.Module) -> list[str]:
    """Weights and biases of all layers but the first and the norms: these start as in the full net, times sqrt(r)."""
    layers = [
        prefix
        for prefix, layer in module.named_modules()
        if not is_norm(layer) and isinstance(getattr(layer, "weight", None), nn.Parameter)
    ]
    present = entries_of(module).keys()
    return [
        f"{prefix}.{entry}" for prefix in layers[1:] for entry in ("weight", "bias") if f"{prefix}.{entry}" in present
    ]


def _has_strided_points(module: nn.Module) -> bool:
    """Whether a module may convolve points (1x1) at a stride: its images must not be in the channels-last order.

    On a CPU, PyTorch 2.13 then writes past the end of a gradient of 2 to 7 channels. The layers of `splitmix.nets` skip
    the pixels themselves; of others, all that is known are the strides of PyTorch's own.
    """
    return any(
        weight.dim() == 4 and weight.shape[2:] == (1, 1) and getattr(layer, "stride", None) != (1, 1)
        for layer in module.modules()
        for weight in layer._parameters.values()
        if weight is not None
    )


def _stackable(module: nn.Module) -> bool:
    return bool(getattr(module, "stackable", False))


def _rows(weights: Weights, names: Iterable[str]) -> list[Weights]:
    """The entries of each base; the gradients of one are a view, and of several they meet in one tensor."""
    if len(next(iter(weights.values()))) == 1:
        return [{name: weights[name].squeeze(0) for name in names}]
    rows = {name: weights[name].unbind() for name in names}
    return [{name: row[i] for name, row in rows.items()} for i in range(len(next(iter(rows.values()))))]


def _stacked(template: Template, weights: Weights, x: Tensor, robust: float | Tensor, own: bool) -> Tensor:
    if own:  # (base, batch, channel, ...)
        x = x.transpose(0, 1).flatten(1, 2)
    logits = template(weights, x, robust)
    return logits.reshape(len(logits), next(iter(weights.values())).shape[0], -1).transpose(0, 1)


def to_moments(stats: Weights) -> Weights:
    """Replace each variance by the mean square: moments of several clients can be averaged."""
    return {
        name: value + _mean_of(name, stats).square() if is_variance(name) else value for name, value in stats.items()
    }


def from_moments(moments: Weights) -> Weights:
    """Back from averaged moments to mean and variance."""
    return {
        name: (value - _mean_of(name, moments).square()).clamp(min=0) if is_variance(name) else value
        for name, value in moments.items()
    }


def is_variance(name: str) -> bool:
    """Whether an entry is the variance that a norm keeps."""
    return name.endswith("running_var")


def _mean_of(name: str, stats: Weights) -> Tensor:
    return stats[name.removesuffix("running_var") + "running_mean"]
