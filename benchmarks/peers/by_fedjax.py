"""FedJAX: the same net in JAX, compiled, in one process with all threads."""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from fedjax import ClientDataset, ShuffleRepeatBatchHParams, optimizers
from fedjax.algorithms import fed_avg
from peers.work import Work, serve
from torch import Tensor, nn

Entries = Mapping[str, Any]


def forward(net: nn.Module, entries: Entries, x: Any, rng: Any = None) -> Any:
    """A plain sequence of layers in JAX, with its own entries; without a generator nothing is dropped."""
    for i, layer in enumerate(net.children()):
        weight: Any = entries.get(f"{i}.weight")
        bias: Any = entries.get(f"{i}.bias")
        if isinstance(layer, nn.Conv2d):
            pads = [(int(pad), int(pad)) for pad in layer.padding]
            x = jax.lax.conv_general_dilated(x, weight, (1, 1), pads, dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = x + bias[:, None, None]
        elif isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
            axes, shape = ((0, 2, 3), (-1, 1, 1)) if x.ndim == 4 else ((0,), (-1,))
            mean, spread = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
            x = (x - mean) / jnp.sqrt(spread + layer.eps) * weight.reshape(shape) + bias.reshape(shape)
        elif isinstance(layer, nn.MaxPool2d):
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        elif isinstance(layer, nn.Dropout):
            if rng is not None:
                kept = jax.random.bernoulli(jax.random.fold_in(rng, i), 1 - layer.p, x.shape)
                x = jnp.where(kept, x / (1 - layer.p), 0)
        elif isinstance(layer, nn.Flatten):
            x = x.reshape(len(x), -1)
        elif isinstance(layer, nn.Linear):
            x = x @ weight.T + bias
        else:
            assert isinstance(layer, nn.ReLU), f"{layer} has no counterpart here"
            x = jnp.maximum(x, 0)
    return x


def main() -> None:
    work = Work.read(sys.argv[1])
    net = work.fresh()

    def loss(entries: Entries, batch: Entries, rng: Any) -> Any:
        told = jax.nn.log_softmax(forward(net, entries, batch["x"], rng))
        return -told[jnp.arange(len(batch["y"])), batch["y"]].mean()

    data = [
        ClientDataset({"x": np.ascontiguousarray(x), "y": y.numpy()})
        for x, y in map(work.images, range(len(work.rows)))
    ]
    batches = ShuffleRepeatBatchHParams(work.batch, num_epochs=1, drop_remainder=False, seed=0)
    rates = optimizers.sgd(work.lr, work.momentum or None), optimizers.sgd(1.0)
    algorithm = fed_avg.federated_averaging(jax.grad(loss), *rates, batches)
    state = algorithm.init({name: jnp.asarray(value.numpy()) for name, value in work.start[0].items()})

    def train(round: int) -> None:
        nonlocal state
        keys = jax.random.split(jax.random.PRNGKey(round), len(work.cohorts[round]))
        clients = [(client, data[client], key) for client, key in zip(work.cohorts[round], keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)

    def predict(x: Tensor) -> Tensor:
        return torch.from_numpy(np.array(forward(net, state.params, jnp.asarray(x.contiguous().numpy()))))

    serve(train, lambda: work.accuracy(predict))


if __name__ == "__main__":
    main()
