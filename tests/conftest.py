"""What all tests share: one thread, the same draws and terminal wherever they run, and what takes long to make."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from splitmix import Model
    from splitmix.runtime.bundle import Bundle

os.environ["TERM"] = "xterm-256color"
for colours in ("NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(colours, None)


# The same examples each time, however busy the machine is.
settings.register_profile(
    "tests", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

HANGS = 900  # seconds; however busy a machine is, the longest test needs a tenth of it
LARGE = {"alexnet", "preresnet18"}  # in the inner loop the digit net stands for them


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is tried with each net is slow with the large ones."""
    for item in items:
        given = getattr(item, "callspec", None)
        if given and any(isinstance(value, str) and value in LARGE for value in given.params.values()):
            item.add_marker(pytest.mark.slow)


@contextmanager
def ending(item: pytest.Item) -> Iterator[None]:
    """Give up on what hangs, be it a test, or the making or leaving of what it needs: broken code fails by then."""
    seconds = HANGS * (4 if item.get_closest_marker("federation") else 1)

    def give_up(*_: object) -> None:
        raise TimeoutError(f"this hangs: it has not ended within {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again each second, should it hang while it cleans up
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with ending(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with ending(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with ending(item):
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Results repeat to the bit only at a fixed number of threads, and small nets are fastest on one."""
    import torch  # only here: the process that hands out the tests does without it

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """A test that draws without a generator of its own draws the same each time."""
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed writes down the stack for each kind of device


@pytest.fixture(autouse=True, scope="session")
def _timed_once() -> None:
    """The runs of tests time an image once; how long it took is nowhere compared."""
    from splitmix.runs import finish

    finish.TIMED = 1


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """A folder that is made by the first process of the tests that asks for it, and read by all."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        path, whole = common / name, common / f"{name}.whole"
        with (common / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes meanwhile waits
            if not whole.exists():
                path.mkdir()
                make(path)
                whole.touch()
        return path

    return folder


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that looks for replies and for who is there without a pause."""
    from splitmix.flower import fleet

    monkeypatch.setattr(fleet, "POLL", 0.01)
    monkeypatch.setattr(fleet, "LOOK", 0.02)


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of stripes."""
    from helpers.small_task import small_folder

    return str(small_folder(tmp_path_factory.mktemp("data") / "own"))


@pytest.fixture(scope="session")
def whole(own: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of uninterrupted runs by variant, each made once."""
    from helpers.runs import VARIANTS, run

    made: dict[str, Path] = {}

    def folder(name: str = "post") -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole") / name
            run(own, made[name], **VARIANTS[name])
        return made[name]

    return folder


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good and bad data, configs and runs."""
    from helpers.commands import furnish

    return furnish(tmp_path_factory.mktemp("place"))


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.delenv("SPLITMIX_DATA", raising=False)
    return place


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> "Bundle":
    """Four tiny bases with both dials."""
    from helpers.bundles import random_bundle

    return random_bundle(tmp_path_factory.mktemp("bundles") / "digit", atom="1/16", bases=4, grid=True)


@pytest.fixture
def model(bundle: "Bundle") -> "Model":
    from splitmix import Model

    return Model.load(bundle.path)
