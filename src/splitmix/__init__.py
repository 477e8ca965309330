"""Federated learning for devices of uneven strength: train small base nets together, serve any width."""

__version__ = "0.1.0"
