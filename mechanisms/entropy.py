"""Normal noise straight from the operating system's entropy: for the released draw, and for nothing else.

There is no seed: every variate comes from bytes of its own, so none can be stored, guessed or replayed.
"""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

_BLOCK = 1 << 20


def system_normal(out: Tensor) -> Tensor:
    """Fill a float32 tensor in place with independent standard normals and return it.

    Box-Muller in float64 on 53-bit uniforms u1 in (0, 1], u2 in [0, 1): sqrt(-2 ln u1) cos(2 pi u2) and the sine of
    the same. The smallest u1 is 2^-53, so no variate exceeds 8.6 in absolute value (probability 1e-17 under the true
    normal). This is not a discrete Gaussian: the claim that rests on the draw carries a floating-point caveat.
    """
    flat = out.view(-1)
    for start in range(0, flat.numel(), _BLOCK):
        piece = flat[start : start + _BLOCK]
        pairs = (piece.numel() + 1) // 2
        bits = torch.frombuffer(bytearray(os.urandom(16 * pairs)), dtype=torch.int64)
        uniform = (bits.bitwise_and_((1 << 53) - 1)).to(torch.float64).mul_(2.0**-53)
        radius = (1 - uniform[:pairs]).log_().mul_(-2).sqrt_()
        angle = uniform[pairs:].mul_(2 * math.pi)
        piece.copy_(torch.cat([radius * angle.cos(), radius * angle.sin()])[: piece.numel()])
    return out
