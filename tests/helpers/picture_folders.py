"""Small folders of pictures."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_pictures(folder: Path, count: int, *, seed: int = 0, size: tuple[int, int] = (12, 10), suffix: str = "png"):
    """Pictures of noise, 0.png, 1.png, ...; how bright they are depends on the folder's name."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, *map(ord, str(folder.name))])
    for number in range(count):
        pixels = rng.integers(0, 100, (*size, 3)) + (sum(map(ord, folder.name)) * 37) % 150
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.{suffix}")


def write_tree(root: Path, *, domains=("",), classes=("cat", "dog"), count: int = 12, **how) -> Path:
    """root/domain/class/file, or without domains root/class/file."""
    for domain in domains:
        for label in classes:
            write_pictures(root / domain / label, count, seed=len(domain), **how)
    return root
