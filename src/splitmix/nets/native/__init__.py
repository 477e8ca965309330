"""Layers of small nets in C, compiled on the spot by the machine's own compiler; PyTorch's stay the reference."""
