"""A full disk: one sentence, no half lines, and the run goes on when there is room."""

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.commands import TRAIN, process
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.runs.folder import RunFolder
from splitmix.runs.records import read_result

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


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [4, 16, 32, 48, 96])
def test_a_run_on_a_full_disk_goes_on_when_there_is_room(here, capsys, tmp_path, kilobytes):
    with small_disk(tmp_path / "disk", f"{kilobytes}k") as run:
        with pytest.raises(SystemExit) as left:
            main([*TRAIN, "--out", str(run), "--workers", "1"])
        assert left.value.code == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("splitmix: ")
        assert "disk is full" in last or "No space left" in last
        enlarge(run)
        main([*TRAIN, "--out", str(run), "--workers", "1", "--resume"])
        assert read_result(run)["weights_sha256"] == read_result(Path("run"))["weights_sha256"]
        assert [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert not list(run.rglob("*.tmp"))


@pytest.mark.slow
def test_a_process_on_a_full_disk_ends_with_one_sentence(here, tmp_path):
    with small_disk(tmp_path / "disk", "2m") as run:
        run.parent.joinpath("filler").write_bytes(bytes(2_000_000))
        ended = process(*TRAIN, "--out", str(run), "--workers", "2")
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr
        assert [line for line in ended.stderr.splitlines() if line.startswith("splitmix: ")] == [
            ended.stderr.splitlines()[-1]
        ]
        enlarge(run)
        main([*TRAIN, "--out", str(run), "--workers", "2", "--resume"])
        assert read_result(run)["weights_sha256"] == read_result(Path("run"))["weights_sha256"]


def test_a_full_disk_is_told_wherever_it_happens(tmp_path):
    with small_disk(tmp_path / "disk", "4k") as run, pytest.raises(UserError, match="the disk is full"):
        write_atomically(run / "much", bytes(9000))
