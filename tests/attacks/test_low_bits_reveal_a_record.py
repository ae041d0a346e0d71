"""Anyone who sees the last bits of a released sum learns from them whether a record is in it. The attack (Mironov
2012): floating-point noise is on a grid whose spacing depends on what it was added to. A sum of 0 plus noise near 0 has
bits below 2^-53, a sum of 1 plus noise near -1 cannot. It is won against the float sampler that sampled DP-SGD and the
draw of a posterior use, whose claims say so, and lost against rounded noise on integers."""

from fractions import Fraction

import torch
from small_heads import KEY

from mechanisms.privacy.noise import SecretStream

DECLARES = """
the last bits of a full-batch release show no record
| sums with and without a record told apart by bits below 2^-53 (won against float noise); remainders
| sampled DP-SGD and draws of a posterior: their claims say that low-order bits are not covered
"""
STD = 1.0
RELEASES = 20_000


def has_bits_below(values: torch.Tensor, unit: float) -> torch.Tensor:
    scaled = values / unit
    return scaled != scaled.round()


def told_apart(without: torch.Tensor, with_record: torch.Tensor) -> float:
    """How often an attacker who says `absent` where bits below 2^-53 show it is right, minus how often she is wrong."""
    return float(
        has_bits_below(without, 2.0**-53).double().mean() - has_bits_below(with_record, 2.0**-53).double().mean()
    )


def test_float_noise_tells_the_record() -> None:
    """One release in nine says for certain that the record is absent: no finite epsilon allows that."""
    stream = SecretStream(KEY)
    without, with_record = (
        stream.add_normal_(torch.full((RELEASES,), value, dtype=torch.float64), std=STD, purpose="sum", step=step)
        for step, value in enumerate((0.0, 1.0))
    )
    certain = has_bits_below(without, 2.0**-53)
    assert float(certain.double().mean()) > 0.1
    assert told_apart(without, with_record) > 0.1


def test_rounded_noise_on_integers_does_not() -> None:
    """On the grid of 2^-30 every release has the same bits, and its remainders modulo small numbers are even."""
    bits = 30
    stream, unit = SecretStream(KEY), 2.0**-bits
    without, with_record = (
        stream.add_rounded_normal_(
            torch.full((RELEASES,), value / unit, dtype=torch.float64),
            std=Fraction(STD) * 2**bits,
            purpose="sum",
            step=step,
        )
        for step, value in enumerate((0.0, 1.0))
    )
    assert not has_bits_below(torch.cat([without, with_record]), 1.0).any()
    assert told_apart(without * unit, with_record * unit) == 0
    for modulus in (2, 3, 8, 1024):
        shares = [float(((part % modulus) == 0).double().mean()) for part in (without, with_record)]
        # two shares of 20,000: a false alarm at 6 standard errors has a probability below 1e-8
        assert abs(shares[0] - shares[1]) < 6 * (2 * (1 / modulus) / RELEASES) ** 0.5
