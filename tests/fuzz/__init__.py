"""Mutants for every reader of what strangers send: a few in the tests, ten thousand by `make fuzz`."""
