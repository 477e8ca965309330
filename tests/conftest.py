"""What all tests share: one thread, and short names."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Results repeat to the bit only at a fixed number of threads, and small nets are fastest on one."""
    torch.set_num_threads(1)
