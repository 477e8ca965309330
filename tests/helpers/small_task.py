"""A task that trains in a blink: stripes on 6x6 images in two domains, as arrays and as a folder of files."""

from pathlib import Path

import numpy as np

from helpers.toys import toy_split
from splitmix.data.task import Task, task_from_arrays

# a net that every process finds beside this file
SETTINGS = {
    "net": "helpers.toys:Tiny",
    "atom": "1/4",
    "budgets": "1/4 1/2 1",
    "clients": 4,
    "rounds": 4,
    "batch": 8,
    "eval_every": 1,
    "checkpoint_every": 1,
}


def striped_images(rows: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 6, 6, 1) of bytes, and which of three stripes is bright."""
    made = toy_split(rows, seed)
    return made.images.numpy(), made.labels.numpy()


def small_task(rows: int = 60, **settings) -> Task:
    domains = {"north": striped_images(rows, 1), "south": striped_images(rows, 2)}
    return task_from_arrays(domains, **{"clients": 4, "val_ratio": 0.25, **settings})


def small_folder(path: Path, rows: int = 60, **arrays) -> Path:
    """A folder with two domains; `arrays` replace those of the second."""
    path.mkdir(parents=True)
    for seed, name in ((1, "north"), (2, "south")):
        x, y = striped_images(rows, seed)
        np.savez(path / f"{name}.npz", **({"x": x, "y": y} | (arrays if name == "south" else {})))
    return path
