"""A page and an HTTP interface for a trained model."""
