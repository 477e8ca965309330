"""Layers of PyTorch that take on other sizes: so many outputs as are wanted, inputs as they arrive."""

from collections.abc import Callable, Sequence
from itertools import product
from math import gcd
from typing import Any

from torch import Tensor, nn

Scale = Callable[[int], int]  # from the full outputs of a layer to those that it is to have
Fit = Callable[[Any, Tensor, Scale], None]


def fit_of(layer: nn.Module) -> Fit | None:
    """How a layer is given other sizes, if that is known."""
    parametrized = hasattr(layer, "parametrizations")  # its weight is made of others
    return None if parametrized else next((fit for kind, fit in FITS.items() if isinstance(layer, kind)), None)


def outputs_of(layer: Any) -> int | None:
    """The channels that a layer puts out, if it is one that chooses them."""
    sizes = (getattr(layer, key, None) for key in ("out_channels", "out_features", "embedding_dim", "hidden_size"))
    return next((size for size in sizes if isinstance(size, int)), None)


def other_sizes(layer: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes that arrive at a layer and are no channels to it: pixels, steps or tokens."""
    last = len(shape) - 1
    channels = last - len(getattr(layer, "kernel_size", shape[2:])) if isinstance(layer, CHANNELS_SECOND) else last
    return tuple(size for axis, size in enumerate(shape) if axis not in (0, channels))


def reset(layer: nn.Module) -> None:
    """Let a layer draw its numbers anew, if it can."""
    draw = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
    if callable(draw):
        draw()


def _fit_conv(layer: Any, x: Tensor, scale: Scale) -> None:
    """Groups go with the channels that they are of: those of a depthwise convolution stay single channels."""
    inputs = x.shape[-1 - len(layer.kernel_size)]
    depthwise = layer.groups == layer.in_channels > 1
    outputs = inputs * (layer.out_channels // layer.groups) if depthwise else scale(layer.out_channels)
    groups = _groups(layer.groups, layer.in_channels, inputs, outputs)
    layer.in_channels, layer.out_channels, layer.groups = inputs, outputs, groups
    sizes = (inputs, outputs // groups) if layer.transposed else (outputs, inputs // groups)
    _resize(layer, weight=(*sizes, *layer.kernel_size), bias=(outputs,))


def _fit_linear(layer: Any, x: Tensor, scale: Scale) -> None:
    layer.in_features, layer.out_features = x.shape[-1], scale(layer.out_features)
    _resize(layer, weight=(layer.out_features, layer.in_features), bias=(layer.out_features,))


def _fit_embedding(layer: Any, x: Tensor, scale: Scale) -> None:
    layer.embedding_dim = scale(layer.embedding_dim)
    _resize(layer, weight=(layer.num_embeddings, layer.embedding_dim))


def _fit_norm(layer: Any, x: Tensor, scale: Scale) -> None:
    layer.num_features = x.shape[1]
    _resize(layer, **dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (x.shape[1],)))


def _fit_group_norm(layer: Any, x: Tensor, scale: Scale) -> None:
    layer.num_groups = _groups(layer.num_groups, layer.num_channels, x.shape[1], x.shape[1])
    layer.num_channels = x.shape[1]
    _resize(layer, weight=(x.shape[1],), bias=(x.shape[1],))


def _fit_layer_norm(layer: Any, x: Tensor, scale: Scale) -> None:
    axes = len(layer.normalized_shape)
    own = axes == 1 and x.dim() > 3 and type(layer).forward not in (nn.LayerNorm.forward, nn.RMSNorm.forward)
    layer.normalized_shape = (x.shape[1],) if own else tuple(x.shape[-axes:])  # an own forward permutes, as ConvNeXt's
    _resize(layer, weight=layer.normalized_shape, bias=layer.normalized_shape)


def _fit_slopes(layer: Any, x: Tensor, scale: Scale) -> None:
    if layer.num_parameters > 1:
        layer.num_parameters = x.shape[1]
        _resize(layer, weight=(x.shape[1],))


def _fit_attention(layer: Any, x: Tensor, scale: Scale) -> None:
    """Heads keep their size where they can."""
    if not layer._qkv_same_embed_dim or layer.bias_k is not None:
        raise ValueError("attention with kdim, vdim or bias_kv has no narrower form")
    size = x.shape[-1]
    layer.num_heads = _groups(layer.num_heads, layer.embed_dim, size, size)
    layer.embed_dim = layer.kdim = layer.vdim = size
    layer.head_dim = size // layer.num_heads
    layer.out_proj.in_features = layer.out_proj.out_features = size
    _resize(layer, in_proj_weight=(3 * size, size), in_proj_bias=(3 * size,))
    _resize(layer.out_proj, weight=(size, size), bias=(size,))


def _fit_recurrent(layer: Any, x: Tensor, scale: Scale) -> None:
    if layer.proj_size:
        raise ValueError("a recurrent layer with proj_size has no narrower form")
    gates, ways = layer.weight_hh_l0.shape[0] // layer.hidden_size, ("", "_reverse")[: 1 + layer.bidirectional]
    layer.input_size, layer.hidden_size = x.shape[-1], scale(layer.hidden_size)
    size, rows = layer.hidden_size, gates * layer.hidden_size
    for depth, way in product(range(layer.num_layers), ways):
        inputs = size * len(ways) if depth else layer.input_size
        shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, size), "bias_ih": (rows,), "bias_hh": (rows,)}
        _resize(layer, **{f"{name}_l{depth}{way}": shape for name, shape in shapes.items()})


FITS: dict[type[nn.Module], Fit] = {
    nn.modules.conv._ConvNd: _fit_conv,
    nn.Linear: _fit_linear,
    nn.Embedding: _fit_embedding,
    nn.modules.batchnorm._NormBase: _fit_norm,
    nn.GroupNorm: _fit_group_norm,
    nn.LayerNorm: _fit_layer_norm,
    nn.RMSNorm: _fit_layer_norm,
    nn.PReLU: _fit_slopes,
    nn.MultiheadAttention: _fit_attention,
    nn.RNNBase: _fit_recurrent,
}
CHANNELS_SECOND = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.PReLU)


def _groups(groups: int, channels: int, inputs: int, outputs: int) -> int:
    """As many groups as keep their size, or the next fewer that divide both.

    >>> _groups(32, 64, 8, 8), _groups(2, 32, 4, 4), _groups(3, 30, 20, 10)
    (4, 1, 2)
    """
    both, most = gcd(inputs, outputs), max(1, groups * inputs // channels)
    return next(count for count in range(min(both, most), 0, -1) if both % count == 0)


def _resize(layer: nn.Module, **shapes: tuple[int, ...]) -> None:
    """Give entries of a layer other shapes, where it has them; their numbers are drawn afterwards."""
    for name, shape in shapes.items():
        entry = getattr(layer, name, None)
        if isinstance(entry, nn.Parameter) and entry.shape != shape:
            setattr(layer, name, nn.Parameter(entry.new_empty(shape), requires_grad=entry.requires_grad))
        elif isinstance(entry, Tensor) and entry.shape != shape:
            setattr(layer, name, entry.new_empty(shape))
