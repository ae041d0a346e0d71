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
def seeded(seed: int, *purpose: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's global generators (dropout, initialisation) inside the block and restores them
    afterwards: that of the processor, and that of one card.

    The generators of other cards are not touched, because reading one of them would start CUDA on
    its card, which takes hundreds of megabytes there.

    Args:
        device: the device on which the block draws. None means the processor alone.
    """
    cards = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards):
        number = derive_seed(seed, *purpose)
        torch.default_generator.manual_seed(number)
        for card in cards:
            with torch.cuda.device(card):
                torch.cuda.manual_seed(number)
        yield
