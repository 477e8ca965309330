"""The digits benchmark: ten digits in five styles, with ten clients per style."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError
from splitmix.data.folder import read_split, require_files
from splitmix.data.partition import ByDomain
from splitmix.data.task import Domain, Task, make_task

FILES = {  # in FedBN's order
    "mnist": "digits/mnist.npz",
    "svhn": "digits/svhn.npz",
    "usps": "digits/usps.npz",
    "synthdigits": "digits/synthdigits.npz",
    "mnist_m": "digits/mnist_m.npz",
}
SUBSTITUTE = "digits/synthdigits_substitute.npz"  # digits rendered anew after its description: not the original images


def digits_domains(root: Path, percent: float = 0.3) -> tuple[Domain, ...]:
    """The five domains in FedBN's order, in colour, with the first tenths of the training rows and all test rows.

    FedBN cuts the training rows of every domain into ten partitions of the same size, a tenth of the smallest domain
    (743 rows); `percent=0.3` takes the first three (2229 rows). Where SynthDigits is not at hand, a domain named
    `synth_substitute` stands in for it.
    """
    tenths = round(percent * 10)
    if not 1 <= tenths <= 10 or abs(tenths - percent * 10) > 1e-9:
        raise UserError(f"percent {percent} is not a whole number of tenths; choose one of 0.1, 0.2, ... 1.0")
    files = _files(root)
    parts = [read_split(file) for file in require_files(root, list(files.values()), "digits")]
    rows = tenths * (min(len(y_train) for _, y_train, _, _ in parts) // 10)
    return tuple(
        Domain(name, _colour(x_train[:rows]), y_train[:rows], _colour(x_test), y_test)
        for name, (x_train, y_train, x_test, y_test) in zip(files, parts, strict=True)
    )


def digits_task(
    root: Path, seed: int = 0, *, percent: float = 0.3, clients_per_domain: int = 10, val_ratio: float = 0.5
) -> Task:
    """The paper's digits task: 50 clients with 111 or 112 training rows each, and as many for validation.

    Shares are runs of consecutive rows (the files are shuffled already), so the seed changes nothing in the data.
    """
    domains = digits_domains(root, percent)
    return make_task(
        "digits",
        domains,
        clients=clients_per_domain * len(domains),
        partition=ByDomain(shuffle=False),
        val_ratio=val_ratio,
        seed=seed,
        net="digit",
        classes=10,
    )


def _files(root: Path) -> dict[str, str]:
    """The file of each domain; the substitute where only that is there."""
    if (root / FILES["synthdigits"]).is_file() or not (root / SUBSTITUTE).is_file():
        return FILES
    stand_in = {"synthdigits": ("synth_substitute", SUBSTITUTE)}
    return dict(stand_in.get(name, (name, file)) for name, file in FILES.items())


def _colour(images: NDArray[Any]) -> NDArray[Any]:
    """(n, h, w, 3): grey images have three equal channels."""
    images = images[..., None] if images.ndim == 3 else images
    return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images
