"""One server on a real socket for all tests of this room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.bundles import random_bundle
from helpers.serving import get, serving


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that the server serves."""
    return random_bundle(tmp_path_factory.mktemp("serve") / "digits.bundle", grid=True).path


@pytest.fixture(scope="package")
def server(served: Path) -> Iterator[str]:
    """The address of a server."""
    with serving(served) as address:
        yield address


@pytest.fixture
def alive(server: str) -> Iterator[str]:
    """After whatever it was sent, the server still serves."""
    yield server
    assert get(server, "/health").json()["status"] == "ok"
