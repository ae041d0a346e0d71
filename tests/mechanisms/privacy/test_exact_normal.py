"""Rounded Gaussian noise: each rounding is the one of the real number, and the distribution is the
stated one.
"""

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from small_heads import KEY

from mechanisms.privacy import exact_normal
from mechanisms.privacy.noise import SecretStream

LEVEL = 1e-6
"""False-alarm rate of each statistical test, had the key been fresh; it is fixed, so they pass or
fail for ever.
"""


def noise(count: int, std: float, *, step: int = 0) -> torch.Tensor:
    out = torch.zeros(count, dtype=torch.float64)
    return SecretStream(KEY).add_rounded_normal_(out, std=Fraction(std), purpose="test", step=step)


@pytest.mark.parametrize("std", [0.3, 3.7, 1e4, 3e10])
def test_each_rounding_is_that_of_the_real_number(
    std: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided from float64 or, where all are sent there, from 565 bits: the same integers."""
    quick = noise(3000, std)
    monkeypatch.setattr(exact_normal, "_UNITS", 1e9)
    assert torch.equal(noise(3000, std), quick)


def test_float64_leaves_some_roundings_open_and_they_are_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a fine grid a few of a million need further bits. Without these a rounding could be off by
    one.
    """
    decided, decide = [], exact_normal._decide

    def counting(*arguments: object, **settings: object) -> int:
        decided.append(decide(*arguments, **settings))  # pyrefly: ignore
        return decided[-1]

    monkeypatch.setattr(exact_normal, "_decide", counting)
    noise(1_000_000, 1e10)
    assert 1 <= len(decided) <= 3000


def test_the_error_bound_holds_against_high_precision() -> None:
    """Float64's Box-Muller is nearer to the real number than the stated bound, at the ends of the
    interval too.
    """
    generator = np.random.default_rng(5)
    words = generator.integers(0, 1 << 53, size=(400, 2))
    words[:4] = [[1, 1], [(1 << 53) - 1, 5], [(1 << 53) - 2, (1 << 53) - 1], [1 << 20, 1 << 51]]
    v, w = (torch.tensor(words[:, i] * 2.0**-53) for i in (0, 1))
    radius = torch.log1p(-v).mul_(-2).sqrt_()
    shown = radius * (w * (2 * torch.pi)).cos()
    bound = 2.0**-53 / ((1 - v - 2.0**-53) * radius) + radius * exact_normal._UNITS
    with mpmath.workprec(300):
        for row, value, error in zip(words, shown.tolist(), bound.tolist(), strict=True):
            for extra in (0, 1):  # the further bits all zeros, or all ones
                low, angle = (mpmath.mpf(int(x) + extra) / mpmath.mpf(2) ** 53 for x in row)
                if low == 1:
                    continue
                real = mpmath.sqrt(-2 * mpmath.log1p(-low)) * mpmath.cos(2 * mpmath.pi * angle)
                assert abs(real - value) <= error or not np.isfinite(error)


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_small_noise_has_the_rounded_normals_probabilities(factor: float, accepted: bool) -> None:
    """Chi-square over the integers at std 3.7, against differences of the normal's distribution
    function.
    """
    values = noise(200_000, 3.7).numpy()
    edges = np.arange(-15, 16)
    counts, _ = np.histogram(values, bins=np.concatenate([[-np.inf], edges + 0.5, [np.inf]]))
    expected = len(values) * np.diff(
        stats.norm.cdf(np.concatenate([[-np.inf], edges + 0.5, [np.inf]]) / (3.7 * factor))
    )
    assert (stats.chisquare(counts, expected, sum_check=False).pvalue > LEVEL) == accepted


def test_large_noise_is_normal_and_its_halves_share_nothing() -> None:
    """Kolmogorov-Smirnov at std 1e10; |r| < 5 / sqrt(n) between cosines and sines and between
    neighbours.
    """
    values = noise(200_000, 1e10) / 1e10
    assert stats.kstest(values.numpy(), "norm").pvalue > LEVEL
    half = len(values) // 2
    for a, b in ((values[:half], values[half:]), (values[:-1], values[1:])):
        assert abs(float((a * b).mean())) < 5 / len(a) ** 0.5


def test_noise_is_addressed() -> None:
    """The same step has the same noise, another step other noise; it is added to what is there."""
    assert torch.equal(noise(1001, 1e6), noise(1001, 1e6))
    assert not torch.equal(noise(1001, 1e6), noise(1001, 1e6, step=1))
    out = torch.full((1001,), 5.0, dtype=torch.float64)
    shifted = SecretStream(KEY).add_rounded_normal_(
        out, std=Fraction(10**6), purpose="test", step=0
    )
    assert torch.equal(shifted - 5, noise(1001, 1e6))


@pytest.mark.parametrize("std", [0.0, 2.0**45])
def test_noise_that_no_grid_holds_is_refused(std: float) -> None:
    with pytest.raises(OverflowError, match="grid"):
        noise(10, std)


@pytest.mark.parametrize("sine", [False, True])
def test_a_uniform_of_ones_alone_is_decided_by_further_bits(sine: bool) -> None:
    """181 bits that are all one leave the variate unbounded: 565 are read, and no step divides by
    zero.
    """
    ones, zeros = (1 << 53) - 1, 0
    more = {0: ((1 << 512) - 1) ^ (1 << 200), 1: 1 << 500}
    value = exact_normal._decide(
        (ones, zeros), (0, 1), std=Fraction(1000), sine=sine, more_bits=more.__getitem__
    )
    assert abs(value) < 40_000


def test_a_card_computes_many_blocks_at_once_with_the_same_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blocks of the stream are those of the processor, a last one that is shorter and odd
    included, also where every rounding needs further bits.
    """
    monkeypatch.setattr(exact_normal, "_BLOCK", 64)
    computed = exact_normal._rounded_blocks
    at_once: list[int] = []

    def counting(raw: bytearray, **settings: Any) -> torch.Tensor:
        at_once.append(settings["blocks"])
        return computed(raw, **settings)

    one_by_one = noise(64 * 7 + 33, 1e4)
    monkeypatch.setattr(exact_normal, "_rounded_blocks", counting)
    monkeypatch.setattr(exact_normal, "_blocks_at_once", lambda device: 4)
    for units in (exact_normal._UNITS, 1e9):
        monkeypatch.setattr(exact_normal, "_UNITS", units)
        at_once.clear()
        assert torch.equal(noise(64 * 7 + 33, 1e4), one_by_one)
        assert at_once == [4, 3, 1]
