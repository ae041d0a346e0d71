"""Seeds for every random step that may be repeated. The release draw is not one of them."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, a pure function of the run's seed and the purpose's words.

    Deriving instead of carrying generator state along is what lets a resumed epoch, or a draw
    computed alone on another machine, equal the one in an unbroken run.
    """
    text = "\x1f".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator seeded for one purpose. CPU, so that devices agree on what was drawn."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed torch's global generators (dropout, initialisation) inside the block and restore them
    after it.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive_seed(seed, *purpose))
        yield
