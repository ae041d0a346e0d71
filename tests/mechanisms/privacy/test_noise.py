"""The secret stream: right distribution, wrong ones rejected, addressed by step, repeatable only
with the key.
"""

import math

import pytest
import torch
from scipy import stats
from small_heads import KEY, scale_p_value

from mechanisms.privacy.noise import SecretStream, new_key

SAMPLES = 200_000
LEVEL = 1e-6
"""False-alarm rate of each test below, had the key been fresh; it is fixed, so they pass or fail
for ever.
"""


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_right_std_accepted_wrong_rejected(factor: float, accepted: bool) -> None:
    """Chi-square test at level 1e-6: std 1 passes, two thirds and three halves of it do not."""
    values = SecretStream(KEY).normal_(torch.empty(SAMPLES), purpose="test", step=0)
    assert (scale_p_value(values, std=factor) > LEVEL) == accepted


def test_shape_is_normal() -> None:
    """Kolmogorov-Smirnov at level 1e-6 accepts the normal and rejects a uniform of the same
    variance.
    """
    values = SecretStream(KEY).normal_(torch.empty(SAMPLES), purpose="test", step=1).numpy()
    assert stats.kstest(values, "norm").pvalue > LEVEL
    half = math.sqrt(3)
    assert stats.kstest(values, stats.uniform(-half, 2 * half).cdf).pvalue < LEVEL


def test_pairs_are_uncorrelated() -> None:
    """Box-Muller's cosine and sine halves, and neighbouring blocks, share nothing: |r| < 5 /
    sqrt(n).
    """
    values = SecretStream(KEY).normal_(torch.empty(SAMPLES), purpose="test", step=2).double()
    half = SAMPLES // 2
    for a, b in ((values[:half], values[half:]), (values[:-1], values[1:])):
        assert abs(float((a * b).mean())) < 5 / math.sqrt(len(a))


def test_addresses() -> None:
    """The same (key, purpose, step) gives the same noise; changing any of the three gives other
    noise.
    """

    def draw(key: bytes = KEY, purpose: str = "a", step: int = 0) -> torch.Tensor:
        return SecretStream(key).normal_(torch.empty(101), purpose=purpose, step=step)

    assert torch.equal(draw(), draw())
    for other in (draw(key=new_key()), draw(purpose="b"), draw(step=1)):
        assert not torch.any(draw() == other)


def test_every_element_is_filled() -> None:
    """Odd lengths and lengths over a block leave no element of the buffer as it was."""
    for size in (1, 2, 3, (1 << 20) + 1):
        values = SecretStream(KEY).normal_(torch.full((size,), 99.0), purpose="test", step=0)
        assert float(values.abs().max()) < 9


@pytest.mark.parametrize("prob", [0.05, 0.5, 1.0])
def test_inclusion_frequencies(prob: float) -> None:
    """Over 2,000 steps every one of 50 records is in a Poisson sample about prob of the time,
    independently of the others: no record's count leaves the binomial's central 1 - 1e-7 (false
    alarm 5e-6), sizes vary as they must.
    """
    stream, steps, records = SecretStream(KEY), 2000, 50
    present = torch.zeros(steps, records)
    for step in range(steps):
        present[step, stream.poisson_sample(records, prob=prob, purpose="sample", step=step)] = 1
    low, high = stats.binom.ppf([5e-8, 1 - 5e-8], steps, prob)
    counts = present.sum(0)
    assert bool(((counts >= low) & (counts <= high)).all())
    sizes = present.sum(1).double()
    if prob < 1:
        expected = records * prob * (1 - prob)
        assert float(sizes.var()) == pytest.approx(
            expected, rel=0.25
        )  # 0.25 is 8 standard errors of a variance
        wrong_low, wrong_high = stats.binom.ppf(
            [5e-8, 1 - 5e-8], steps, prob * 1.5 if prob < 0.6 else prob / 1.5
        )
        assert not bool(((counts >= wrong_low) & (counts <= wrong_high)).all())


def test_the_key_is_not_shown() -> None:
    """A stream in a log or a traceback gives nothing away."""
    assert KEY.hex() not in repr(SecretStream(KEY))
    assert "hidden" in repr(SecretStream(KEY))
