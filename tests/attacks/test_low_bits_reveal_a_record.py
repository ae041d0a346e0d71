"""Anyone who sees the last bits of a released sum learns from them whether a record is in it. The
attack (Mironov 2012): floating-point noise is on a grid whose spacing depends on what it was added
to. A sum of 0 plus noise near 0 has bits below 2^-53, a sum of 1 plus noise near -1 cannot. It is
won against the float sampler that the draw of a posterior uses, whose claim says so, and lost
against rounded noise on integers.
"""

from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from small_heads import KEY
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.mechanism import Records, Run
from mechanisms.model.custom_module import CustomModule
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream

DECLARES = """
the last bits of a formal release show no record
| sums with and without a record told apart by bits below 2^-53 (won against float noise);
remainders
| draws of a posterior: their claims say that low-order bits are not covered
"""
STD = 1.0
RELEASES = 20_000


def has_bits_below(values: torch.Tensor, unit: float) -> torch.Tensor:
    scaled = values / unit
    return scaled != scaled.round()


def told_apart(without: torch.Tensor, with_record: torch.Tensor) -> float:
    """How often an attacker who says `absent` where bits below 2^-53 show it is right, minus how
    often she is wrong.
    """
    return float(
        has_bits_below(without, 2.0**-53).double().mean()
        - has_bits_below(with_record, 2.0**-53).double().mean()
    )


def test_float_noise_tells_the_record() -> None:
    """One release in nine says for certain that the record is absent: no finite epsilon allows
    that.
    """
    stream = SecretStream(KEY)
    without, with_record = (
        value
        + STD * stream.normal_(torch.zeros(RELEASES, dtype=torch.float64), purpose="sum", step=step)
        for step, value in enumerate((0.0, 1.0))
    )
    certain = has_bits_below(without, 2.0**-53)
    assert float(certain.double().mean()) > 0.1
    assert told_apart(without, with_record) > 0.1


def test_rounded_noise_on_integers_does_not() -> None:
    """On the grid of 2^-30 every release has the same bits, and its remainders modulo small numbers
    are even.
    """
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


@pytest.mark.parametrize("sampler", ["float", "rounded"])
def test_a_step_of_dp_sgd(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose gradient is 1 in every coordinate, in the noisy sum of one step of the
    mechanism itself: told by float noise put in the place of the rounded.
    """
    if sampler == "float":

        def float_noise(
            stream: SecretStream, out: Tensor, *, std: Fraction, purpose: str, step: int
        ) -> Tensor:
            return out.add_(
                stream.normal_(torch.empty_like(out), purpose=purpose, step=step), alpha=float(std)
            )

        monkeypatch.setattr(SecretStream, "add_rounded_normal_", float_noise)
    clip = 1.01 * RELEASES**0.5
    segment = NoiseSegment(steps=1, noise_multiplier=STD / clip, l2_clip_norm=clip)
    event = DpSgdEvent(sampling_prob=1.0, segments=(segment,), exact=True)
    config = dp_sgd.DpSgd(optimiser="sgd", learning_rate=1e-3, epochs=1, batch_size=2)

    def noisy_sum(features: Tensor, key: bytes) -> tuple[Tensor, float]:
        def start() -> Any:
            return CustomModule(
                nn.Linear(RELEASES, 1, bias=False),
                lambda output, _: output.sum() + 1e6,
                device=torch.device("cpu"),
            )

        witness, labels = Mock(), torch.zeros(len(features), dtype=torch.int64)
        dp_sgd.descend(
            config,
            event,
            Records(FeatureInputs(features), labels),
            Run(1, 0, start, witness=witness, key=key),
        )
        (released,), unit = witness.after.call_args.args, witness.before.call_args.kwargs["unit"]
        return released * 2, unit  # after the division by the batch, in place

    two = torch.stack([torch.zeros(RELEASES), torch.ones(RELEASES)])
    without, unit = noisy_sum(two[:1], KEY)
    with_record, _ = noisy_sum(two, bytes(32))
    assert (told_apart(without, with_record) > 0.1) == (sampler == "float")
    assert bool(has_bits_below(without, unit).any()) == (sampler == "float")
