"""What all tests share: one thread, and the same terminal wherever they run."""

import os

import pytest
import torch

os.environ["TERM"] = "xterm-256color"
for colours in ("NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(colours, None)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Results repeat to the bit only at a fixed number of threads, and small nets are fastest on one."""
    torch.set_num_threads(1)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that looks for replies and for who is there without a pause."""
    from splitmix.engines.flower import fleet

    monkeypatch.setattr(fleet, "POLL", 0.01)
    monkeypatch.setattr(fleet, "LOOK", 0.02)
