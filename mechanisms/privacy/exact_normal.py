"""Gaussian noise for integers, rounded without error: the claim is about the bits that are
released.

A sum q of integer vectors gets the noise round(sigma z), with z a standard normal real number.
Since q is an integer,

    q + round(sigma z) = round(q + sigma z),

so what is released is a function of the Gaussian mechanism's output over the real numbers, and its
guarantee, whatever the accountant, is that mechanism's (post-processing). No floating-point number
of the noise leaves this file.

z comes from two real uniforms v, w on [0, 1) by Box and Muller: sqrt(-2 ln(1 - v)) cos(2 pi w) and
the sine of the same. Both have infinitely many bits, of which 53 are read first. From these,
float64 gives sigma z with an error that is bounded below. Where the bound leaves open to which
integer it rounds, further bits are read and the arithmetic is done at higher precision until it is
decided. The result is therefore the same on every processor.

The stream of bits is pseudo-random (AES-256 under a secret key), and time and memory accesses
depend on the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

Bits = Callable[[int], bytearray]
"""Returns the next so many bytes of a stream."""
MoreBits = Callable[[int], int]
"""Returns the 512 bits that follow the first 53 of uniform number i, as an integer."""

_BLOCK = 1 << 17
_LARGEST = 2.0**52
_UNITS = 2.0**-48
"""Bound on the relative error of r cos(2 pi w) sigma from its float64 operations: 16 units in the
last place, where log1p, sqrt, cos and sin of torch's libraries stay within 4 and the angle's
rounding adds 2 pi.
"""
_TRUNCATION = 2.0**-53
"""Bound on v and w minus their first 53 bits."""


def add_rounded_normal_(out: Tensor, *, std: Fraction, bits: Bits, more_bits: MoreBits) -> Tensor:
    """Adds independent round(std z) to integers in place and returns them.

    Args:
        out: contiguous float64 of integers; every sum must stay below 2^52.
        std: of the noise, in the same unit, below 2^44; the larger, the more roundings need further
            bits. It is a rational number, so that no rounding of its own counts.
        bits: stream that gives 16 bytes a pair of variates.
        more_bits: continues the uniforms of the stream, which are numbered as they are read.

    Raises:
        OverflowError: an entry is not an integer below 2^52 in size.
    """
    scale = float(std)
    if not 0 < scale < 2.0**44:
        raise OverflowError("the noise does not fit the grid: choose a coarser grid")
    flat, used = out.view(-1), 0
    for start in range(0, flat.numel(), _BLOCK):
        piece = flat[start : start + _BLOCK]
        pairs = (piece.numel() + 1) // 2
        noise = _rounded_pairs(
            bits(16 * pairs),
            std=std,
            scale=scale,
            first=used,
            more_bits=more_bits,
            device=out.device,
        )
        used += 2 * pairs
        piece += noise[: piece.numel()]
        if not float(piece.abs().max()) < _LARGEST:
            raise OverflowError("a noisy sum is beyond 2^52: choose a coarser grid")
    return out


def _rounded_pairs(
    raw: bytearray,
    *,
    std: Fraction,
    scale: float,
    first: int,
    more_bits: MoreBits,
    device: torch.device,
) -> Tensor:
    """Returns round(std z) of pairs of variates, float64 [2 pairs]: the cosines, then the sines."""
    words = torch.frombuffer(raw, dtype=torch.int64).to(device).bitwise_and_((1 << 53) - 1)
    uniforms = words.to(torch.float64).mul_(2.0**-53)
    pairs = len(uniforms) // 2
    v, angle = uniforms[:pairs], uniforms[pairs:] * (2 * math.pi)
    radius = torch.log1p(-v).mul_(-2).sqrt_()
    # |dr/dv| = 1 / ((1 - v) r) over the interval that v may lie in; the angle's part is 2 pi r
    # 2^-53, within `_UNITS`
    error = (_TRUNCATION / ((1 - v - _TRUNCATION) * radius) + radius * _UNITS) * scale
    exact = torch.cat([radius * angle.cos(), radius * angle.sin()]).mul_(scale)
    rounded = exact.round()
    off = exact.sub_(rounded).abs_()
    open_ = torch.nonzero(~(off.view(2, pairs) < 0.5 - error).view(-1))[:, 0]
    for place in open_.tolist():
        pair = place % pairs
        rounded[place] = _decide(
            (int(words[pair]), int(words[pairs + pair])),
            (first + pair, first + pairs + pair),
            std=std,
            sine=place >= pairs,
            more_bits=more_bits,
        )
    return rounded


def _decide(
    leading: tuple[int, int],
    numbers: tuple[int, int],
    *,
    std: Fraction,
    sine: bool,
    more_bits: MoreBits,
) -> int:
    """Returns round(std z) of one variate from as many bits as it takes, at most 565 of each
    uniform.

    Raises:
        ArithmeticError: they do not suffice, which has a probability below 2^-400.
    """
    import mpmath

    further = [more_bits(number) for number in numbers]
    for bits in (128, 512):
        precision = 53 + bits
        with mpmath.workprec(2 * precision + 64):
            v, w = (
                mpmath.mpf((known << bits) | (more >> (512 - bits))) / mpmath.mpf(2) ** precision
                for known, more in zip(leading, further, strict=True)
            )
            unread = mpmath.mpf(2) ** -precision
            if v == 0 or v + unread >= 1:  # the variate is 0 or unbounded as far as these bits tell
                continue
            radius = mpmath.sqrt(-2 * mpmath.log1p(-v))
            wave = mpmath.sin if sine else mpmath.cos
            sigma = mpmath.mpf(std.numerator) / std.denominator
            value = sigma * radius * wave(2 * mpmath.pi * w)
            error = sigma * unread * (1 / ((1 - v - unread) * radius) + 2 * mpmath.pi * radius + 1)
            rounded = mpmath.nint(value)
            if abs(abs(value - rounded) - 0.5) > error:
                return int(rounded)
    raise ArithmeticError("565 bits of a uniform did not decide a rounding")
