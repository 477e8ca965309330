"""The example that adds a method runs and says what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "add_a_method.py"


@pytest.mark.slow
def test_a_method_of_ones_own_trains_beside_the_listed_ones():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["method", "heterofl", "fedrolex", "randomwindow"]
    assert all(float(cell.rstrip("%")) > 30 for row in rows[1:] for cell in row[1:])  # chance is 10%
