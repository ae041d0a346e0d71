"""Saves the state that an interrupted fit needs to continue: tensors, numbers, and the key of its
noise, which is stored before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.model import checkpoint, ranks
from mechanisms.model.classifier import Classifier
from mechanisms.privacy.noise import SecretStream

FILE = "state.safetensors"
_KEY = "noise_key"


class KeyedState:
    """The noise key of a fit, and its progress in `tensors` and `numbers`.

    The key is written to disk before the first draw, so that an interrupted fit draws the same
    noise again. It is deleted when the fit is finished. Without a folder nothing is written. Only
    rank 0 writes.
    """

    def __init__(self, folder: Path | None, new_key: Callable[[], bytes]) -> None:
        self._file = None if folder is None else folder / FILE
        self.tensors: dict[str, Tensor] = {}
        self.numbers: dict[str, Any] = {}
        self._key: bytes | None = None
        if not ranks.rank() and (self._file is None or not self._file.exists()):
            self._key = new_key()
            self.save()
            ranks.wait()
            return
        ranks.wait()
        assert self._file is not None
        tensors, self.numbers = checkpoint.load(self._file)
        # copies: products with a memory-mapped tensor, which may be unaligned, differ in the last
        # bit
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        key = self.tensors.pop(_KEY, None)
        self._key = None if key is None else bytes(key.tolist())

    @property
    def is_finished(self) -> bool:
        """True once the fit has ended and its key was deleted."""
        return self._key is None

    @property
    def stream(self) -> SecretStream:
        assert self._key is not None
        return SecretStream(self._key)

    def save(self) -> None:
        """Replaces the file.

        Raises:
            OSError: the file cannot be written.
        """
        if self._file is None or ranks.rank():
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        key = (
            {}
            if self._key is None
            else {_KEY: torch.frombuffer(bytearray(self._key), dtype=torch.uint8)}
        )
        checkpoint.save(self._file, self.tensors | key, self.numbers)

    def finish(self, **tensors: Tensor) -> None:
        """Deletes the key and everything that only a resumed fit needs; keeps these tensors and the
        numbers.
        """
        self._key, self.tensors = None, tensors
        self.save()


def fit_classifier(
    classifier: Classifier,
    folder: Path | None,
    new_key: Callable[[], bytes],
    fit: Callable[[KeyedState], None],
) -> KeyedState:
    """Fits a classifier in place, or loads the parameters of a finished fit. The returned state has
    the numbers of the fit.
    """
    state = KeyedState(folder, new_key)
    if state.is_finished:
        classifier.flat.copy_(state.tensors["theta"])
    else:
        fit(state)
        state.finish(theta=classifier.flat)
    return state
