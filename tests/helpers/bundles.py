"""Small bundles for the tests: real nets with random weights and statistics, packed as a run would be."""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.nets import NETS
from splitmix.nets.swap import Swap
from splitmix.runs.bundling import Packing, bundle_outcome
from splitmix.runs.config import make_config
from splitmix.runs.finish import Outcome
from splitmix.runtime.bundle import Bundle
from splitmix.runtime.manifest import digest

ATOM = Width(1, 16)  # four bases of it: tiny nets


def random_bundle(
    out: Path,
    *,
    net="digit",
    atom="1/8",
    bases=8,
    dual=True,
    classes=10,
    seed=0,
    packing=None,
    grid=None,
    times=None,
    **settings,
) -> Bundle:
    """A bundle of random bases in another order than they were trained; `grid` True makes up a measured table."""
    config = make_config({"task": "mini", "net": net, "atom": atom, "norm": "tracked", **settings})
    weights = random_weights(net, atom, bases, dual=dual, classes=classes, seed=seed)
    order = tuple(range(bases))[::-1]
    result = made_up_result(net, atom, bases, config.norm) | ({"times": times} if times else {})
    made = Outcome(result, weights, order)
    measured = made_up_grid(atom, bases, dual) if grid else None
    return bundle_outcome(config, made, Path(out), packing or Packing(image=NETS[net].image), measured)


def random_weights(net="digit", atom="1/8", bases=8, *, dual=True, classes=10, seed=0):
    """Weights as after some training: norms that differ from channel to channel."""

    def build(width):
        return NETS[net](width, classes=classes, dual=dual)

    return noisy(Net(build), Layout(bases, Width(atom)), seed)


def noisy(net, layout, seed=0):
    """Weights whose norms differ from channel to channel."""
    weights = net.init(layout, seed, tracked=True)
    rng, norms = torch.Generator().manual_seed(seed), net.norm_names(layout.width)
    for name, value in weights.items():
        if name in norms:
            noise = torch.rand(value.shape, generator=rng)
            weights[name] = 0.5 + noise if name.endswith(("running_var", "weight")) else noise - 0.5
    return weights


def made_up_result(net, atom, bases, norm):
    rows = [
        {"norm": used, "width": str(Width(atom) * k), "bases": k, "accuracy": 0.5 + 0.4 * k / bases}
        for used in ("tracked", "global", "client")
        for k in range(1, bases + 1)
    ]
    about = {"task": "mini", "data": "random", "method": "splitmix", "seed": 1, "rounds": 3, "best_round": 2}
    return {"net": net, "norm": norm, "scores": rows, "clients": [{}] * 4, "command": "splitmix train mini", **about}


def made_up_grid(atom, bases, dual):
    """Wider is better at everything; the dial trades clean accuracy for robustness."""
    rows = []
    for k in range(1, bases + 1):
        for robust in (0.0, 0.2, 0.5, 1.0) if dual else (0.0,):
            clean, attacked = 0.6 + 0.3 * k / bases - 0.2 * robust, 0.1 + 0.1 * k / bases + 0.3 * robust
            row = {"width": str(Width(atom) * k), "robust": robust, "clean": clean, "attacked": attacked}
            row |= {"clean_low": clean - 0.01, "clean_high": clean + 0.01}
            rows.append(row | {"attacked_low": attacked - 0.01, "attacked_high": attacked + 0.01})
    about = {"schema": 1, "split": "test", "norm": "tracked", "clients": 4, "samples": 1000}
    return {**about, "attack": "L-inf PGD, eps 8/255, 20 steps of 2/255", "weak": False, "rows": rows}


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28, 3), dtype=np.uint8)


def sealed(said) -> bytes:
    """A manifest as someone would write it who knows how its hash is made."""
    return json.dumps({**said, "sha256": digest(said)}).encode()


def replace_base(folder: Path, number: int, data: bytes) -> None:
    """Put other bytes in the place of a base, as someone would who knows where its hash is."""
    (folder / f"base-{number}.safetensors").write_bytes(data)
    said = json.loads((folder / "manifest.json").read_text())
    said["bases"][number] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_bytes(sealed(said))


def with_header(data: bytes, change, *, size: int | None = None) -> bytes:
    """The bytes of a safetensors file with another header."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data[end:]


class StandingAttack:
    """An attack that leaves the images as they are."""

    name, weak = "none", True

    def __call__(self, predict, x, y, rng):
        return x.expand(len(predict(x[:2])), *x.shape)


def own_bundle(
    out: Path, build, sample, *, kind="image", dual=False, bases=2, atom="1/4", name="mine:net", **said
) -> Bundle:
    """A bundle of a plain net with random weights; `sample` is the shape of one as the net takes it.

    What more is `said` goes into the run's result.
    """
    build = Swap(build, stacked=False, dual=True) if dual else build
    config = make_config({"task": "mini", "net": name, "atom": atom, "norm": "tracked"}, own=("net",))
    image = [*sample[1:], sample[0]] if len(sample) == 3 else list(sample)
    result = made_up_result(name, atom, bases, "tracked") | {"image": image, "kind": kind, **said}
    made = Outcome(result, noisy(Net(build), Layout(bases, Width(atom))), tuple(range(bases)))
    return bundle_outcome(config, made, Path(out), Packing(), build=build)
