"""Exactly rounded Laplace noise for integers, so that a pure claim covers the released bits.

A sum q of integers gets the noise round(b x), in which x is a real number with the standard Laplace
distribution. Since q is an integer, and rounding to the nearest integer is symmetric,

  q + round(b x) = round(q + b x),

so the release is a function of the output of the Laplace mechanism over the real numbers, and by
post-processing it has that mechanism's guarantee (Dwork, McSherry, Nissim and Smith 2006, example
3). No floating-point value of the noise leaves this module.

x has a random sign, and its absolute value is -ln(1 - v) for a real uniform v on [0, 1). Of v, 53
bits are read first. If they do not determine the nearest integer, further bits are read and the
arithmetic is repeated at higher precision, as in `mechanisms.privacy.exact_normal`. Time and memory
accesses depend on the noise.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from mechanisms.privacy.exact_normal import Bits, MoreBits

_LARGEST = 2.0**52
_UNITS = 2.0**-48
"""Bound on the relative error of b ln(1 - v) from its float64 operations: 16 units in the last
place. log1p has an error of at most 4, and the scale and the product of at most one each.
"""
_TRUNCATION = 2.0**-53
"""Bound on the difference between v and its first 53 bits."""


def add_rounded_laplace_(
    out: Tensor, *, scale: Fraction, bits: Bits, more_bits: MoreBits
) -> Tensor:
    """Adds independent round(scale x) to integers in place and returns them.

    Args:
        out: integers as contiguous float64. Every sum must stay below 2^52.
        scale: scale of the noise in the same unit, below 2^44. Its standard deviation is sqrt(2)
            times as large. It is a rational number, so that it has no rounding error.
        bits: stream that supplies 8 bytes per variate.
        more_bits: continues the uniforms of the stream, which are numbered in reading order.

    Raises:
        OverflowError: the noise does not fit the grid, or a noisy sum is beyond 2^52.
    """
    b = float(scale)
    if not 0 < b < 2.0**44:
        raise OverflowError("the noise does not fit the grid: choose a coarser grid")
    words = torch.frombuffer(bits(8 * out.numel()), dtype=torch.int64)
    leading = words & ((1 << 53) - 1)
    sign = 1 - 2 * ((words >> 53) & 1)
    v = leading.double() * 2.0**-53
    size = torch.log1p(-v).mul_(-b)
    error = _TRUNCATION / (1 - v - _TRUNCATION) * b + size * _UNITS
    rounded = size.round()
    for number in torch.nonzero(~((size - rounded).abs() < 0.5 - error))[:, 0].tolist():
        rounded[number] = _decide(int(leading[number]), more_bits(number), scale)
    noisy = out.view(-1).add_((sign * rounded).to(out.device))
    if noisy.numel() and not float(noisy.abs().max()) < _LARGEST:
        raise OverflowError("a noisy sum is beyond 2^52: choose a coarser grid")
    return out


def _decide(leading: int, further: int, scale: Fraction) -> int:
    """The absolute value of one variate, from as many bits as necessary, at most 565.

    Raises:
        ArithmeticError: these bits do not suffice, which has a probability below 2^-400.
    """
    import mpmath

    for bits in (128, 512):
        precision = 53 + bits
        with mpmath.workprec(2 * precision + 64):
            unread = mpmath.mpf(2) ** -precision
            v = ((leading << bits) | (further >> (512 - bits))) * unread
            if v + unread >= 1:  # with these bits, the variate could be unbounded
                continue
            b = mpmath.mpf(scale.numerator) / scale.denominator
            value = -b * mpmath.log1p(-v)
            error = b * unread * (1 / (1 - v - unread) + 1)
            rounded = mpmath.nint(value)
            if abs(abs(value - rounded) - 0.5) > error:
                return int(rounded)
    raise ArithmeticError("565 bits of a uniform did not decide a rounding")
