"""Noisy descents and their state: the key comes before the noise, steps are taken once, updates are
manually.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from refusals import of_kind
from small_heads import KEY
from torch import Tensor

from mechanisms.descent.keyed_state import FILE, KeyedState
from mechanisms.descent.noisy_descent import Momentum, NoisyDescent, Optimised, Update
from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream

SEGMENTS = (
    NoiseSegment(steps=2, noise_multiplier=3.0, l2_clip_norm=0.5),
    NoiseSegment(steps=4, noise_multiplier=2.0, l2_clip_norm=1.0),
)
EVENT = DpSgdEvent(sampling_prob=1.0, segments=SEGMENTS)
BITS = 20


class Killed(BaseException):
    """As if the process had ended."""


def momentum() -> Update:
    return Momentum(torch.zeros(5, dtype=torch.float64), rate=0.1, momentum=0.9)


def adam() -> Update:
    theta = torch.zeros(5, dtype=torch.float64)
    return Optimised(theta, lambda parameter: torch.optim.Adam([parameter], lr=0.1))


def descend(
    update: Update,
    folder: Path | None = None,
    *,
    kill_at: int = -1,
    epochs: int = 6,
    checkpoint_seconds: float = 0,
) -> list[int]:
    """Two segments of a descent whose sums are 1 and theta + 2; returns the steps at which sums
    were asked for.
    """
    state, asked = KeyedState(folder, lambda: KEY), list[int]()
    descent = NoisyDescent(
        state,
        EVENT,
        epochs=epochs,
        remedy="lower the rate",
        checkpoint_seconds=checkpoint_seconds,
    )

    def clipped_sum(
        theta: Tensor, step: int, segment: NoiseSegment, out: Tensor, tally: Tensor
    ) -> int:
        if step == kill_at:
            raise Killed
        asked.append(step)
        out += 2**BITS if segment == SEGMENTS[0] else (2**BITS * (theta + 2)).trunc()
        tally += torch.tensor([8.0, 1.0, 4.0])
        return BITS

    descent.run(update, clipped_sum, divisor=4)
    state.finish(theta=update.theta)
    return asked


def test_a_step_by_hand() -> None:
    """theta moves by the rate times 2^-bits (sum + round(2^bits sigma C z)) / divisor, z of the
    key's stream.
    """
    update = Momentum(torch.zeros(5, dtype=torch.float64), rate=0.1, momentum=0.0)
    event = DpSgdEvent(sampling_prob=1.0, segments=SEGMENTS[:1])
    descent = NoisyDescent(KeyedState(None, lambda: KEY), event, epochs=2, remedy="")
    descent.run(
        update,
        lambda theta, step, segment, out, tally: BITS * int(out.fill_(2.0**BITS).all()),
        divisor=4,
    )
    wanted = torch.zeros(5, dtype=torch.float64)
    for step in range(2):
        noisy, std = torch.full((5,), 2.0**BITS, dtype=torch.float64), Fraction(3, 2) * 2**BITS
        SecretStream(KEY).add_rounded_normal_(noisy, std=std, purpose="gradient noise", step=step)
        wanted -= 0.1 * noisy * 2.0**-BITS / 4
    torch.testing.assert_close(update.theta, wanted)


def test_an_optimiser_of_torch_takes_the_same_steps() -> None:
    by_hand = momentum()
    theta = torch.zeros(5, dtype=torch.float64)
    by_torch = Optimised(
        theta, lambda parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    )
    descend(by_hand)
    descend(by_torch)
    torch.testing.assert_close(by_torch.theta, by_hand.theta)


@pytest.mark.parametrize("make", [momentum, adam])
@pytest.mark.parametrize("kill_at", [0, 1, 2, 5])
def test_a_killed_descent_takes_no_saved_step_again(
    make: Callable[[], Update], kill_at: int, tmp_path: Path
) -> None:
    """In either segment it ends bit for bit where the unbroken one does, from the step that was
    missing.
    """
    unbroken, resumed = make(), make()
    assert descend(unbroken) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(Killed):
        descend(make(), tmp_path, kill_at=kill_at)
    assert descend(resumed, tmp_path) == list(range(kill_at, 6))
    assert torch.equal(resumed.theta, unbroken.theta)


def test_it_is_saved_once_an_epoch_at_most(tmp_path: Path) -> None:
    """Of three epochs of two steps, killed in the fourth step: the third is taken again."""
    with pytest.raises(Killed):
        descend(momentum(), tmp_path, kill_at=3, epochs=3)
    tensors, numbers = checkpoint.load(tmp_path / FILE)
    assert (numbers["step"], numbers["losses"], numbers["clipped"]) == (2, [2.0], [0.25])
    assert "noise_key" in tensors
    assert descend(momentum(), tmp_path, epochs=3) == [2, 3, 4, 5]


@pytest.mark.parametrize("make", [momentum, adam])
def test_it_is_saved_by_time_and_a_step_has_one_noise(
    make: Callable[[], Update], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the fifth step before any save: every step is taken again with the key of the
    first attempt, so that what a step released is released twice, bit for bit, and nothing else.
    """
    noisy: dict[int, list[Tensor]] = {}
    add = SecretStream.add_rounded_normal_

    def kept(self: SecretStream, out: Tensor, *, std: Fraction, purpose: str, step: int) -> Tensor:
        noisy.setdefault(step, []).append(add(self, out, std=std, purpose=purpose, step=step))
        noisy[step][-1] = noisy[step][-1].clone()
        return out

    unbroken, resumed = make(), make()
    descend(unbroken)
    monkeypatch.setattr(SecretStream, "add_rounded_normal_", kept)
    with pytest.raises(Killed):
        descend(make(), tmp_path, kill_at=4, checkpoint_seconds=3600)
    assert checkpoint.load(tmp_path / FILE)[1] == {}
    assert descend(resumed, tmp_path, checkpoint_seconds=3600) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(resumed.theta, unbroken.theta)
    assert {step: len(sums) for step, sums in noisy.items()} == {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1}
    assert all(torch.equal(sums[0], sums[-1]) for sums in noisy.values())


def test_the_key_is_on_the_disk_before_anything_is_drawn(tmp_path: Path) -> None:
    """And another state of the folder has it, whatever key a new one would get; finished, it is
    gone.
    """
    state = KeyedState(tmp_path, lambda: KEY)
    assert "noise_key" in checkpoint.load(tmp_path / FILE)[0]
    again = KeyedState(tmp_path, lambda: bytes(32))
    one, other = (s.stream.uniform(3, purpose="a", step=0) for s in (state, again))
    assert torch.equal(one, other)
    again.numbers["losses"] = [1.0]
    again.finish(theta=torch.ones(2))
    finished = KeyedState(tmp_path, lambda: KEY)
    assert (finished.is_finished, set(finished.tensors), finished.numbers) == (
        True,
        {"theta"},
        {"losses": [1.0]},
    )


def test_divergence_names_the_setting() -> None:
    descent = NoisyDescent(KeyedState(None, lambda: KEY), EVENT, epochs=6, remedy="lower the rate")
    update = Momentum(torch.zeros(5, dtype=torch.float64), rate=math.inf, momentum=0.9)
    with pytest.raises(MechanismError, check=of_kind("descent-diverged", saying="step 1")):
        descent.run(update, lambda *_: BITS, divisor=1)
