"""Trained bundles that come with the package."""

from pathlib import Path

DEFAULT = "mini-digits"


def packaged(name: str = DEFAULT) -> Path:
    """The folder of a bundle that comes with the package."""
    return Path(__file__).parent / name
