"""Exactly rounded Gaussian noise for integers, so that the claim covers the released bits.

A sum q of integer vectors gets the noise round(sigma z), in which z is a standard normal real
number. Since q is an integer,

  q + round(sigma z) = round(q + sigma z),

so the release is a function of the output of the Gaussian mechanism over the real numbers. By
post-processing it has that mechanism's guarantee, with any accountant. No floating-point value of
the noise leaves this module.

z is computed from two real uniforms v, w on [0, 1) by Box and Muller: sqrt(-2 ln(1 - v)) cos(2 pi
w), and the same with sin. Both uniforms have infinitely many bits, of which 53 are read first. From
these, float64 gives sigma z with an error that is bounded below. If the bound does not determine
the nearest integer, further bits are read and the arithmetic is repeated at higher precision until
it does. The result is therefore the same on every processor.

The stream of bits is pseudo-random (AES-256 with a secret key). Time and memory accesses depend on
the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import torch
from torch import Tensor

Bits = Callable[[int], bytearray]
"""Returns the given number of next bytes of a stream."""
MoreBits = Callable[[int], int]
"""Returns the 512 bits that follow the first 53 of uniform number i, as an integer."""

_BLOCK = 1 << 17
"""Number of variates in a block of the stream: the cosines of its pairs, followed by the sines."""
_LARGEST = 2.0**52
_UNITS = 2.0**-48
"""Bound on the relative error of r cos(2 pi w) sigma from its float64 operations: 16 units in the
last place. log1p, sqrt, cos and sin of torch's libraries have errors of at most 4, and rounding
the angle adds 2 pi.
"""
_TRUNCATION = 2.0**-53
"""Bound on the difference between v or w and their first 53 bits."""


def add_rounded_normal_(out: Tensor, *, std: Fraction, bits: Bits, more_bits: MoreBits) -> Tensor:
    """Adds independent round(std z) to integers in place and returns them.

    Args:
        out: integers as contiguous float64. Every sum must stay below 2^52.
        std: standard deviation of the noise in the same unit, below 2^44. Larger values need
            further bits more often. It is a rational number, so that it has no rounding error.
        bits: stream that supplies 16 bytes per pair of variates.
        more_bits: continues the uniforms of the stream, which are numbered in reading order.

    Raises:
        OverflowError: the noise does not fit the grid, or a noisy sum is beyond 2^52.
    """
    scale = float(std)
    if not 0 < scale < 2.0**44:
        raise OverflowError("the noise does not fit the grid: choose a coarser grid")
    flat, used = out.view(-1), 0
    largest = flat.new_zeros(())
    for piece, blocks in _pieces(flat):
        words = bits(16 * blocks * ((piece.numel() // blocks + 1) // 2))
        noise = _rounded_blocks(
            words,
            blocks=blocks,
            std=std,
            scale=scale,
            first=used,
            more_bits=more_bits,
            device=out.device,
        )
        used += noise.numel()
        piece += noise[: piece.numel()]
        largest = torch.maximum(largest, piece.abs().max())
    if not float(largest) < _LARGEST:
        raise OverflowError("a noisy sum is beyond 2^52: choose a coarser grid")
    return out


def _pieces(flat: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yields parts of a vector with the number of blocks in each. The blocks of one part have equal
    lengths, and all blocks except the last have `_BLOCK` entries, on every device.
    """
    at_once = _blocks_at_once(flat.device)
    full = flat.numel() // _BLOCK
    for first in range(0, full, at_once):
        blocks = min(at_once, full - first)
        yield flat[first * _BLOCK : (first + blocks) * _BLOCK], blocks
    if flat.numel() % _BLOCK:
        yield flat[full * _BLOCK :], 1


def _blocks_at_once(device: torch.device) -> int:
    """A card waits for the processor at each copy and at each search for open roundings, so it
    computes many blocks at once. On a CPU, one block stays in a core's cache.
    """
    return 1 if device.type == "cpu" else 32


def _rounded_blocks(
    raw: bytearray,
    *,
    blocks: int,
    std: Fraction,
    scale: float,
    first: int,
    more_bits: MoreBits,
    device: torch.device,
) -> Tensor:
    """round(std z) for blocks of equally many pairs of variates, float64 [blocks 2 pairs]: for each
    block the cosines, followed by the sines.
    """
    words = torch.frombuffer(raw, dtype=torch.int64).to(device).bitwise_and_((1 << 53) - 1)
    uniforms = words.to(torch.float64).mul_(2.0**-53).view(blocks, 2, -1)
    pairs = uniforms.shape[2]
    v, angle = uniforms[:, 0], uniforms[:, 1] * (2 * math.pi)
    radius = torch.log1p(-v).mul_(-2).sqrt_()
    # |dr/dv| = 1 / ((1 - v) r) over the possible interval of v. The part of the angle is 2 pi r
    # 2^-53, which `_UNITS` includes.
    error = (_TRUNCATION / ((1 - v - _TRUNCATION) * radius) + radius * _UNITS) * scale
    exact = torch.stack([radius * angle.cos(), radius * angle.sin()], 1).mul_(scale)
    rounded = exact.round()
    off = exact.sub_(rounded).abs_()
    open_ = torch.nonzero(~(off < 0.5 - error[:, None]).view(-1))[:, 0]
    rounded = rounded.view(-1)
    for place in open_.tolist():
        block, sine, pair = place // (2 * pairs), place // pairs % 2, place % pairs
        number = block * 2 * pairs + pair
        rounded[place] = _decide(
            (int(words[number]), int(words[number + pairs])),
            (first + number, first + number + pairs),
            std=std,
            sine=bool(sine),
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
    """round(std z) of one variate, from as many bits as necessary, at most 565 per uniform.

    Raises:
        ArithmeticError: these bits do not suffice, which has a probability below 2^-400.
    """
    import mpmath

    further = [more_bits(number) for number in numbers]
    for bits in (128, 512):
        precision = 53 + bits
        with mpmath.workprec(2 * precision + 64):
            v, w = (
                mpmath.mpf((first_bits << bits) | (more >> (512 - bits)))
                / mpmath.mpf(2) ** precision
                for first_bits, more in zip(leading, further, strict=True)
            )
            unread = mpmath.mpf(2) ** -precision
            if v == 0 or v + unread >= 1:  # with these bits, the variate could be 0 or unbounded
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
