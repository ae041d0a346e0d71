"""Randomness of the DP mechanisms: secret, and yet the same again when a run resumes.

DP-SGD's guarantee needs noise *and* samples that no one can guess. A seed in a parameter file would
give both away, so the key is 32 bytes of the operating system's entropy, drawn when a run starts.
It lives in the private checkpoint alone, never in a parameter, log or result, and goes when the run
ends.

Why not fresh entropy at every step: a run that died after its checkpoint would, resumed, draw
*other* noise for steps whose noisy gradients were already computed, and anyone who saw both (in a
log, a core dump) could average. Here the noise of a step is a function of (key, purpose, step): a
resumed run equals the unbroken one, and a step has one noise ever.

AES-256 in counter mode on a subkey a (purpose, step), by HMAC-SHA-256 from the key; Box-Muller in
float64, on the device the noise is for.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from fractions import Fraction

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from mechanisms.privacy.entropy import fill_normal, uniforms
from mechanisms.privacy.exact_normal import add_rounded_normal_

KEY_BYTES = 32


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


class SecretStream:
    """Uniforms and normals addressed by (purpose, step); the same address gives the same values."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    def __repr__(self) -> str:
        return "SecretStream(key hidden)"

    def normal_(self, out: Tensor, *, purpose: str, step: int) -> Tensor:
        """Fill a contiguous float tensor in place with standard normals of floating point, and
        return it.

        For draws that are repeated, not for noise that protects: `add_rounded_normal_` is.
        """
        return fill_normal(out, self._source(purpose, step))

    def add_rounded_normal_(self, out: Tensor, *, std: Fraction, purpose: str, step: int) -> Tensor:
        """Adds independent rounded normals to integers, contiguous float64, in place and returns
        them.

        Nothing is rounded twice: `mechanisms.privacy.exact_normal` has the argument, and what it
        does not cover.
        """

        def more_bits(number: int) -> int:
            return int.from_bytes(
                hmac.digest(self._key, f"{purpose}\x1f{step}\x1f{number}".encode(), hashlib.sha512)
            )

        return add_rounded_normal_(
            out, std=std, bits=self._source(purpose, step), more_bits=more_bits
        )

    def uniform(self, count: int, *, purpose: str, step: int) -> Tensor:
        """Uniforms on [0, 1), float64 [count]."""
        return uniforms(self._source(purpose, step)(8 * count), device=torch.device("cpu"))

    def poisson_sample(self, records: int, *, prob: float, purpose: str, step: int) -> Tensor:
        """Indices int64 [b], ascending, each record in it independently with probability `prob`."""
        uniform = uniforms(self._source(purpose, step)(8 * records), device=torch.device("cpu"))
        return torch.nonzero(uniform < prob)[:, 0]

    def _source(self, purpose: str, step: int) -> Callable[[int], bytearray]:
        """Returns a reader of the next bytes of this address's key stream."""
        subkey = hmac.digest(self._key, f"{purpose}\x1f{step}".encode(), hashlib.sha256)
        encryptor = Cipher(algorithms.AES(subkey), modes.CTR(bytes(16))).encryptor()
        return lambda count: bytearray(encryptor.update(bytes(count)))
