"""Folders of pictures: memory and time by the number of files, two rounds with 10 of 100 clients.

python benchmarks/pictures.py [FILES ...]

Makes folders of small JPEG files in ten class folders, and trains on each in a process of its own. Memory is the peak
resident size of the training process and, with two workers, of the larger worker as well. Processor time until the
first round is that of the training process, so it is measured where there is one worker: then it does all the work.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from evidence import Row, publish

from splitmix.runs.config import make_config
from splitmix.runs.progress import Watcher
from splitmix.runs.records import MetricRow
from splitmix.runs.run import train_rounds
from splitmix.runs.setup import set_up

FILES = (2_000, 20_000)
SIDE, CLASSES = 32, 10
SETTINGS: dict[str, object] = {
    **{"clients": 100, "cohort": 10, "rounds": 2, "partition": "iid", "net": "digit", "data": {"size": 28}},
    **{"budgets": "1/8 1/4", "eval_every": 2},
}


def main() -> None:
    match sys.argv[1:]:
        case ["--one", folder, workers]:
            print(json.dumps(measured(Path(folder), int(workers))))
        case counts:
            rows = [row for count in map(int, counts or map(str, FILES)) for row in of_count(count)]
            print(publish("pictures", rows))


def of_count(count: int) -> list[Row]:
    """A row for one worker and one for two, each from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        size = write_folder(Path(folder) / "pictures", count)
        rows = []
        for workers in (1, 2):
            command = [sys.executable, __file__, "--one", str(Path(folder) / "pictures"), str(workers)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append({"settings": SETTINGS, "files": count, "bytes": size, **json.loads(said.splitlines()[-1])})
        return rows


def write_folder(root: Path, count: int) -> int:
    """Small JPEG files of noise, the same number for each class; how many bytes they have."""
    from PIL import Image

    rng, size = np.random.default_rng(0), 0
    for label in range(CLASSES):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(count // CLASSES):
            pixels = rng.integers(0, 120, (SIDE, SIDE, 3)) + 12 * label
            file = root / f"class{label}" / f"{number}.jpg"
            Image.fromarray(pixels.astype(np.uint8)).save(file, quality=85)
            size += file.stat().st_size
    return size


class FirstRound(Watcher):
    """Notes when the first round is done."""

    seconds = processor = 0.0

    def __init__(self) -> None:
        self.began = perf_counter()

    def round(self, row: MetricRow) -> None:
        if not self.seconds:
            self.seconds, self.processor = perf_counter() - self.began, process_time()


def measured(folder: Path, workers: int) -> Row:
    """What two rounds take; the clock starts here, processor time with the process."""
    watcher = FirstRound()
    setup = set_up(make_config({"task": str(folder), **SETTINGS}))
    listed = perf_counter() - watcher.began
    with setup.engine(workers) as engine:
        train_rounds(setup, engine, watchers=[watcher])
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "workers": workers,
        "set_up": listed,
        "first_round": watcher.seconds,
        "first_round_processor": watcher.processor if workers == 1 else None,
        "whole_processor": own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime,
        "memory": 1024 * own.ru_maxrss,
        "worker_memory": 1024 * others.ru_maxrss if workers > 1 else None,
    }


if __name__ == "__main__":
    main()
