"""Rounded Laplace noise: each rounding is the one of the real number, and the distribution is the
stated one.
"""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from scipy import stats
from small_heads import KEY

from mechanisms.privacy import exact_laplace
from mechanisms.privacy.noise import SecretStream

LEVEL = 1e-6
"""False-alarm rate of the statistical test, had the key been fresh; it is fixed."""


def noise(count: int, scale: float, *, step: int = 0) -> torch.Tensor:
    out = torch.zeros(count, dtype=torch.float64)
    return SecretStream(KEY).add_rounded_laplace_(
        out, scale=Fraction(scale), purpose="test", step=step
    )


@pytest.mark.parametrize("scale", [0.3, 3.7, 1e4, 3e10])
def test_each_rounding_is_that_of_the_real_number(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided from float64 or, where all are sent there, from 565 bits: the same integers."""
    quick = noise(2000, scale)
    monkeypatch.setattr(exact_laplace, "_UNITS", 1e9)
    monkeypatch.setattr(exact_laplace, "_TRUNCATION", 0.25)
    assert torch.equal(noise(2000, scale), quick)


def test_float64_leaves_roundings_open_where_an_uniform_is_near_one() -> None:
    """From 53 ones alone the noise is unbounded; the further bits decide it."""
    ones, words = (1 << 53) - 1, bytearray((0xFF).to_bytes(1) * 16)
    further = {0: 1 << 511, 1: 0}
    out = torch.zeros(2, dtype=torch.float64)
    exact_laplace.add_rounded_laplace_(
        out, scale=Fraction(1000), bits=lambda _: words, more_bits=further.__getitem__
    )
    with mpmath.workprec(2000):
        for number, value in enumerate(out.tolist()):
            v = (mpmath.mpf(ones << 512) + further[number]) / mpmath.mpf(2) ** 565
            assert value == -int(mpmath.nint(-1000 * mpmath.log1p(-v)))
    assert out[0] != out[1]


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (0.8, False), (1.25, False)])
def test_the_noise_has_the_rounded_laplace_s_probabilities(factor: float, accepted: bool) -> None:
    """Chi-square over the integers at scale 3.7, against differences of the distribution function;
    a scale that is off by a quarter is rejected.
    """
    drawn, b = noise(200_000, 3.7), 3.7 * factor
    edges = torch.arange(-30, 31).double()
    counts = torch.histc(drawn.clamp(-30, 30), bins=61, min=-30.5, max=30.5)
    law = stats.laplace(scale=b)
    below, above = law.cdf(edges - 0.5), law.cdf(edges + 0.5)
    below[0], above[-1] = 0.0, 1.0
    p_value = stats.chisquare(counts.numpy(), (above - below) * drawn.numel()).pvalue
    assert (p_value > LEVEL) == accepted


def test_no_integer_is_more_than_e_to_the_epsilon_as_likely() -> None:
    """Of sums that differ by one at scale 1, ratios of frequencies exceed e at no integer by more
    than five standard errors.
    """
    number = 400_000
    counts = [
        torch.bincount((noise(number, 1.0, step=step) + step).clamp(-5, 6).long() + 5, minlength=12)
        for step in (0, 1)
    ]
    for one, other in (counts, counts[::-1]):
        excess = one - math.e * other
        error = (one + math.e**2 * other).double().sqrt()
        assert bool((excess <= 5 * error).all())


def test_noise_is_addressed() -> None:
    assert torch.equal(noise(100, 50.0), noise(100, 50.0))
    assert not torch.equal(noise(100, 50.0), noise(100, 50.0, step=1))


@pytest.mark.parametrize("scale", [0.0, 2.0**44, 1e300])
def test_noise_that_no_grid_holds_is_refused(scale: float) -> None:
    with pytest.raises(OverflowError):
        noise(3, scale)


def test_a_sum_beyond_the_grid_is_refused() -> None:
    out = torch.full((3,), 2.0**52, dtype=torch.float64)
    with pytest.raises(OverflowError):
        SecretStream(KEY).add_rounded_laplace_(out, scale=Fraction(1), purpose="t", step=0)
