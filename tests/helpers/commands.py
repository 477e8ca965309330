"""Commands for the tests, and a place to give them in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.small_task import SETTINGS, small_folder, striped_images
from splitmix.cli import main

OPTIONS = [word for key, value in SETTINGS.items() for word in ("-o", f"{key}={value}")]
TRAIN = ("train", "own", *OPTIONS)


def furnish(path):
    """A folder with good and bad data, configs and runs."""
    x, y = striped_images(60, 2)
    small_folder(path / "own")
    small_folder(path / "nan", x=np.where(x == x.max(), np.nan, x / 255))
    small_folder(path / "negative", y=y - 1)
    small_folder(path / "far", y=np.where(np.arange(60) == 7, 10**9, y))
    small_folder(path / "mixed", x=np.zeros((60, 7, 6, 1), np.uint8))
    small_folder(path / "objects", x=np.array([None] * 60))
    small_folder(path / "half")
    os.truncate(path / "half" / "south.npz", 700)
    (path / "empty").mkdir()
    (path / "file").write_text("")
    (path / "broken.toml").write_text("rounds = = 3")
    (path / "two.toml").write_text('task = "own"\nrond = 3\nlr = -1\n')
    (path / "lame.py").write_text("def build(width):\n    raise RuntimeError('no net today')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        main(["train", "own", *OPTIONS, "--out", "run", "--workers", "1"])
    for name in ("unfinished", "corrupt"):
        shutil.copytree(path / "run", path / name)
        (path / name / "result.json").unlink()
    for file in (path / "corrupt" / "checkpoints").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    return path


def process(*arguments, **settings):
    """Run the real command, where every warning is an error."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-W", "error", "-m", "splitmix", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, **settings)
