"""Normal noise directly from the operating system's entropy, used only for the released draw.

There is no seed. Every variate is computed from fresh bytes, so the noise cannot be stored, guessed
or replayed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import torch
from torch import Tensor

_BLOCK = 1 << 18
"""Number of normals whose float64 intermediates fit in the cache."""


def system_normal(out: Tensor) -> Tensor:
    """Fills a float32 tensor in place with independent standard normals and returns it.

    This is not a discrete Gaussian, so a claim that depends on the draw has a floating-point
    caveat.
    """
    return fill_normal(out, lambda count: bytearray(os.urandom(count)))


def fill_normal(out: Tensor, bits: Callable[[int], bytearray]) -> Tensor:
    """Fills a contiguous float tensor in place with independent standard normals computed from a
    stream of bytes.
    """
    flat = out.view(-1)
    for start in range(0, flat.numel(), _BLOCK):
        piece = flat[start : start + _BLOCK]
        pairs = (piece.numel() + 1) // 2
        first, second = _box_muller(bits(16 * pairs), device=out.device)
        normals = torch.cat([first, second])
        piece.copy_(normals[: piece.numel()])
    return out


def _box_muller(bits: bytearray, *, device: torch.device) -> tuple[Tensor, Tensor]:
    # with 53-bit uniforms u1 in (0, 1], u2 in [0, 1): sqrt(-2 ln u1) cos(2 pi u2), and the same
    # with sin. The smallest u1 is 2^-53, so no variate exceeds 8.6 in absolute value (probability
    # 1e-17 under the true normal)
    uniform = uniforms(bits, device=device)
    pairs = len(uniform) // 2
    above_zero = 1 - uniform[:pairs]
    radius = above_zero.log_().mul_(-2).sqrt_()
    angle = uniform[pairs:].mul_(2 * math.pi)
    first = radius * angle.cos()
    second = radius.mul_(angle.sin_())
    return first, second


def uniforms(bits: bytearray, *, device: torch.device) -> Tensor:
    """Float64 uniforms on [0, 1) with 53 bits, each from 8 random bytes."""
    words = torch.frombuffer(bits, dtype=torch.int64).to(device)
    low_bits = words.bitwise_and_((1 << 53) - 1)
    return low_bits.to(torch.float64).mul_(2.0**-53)
