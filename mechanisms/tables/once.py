"""A fit that is made once: what its folder holds is read, what was killed is made again with the same noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from mechanisms.model import checkpoint
from mechanisms.privacy import noise
from mechanisms.privacy.noise import SecretStream

KEY = "key.safetensors"


class Kept(Protocol):
    """A model that writes itself."""

    def save(self, folder: Path) -> None:
        """Into a private folder."""
        ...


K = TypeVar("K", bound=Kept)


def once(folder: Path | None, file: str, *, load: Callable[[Path], K], make: Callable[[SecretStream], K]) -> K:
    """The model of this folder, made if `file` is not there.

    The key of the noise is on the disk before anything is drawn with it, so that a killed fit draws the same again and
    no other; it goes once the model is there.
    """
    if folder is None:
        return make(SecretStream(noise.new_key()))
    key = folder / KEY
    if not (folder / file).exists():
        if not key.exists():
            checkpoint.save(key, {"key": torch.frombuffer(bytearray(noise.new_key()), dtype=torch.uint8)}, {})
        make(SecretStream(bytes(checkpoint.load(key)[0]["key"].tolist()))).save(folder)
    key.unlink(missing_ok=True)
    return load(folder)
