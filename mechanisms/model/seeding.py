"""Seeds for every random step that may be repeated. The release draw has no seed."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, a pure function of the run's seed and the purpose.

    Seeds are derived instead of carrying generator state along, so that a resumed epoch, or a
    single draw computed on another machine, equals that of an uninterrupted run.
    """
    text = "\x1f".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator seeded for one purpose. It is on the CPU so that all devices agree on the
    draws.
    """
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seeds torch's global generators (dropout, initialisation) inside the block and restores them
    afterwards.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive_seed(seed, *purpose))
        yield
