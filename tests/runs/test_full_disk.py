"""A full disk: one sentence, no half lines, and the run goes on when there is room."""

import json
import subprocess
from contextlib import contextmanager

import pytest

from helpers.runs import run, told
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.runs.folder import RunFolder

pytestmark = pytest.mark.slow  # whole runs and commands


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder / "run"
    finally:
        subprocess.run(["umount", folder], check=True)


def enlarge(disk):
    subprocess.run(["mount", "-o", "remount,size=50m", "tmpfs", disk.parent], check=True)


def test_metrics_never_hold_half_a_line(tmp_path):
    with small_disk(tmp_path / "disk", "8k") as path:
        path.mkdir()
        folder = RunFolder(path)
        with pytest.raises(UserError, match="No space left on device; free some space and use --resume"):
            [folder.append_metric({"row": i}) for i in range(9999)]
        rows = [json.loads(line)["row"] for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert rows == list(range(len(rows)))
        enlarge(path)
        folder.append_metric({"row": "next"})
        assert (path / "metrics.jsonl").read_text().endswith('\n{"row": "next"}\n')


@pytest.mark.parametrize(("kilobytes", "workers"), [(4, 1), (16, 2), (32, 1)])
def test_a_run_on_a_full_disk_goes_on_when_there_is_room(own, whole, tmp_path, kilobytes, workers):
    with small_disk(tmp_path / "disk", f"{kilobytes}k") as path:
        with pytest.raises(UserError, match=r"disk is full|No space left") as caught:
            run(own, path, workers=workers)
        assert "\n" not in str(caught.value)
        enlarge(path)
        run(own, path, resume=True)
        assert told(path) == told(whole())
        assert [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert not list(path.rglob("*.tmp"))


def test_a_full_disk_is_told_wherever_it_happens(tmp_path):
    with small_disk(tmp_path / "disk", "4k") as run, pytest.raises(UserError, match="the disk is full"):
        write_atomically(run / "much", bytes(9000))
