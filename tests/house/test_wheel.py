"""The wheel, built and tried in a fresh environment, away from the sources."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from splitmix import __version__

pytestmark = pytest.mark.slow  # builds, and starts processes

ROOT = Path(__file__).parents[2]
TRY = """
import numpy as np, splitmix
from pathlib import Path
from splitmix.cli import main
from splitmix.runtime.bundle import packaged

Path("own").mkdir()
x, y = np.random.default_rng(0).integers(0, 256, (40, 28, 28, 3), np.uint8), np.arange(40) % 2
np.savez("own/north.npz", x_train=x, y_train=y, x_test=x, y_test=y)
main(["methods"])
main(["train", "own", *"-o net=digit -o rounds=1 -o clients=2 --workers 1 --out run".split()])
model = splitmix.Model.load(packaged())
print("predicted", len(model.predict(x).classes), "from", splitmix.__file__)
main(["train", "digts"])
"""
TYPED = """
from splitmix.core.width import parse_width
reveal_type(parse_width("1/8"))
"""
FEW = """
[mypy]
follow_imports = skip
[mypy-splitmix.core.*]
follow_imports = silent
"""  # the rest would take long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy, so that nothing left of an earlier build gets into it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    left = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=left)
    shutil.copytree(ROOT / "paper", source / "paper", ignore=left)
    words = ("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", source / "dist", source)
    run(sys.executable, "-m", "pip", *words, cwd=source)
    (file,) = (source / "dist").iterdir()
    return file


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """The programs of an environment with the wheel alone; what it depends on is borrowed from this one."""
    venv = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    words = (
        "--python",
        venv / "bin" / "python",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        wheel,
    )
    run(sys.executable, "-m", "pip", *words)
    return venv / "bin"


def run(*words, code=0, cwd=None):
    """What a program prints that sees nothing of our sources, and of what it complains."""
    hidden = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    hidden |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=hidden, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_it_holds_the_library_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path for path in (ROOT / "src" / "splitmix").rglob("*") if path.is_file())
    assert held == {path.relative_to(ROOT / "src").as_posix() for path in files if path.suffix != ".pyc"}


def test_it_works_in_a_fresh_environment(fresh, tmp_path):
    assert run(fresh / "splitmix", "--version", cwd=tmp_path) == (f"{__version__}\n", "")
    said, mistake = run(fresh / "python", "-c", TRY, code=2, cwd=tmp_path)
    assert "predicted 40 from" in said
    assert str(fresh.parent) in said.rpartition("from ")[2]
    assert mistake.splitlines()[-1].startswith("splitmix: task: unknown task 'digts'; did you mean 'digits'?")
    assert "Traceback" not in mistake


def test_its_types_are_seen(fresh, tmp_path):
    (tmp_path / "uses.py").write_text(TYPED)
    (tmp_path / "mypy.ini").write_text(FEW)
    words = ("--cache-dir", tmp_path / "cache", "--python-executable", fresh / "python", "uses.py")
    assert 'Revealed type is "fractions.Fraction"' in run(sys.executable, "-m", "mypy", *words, cwd=tmp_path)[0]
