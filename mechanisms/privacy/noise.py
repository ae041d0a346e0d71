"""Randomness of the DP mechanisms: secret, but reproduced exactly when a run resumes.

The guarantee of DP-SGD requires noise *and* samples that are unpredictable. A seed in a parameter
file would reveal both, so the key is 32 bytes of the operating system's entropy, drawn when a run
starts. It is stored only in the private checkpoint, never in a parameter, log or result, and is
deleted when the run ends.

Fresh entropy at every step would be unsafe: a run that is interrupted after its checkpoint would
draw *different* noise on resumption for steps whose noisy gradients were already computed, and an
attacker who saw both (in a log or a core dump) could average them. Here the noise of a step is a
function of (key, purpose, step), so a resumed run equals an uninterrupted one, and a step never has
two different noises.

The stream is AES-256 in counter mode with a subkey per (purpose, step), derived from the key by
HMAC-SHA-256. Box-Muller runs in float64 on the device of the output.
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
from mechanisms.privacy.exact_laplace import add_rounded_laplace_
from mechanisms.privacy.exact_normal import add_rounded_normal_

KEY_BYTES = 32


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


class SecretStream:
    """Uniforms and normals addressed by (purpose, step). The same address always gives the same
    values.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    def __repr__(self) -> str:
        return "SecretStream(key hidden)"

    def normal_(self, out: Tensor, *, purpose: str, step: int) -> Tensor:
        """Fills a contiguous float tensor in place with floating-point standard normals and returns
        it.

        Use this for draws that are repeated. Noise that protects records needs
        `add_rounded_normal_`.
        """
        return fill_normal(out, self._source(purpose, step))

    def add_rounded_normal_(self, out: Tensor, *, std: Fraction, purpose: str, step: int) -> Tensor:
        """Adds independent rounded normals to integers, contiguous float64, in place and returns
        them.

        The rounding is exact: `mechanisms.privacy.exact_normal` has the proof and its limitations.
        """

        return add_rounded_normal_(
            out,
            std=std,
            bits=self._source(purpose, step),
            more_bits=self._further(purpose, step),
        )

    def add_rounded_laplace_(
        self, out: Tensor, *, scale: Fraction, purpose: str, step: int
    ) -> Tensor:
        """Adds independent rounded Laplace noise to integers, contiguous float64, in place and
        returns them.

        The rounding is exact: `mechanisms.privacy.exact_laplace` has the proof. The noise protects
        a sum with pure epsilon = (l1 sensitivity) / scale.
        """
        return add_rounded_laplace_(
            out,
            scale=scale,
            bits=self._source(purpose, step),
            more_bits=self._further(purpose, step),
        )

    def uniform(self, count: int, *, purpose: str, step: int) -> Tensor:
        """Uniforms on [0, 1), float64 [count]."""
        return uniforms(self._source(purpose, step)(8 * count), device=torch.device("cpu"))

    def poisson_sample(self, records: int, *, prob: float, purpose: str, step: int) -> Tensor:
        """Ascending indices int64 [b]; each record is included independently with probability
        `prob`.
        """
        uniform = uniforms(self._source(purpose, step)(8 * records), device=torch.device("cpu"))
        return torch.nonzero(uniform < prob)[:, 0]

    def _further(self, purpose: str, step: int) -> Callable[[int], int]:
        """Further bits of the uniforms at this address."""

        def more_bits(number: int) -> int:
            return int.from_bytes(
                hmac.digest(self._key, f"{purpose}\x1f{step}\x1f{number}".encode(), hashlib.sha512)
            )

        return more_bits

    def _source(self, purpose: str, step: int) -> Callable[[int], bytearray]:
        subkey = hmac.digest(self._key, f"{purpose}\x1f{step}".encode(), hashlib.sha256)
        encryptor = Cipher(algorithms.AES(subkey), modes.CTR(bytes(16))).encryptor()
        return lambda count: bytearray(encryptor.update(bytes(count)))
