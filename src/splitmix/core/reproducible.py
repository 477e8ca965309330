"""What makes runs repeat to the bit: randomness with an address, and one thread at a time."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread; where several processes work, more of them would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Address = int | str


def rng_for(*address: Address) -> np.random.Generator:
    """A numpy generator for one address, such as `rng_for(seed, "cohort", round)`.

    >>> int(rng_for(1, "cohort", 7).integers(100)) == int(rng_for(1, "cohort", 7).integers(100))
    True
    """
    return np.random.default_rng(_sequence(address))


def torch_rng_for(*address: Address) -> torch.Generator:
    """A torch generator (CPU) for one address."""
    return torch.Generator().manual_seed(torch_seed_for(*address))


def torch_seed_for(*address: Address) -> int:
    """A 63-bit seed for one address."""
    return int(_sequence(address).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def drawing_for(device: torch.device, *address: Address) -> Iterator[None]:
    """What draws without a generator of its own, such as a dropout, draws as the address says."""
    seed, own = torch_seed_for(*address), [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=own):
        torch.default_generator.manual_seed(seed)
        if own:
            torch.cuda.manual_seed(seed)
        yield


def _sequence(address: tuple[Address, ...]) -> np.random.SeedSequence:
    words = [zlib.crc32(a.encode()) if isinstance(a, str) else a for a in address]
    return np.random.SeedSequence(words)
