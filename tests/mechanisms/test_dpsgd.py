"""DP-SGD from config to run: the noise that lands, the plan that binds, resume, and what is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from refusals import of_kind
from small_heads import KEY, MakeLinear, scale_p_value
from torch import Tensor

from mechanisms import dp_sgd
from mechanisms.descent.noisy_descent import rate_for_noise
from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import checkpoint
from mechanisms.model import classifier as classifiers
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment, descent_of
from mechanisms.privacy.noise import SecretStream
from mechanisms.privacy.schedules import SadSchedule


def noisy(steps: int, noise: float, clip: float = 1.0) -> NoiseSegment:
    return NoiseSegment(steps=steps, noise_multiplier=noise, l2_clip_norm=clip)


Planned = tuple[DpSgd, dp_sgd.DpEvent]


def plan_of(config: DpSgd, *segments: NoiseSegment, records: int) -> Planned:
    """Settings and an event with noise set manually, for tests that want a known one."""
    assert config.batch_size is not None
    return config, DpSgdEvent(sampling_prob=config.batch_size / records, segments=segments)


def go(
    made: tuple[Classifier, Inputs, Tensor],
    plan: Planned,
    *,
    classes: int = 4,
    size: int = 32,
    **options: Any,
) -> list[float]:
    (trained, inputs, labels), (config, event) = made, plan
    options.setdefault("key", KEY)
    options.setdefault("checkpoint_seconds", 0)
    run = Run(classes, 0, lambda: trained, **options)
    return dp_sgd.descend(
        config, event, Records(inputs, labels), run, physical_batch_size=size
    ).figures["losses"]


PLAIN_SGD: dict[str, Any] = {"optimiser": "sgd", "learning_rate": 1.0, "epochs": 1}


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_noise_that_lands_in_the_parameters(
    linear: MakeLinear, factor: float, accepted: bool
) -> None:
    """One step of SGD at rate 1 moves theta by -(clipped sum + sigma C z)/L. With a gradient of
    zero (every weight of the loss clipped to 1e-9) the move's std is sigma C / L: a chi-square test
    at level 1e-6 over 4,004 parameters (false alarm 1e-6 a run) accepts it and rejects two thirds
    and three halves of it.
    """
    made = linear(20, width=1000)
    before = made[0].flat.clone()
    config = DpSgd(batch_size=20, l2_clip_norm=1e-9, **PLAIN_SGD)
    segment = noisy(1, 2.5e9, clip=1e-9)
    go(made, plan_of(config, segment, records=20))
    assert (scale_p_value(made[0].flat - before, std=factor * 2.5 / 20) > 1e-6) == accepted


def test_scheduled_noise_and_clips_run_in_order(
    linear: MakeLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step reads its noise and clip from the event: 2 steps of the first segment, then 3 of
    the second.
    """
    seen: list[float] = []
    real = dp_sgd._coefficients

    def spy(config: DpSgd, segment: NoiseSegment, weights: Tensor | None) -> Any:
        seen.append(segment.noise_multiplier * segment.l2_clip_norm)
        return real(config, segment, weights)

    monkeypatch.setattr(dp_sgd, "_coefficients", spy)
    config = DpSgd(batch_size=12, **PLAIN_SGD)
    segments = (noisy(2, 1.0, clip=3.0), noisy(3, 2.0))
    go(linear(12), plan_of(config, *segments, records=12))
    assert seen == [3.0, 3.0, 2.0, 2.0, 2.0]


def test_micro_batches_do_not_change_the_step(
    tiny_roberta: Path, narratives: Callable[..., list[str]]
) -> None:
    """Sorted by length and cut in pieces of 3 or of 100, the same sample gives the same parameters
    to the precision of floats and of the grid, whose step is 3e-5 of a clip: the encoder's dropout,
    which pieces would share, is off.
    """
    model = ModelConfig(encoder=str(tiny_roberta), max_length=32)
    labels = torch.arange(20) % 4
    config = DpSgd(batch_size=20, **PLAIN_SGD)
    after = []
    for size in (3, 100):
        made = classifiers.build(model, num_labels=4, seed=0)
        inputs = classifiers.tokenize(model, narratives(20))
        go((made, inputs, labels), plan_of(config, noisy(1, 1e-9), records=20), size=size)
        after.append(made.flat.clone())
    torch.testing.assert_close(after[0], after[1], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("trainable", ["full", "lora", "head"])
def test_every_trainable_part_learns(
    trainable: Any, tiny_roberta: Path, narratives: Callable[..., list[str]]
) -> None:
    """With hardly any noise two kinds of sentences are told apart (loss falls below
    0.6 of log 2).
    """
    pooling = (
        "mean" if trainable == "head" else "first"
    )  # an untrained encoder's first token hardly sees the others
    model = ModelConfig(
        encoder=str(tiny_roberta), trainable=trainable, pooling=pooling, max_length=32, lora_rank=4
    )
    texts = [f"{'burn' if i % 2 else 'saw'} {text}" for i, text in enumerate(narratives(40))]
    labels = torch.arange(40) % 2
    made = classifiers.build(model, num_labels=2, seed=0)
    tokens = classifiers.tokenize(model, texts)
    inputs = made.encode(tokens) if trainable == "head" else tokens
    config = DpSgd(batch_size=20, epochs=60, learning_rate=0.05 if trainable == "head" else 0.02)
    segment = noisy(120, 0.001)
    losses = go((made, inputs, labels), plan_of(config, segment, records=40), classes=2)
    assert len(losses) == 60
    assert losses[-1] < 0.6 * math.log(2) < losses[0]


def test_few_steps_are_each_told_and_many_now_and_then(linear: MakeLinear) -> None:
    """A step over all records of a whole encoder takes minutes: of 13 of them nothing was seen
    until the end.
    """
    for steps, told in ((13, list(range(1, 14))), (320, list(range(16, 321, 16)))):
        seen: list[tuple[int, int]] = []
        config = DpSgd(batch_size=20, **PLAIN_SGD)
        plan = plan_of(config, noisy(steps, 1.0), records=20)
        go(linear(20), plan, progress=lambda *at, seen=seen: seen.append(at))
        assert seen == [(step, steps) for step in told]


class _Interrupted(Exception):
    pass


@pytest.mark.parametrize(
    "weights", [None, ClassWeightsConfig(noise_multiplier=2.0)], ids=["plain", "weighted"]
)
def test_resumed_equals_unbroken(
    linear: MakeLinear, tmp_path: Path, weights: ClassWeightsConfig | None
) -> None:
    """Killed between checkpoints, a run resumes with the key in its checkpoint and ends bit for bit
    where the unbroken run with that key ends: no step's noise or sample is drawn a second time. The
    key that a new run would get plays no part, and a run that does start with another key ends
    elsewhere.
    """
    config = DpSgd(
        batch_size=30, epochs=4, learning_rate=0.1, schedule=SadSchedule(), class_weights=weights
    )
    event = config.event(0.6, Task(records=120, classes=4))
    plan = config, event
    assert descent_of(event).steps == 16
    unbroken = linear(120)
    expected = go(unbroken, plan)

    with pytest.raises(_Interrupted):
        _interrupt_at(linear(120), plan, tmp_path, step=10)
    _, meta = checkpoint.load(tmp_path / "state.safetensors")
    assert (
        meta["step"] == 8
    )  # an epoch is four steps; the two after it are lost and drawn the same again
    resumed = linear(120)
    assert go(resumed, plan, folder=tmp_path, key=bytes(32)) == expected, (
        "the checkpoint's key continues"
    )
    assert torch.equal(resumed[0].flat, unbroken[0].flat)

    other = linear(120)
    go(other, plan, key=bytes(32))
    assert not torch.equal(other[0].flat, unbroken[0].flat)


def test_every_run_has_a_key_of_its_own(linear: MakeLinear) -> None:
    """Without a key, the same seed and plan give different results: no seed reaches the noise."""
    ends = []
    for _ in range(2):
        made = linear(12)
        go(made, plan_of(DpSgd(batch_size=6, **PLAIN_SGD), noisy(1, 1.0), records=12), key=None)
        ends.append(made[0].flat)
    assert not torch.any(ends[0] == ends[1])


def _interrupt_at(
    made: tuple[Classifier, FeatureInputs, Tensor], plan: Planned, folder: Path, *, step: int
) -> None:
    real = SecretStream.poisson_sample

    def dying(self: SecretStream, records: int, **address: Any) -> Tensor:
        if address["step"] == step:
            raise _Interrupted
        return real(self, records, **address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecretStream, "poisson_sample", dying)
        go(made, plan, folder=folder)


def test_the_key_goes_when_the_run_ends(linear: MakeLinear, tmp_path: Path) -> None:
    """The last checkpoint holds the parameters and what ran, no key, and running it again changes
    nothing.
    """
    plan = plan_of(DpSgd(batch_size=6, **PLAIN_SGD), noisy(2, 1.0), records=12)
    made = linear(12)
    ran = go(made, plan, folder=tmp_path)
    tensors, _ = checkpoint.load(tmp_path / "state.safetensors")
    assert set(tensors) == {"theta"}
    again = linear(12)
    assert go(again, plan, folder=tmp_path) == ran
    assert torch.equal(again[0].flat, made[0].flat)


@pytest.mark.parametrize("apply", [None, "before-clip", "after-clip"])
def test_no_record_adds_more_than_the_clip(apply: Any) -> None:
    """Whatever the weights (at most 1), the norm and the order of weighting and clipping: c_i
    norm_i <= C.
    """
    config = DpSgd(
        batch_size=8, class_weights=None if apply is None else ClassWeightsConfig(apply=apply)
    )
    segment = noisy(1, 1.0, clip=0.5)
    norms = torch.logspace(-6, 6, 100)
    weights = None if apply is None else torch.linspace(0.01, 1, 100)
    added = dp_sgd._coefficients(config, segment, weights)(norms) * norms
    assert float(added.max()) <= 0.5 * (1 + 1e-6)
    assert float(added.max()) >= 0.45


def test_weighting_before_or_after_the_clip() -> None:
    """Norm 4, clip 1, weight 1/2: the weighted loss's gradient (norm 2) is clipped to 1; after
    clipping it is 1/2.
    """
    segment = noisy(1, 1.0)
    added = {}
    for apply in ("before-clip", "after-clip"):
        config = DpSgd(class_weights=ClassWeightsConfig.model_validate({"apply": apply}))
        factors = dp_sgd._coefficients(config, segment, torch.tensor([0.5]))(torch.tensor([4.0]))
        added[apply] = float(factors * 4)
    assert added == {"before-clip": pytest.approx(1.0), "after-clip": pytest.approx(0.5)}


class TestRefused:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("delta", 1.0),
            ("delta", 0.0),
            ("l2_clip_norm", 0.0),
            ("l2_clip_norm", -1.0),
            ("target_epsilon", 0.0),
            ("target_epsilon", math.inf),
            ("batch_size", 0),
            ("learning_rate", 0.0),
            ("noise", 1.0),
        ],
    )
    def test_bad_settings(self, field: str, value: float) -> None:
        """By name, before anything is loaded."""
        with pytest.raises(ValidationError, match=field):
            DpSgd.model_validate({field: value})

    def test_batch_larger_than_the_data(self) -> None:
        with pytest.raises(
            MechanismError,
            check=of_kind("batch-too-large"),
            match=r"\b512\b.*\b100\b",
        ):
            DpSgd().plan(Task(records=100, classes=4, target_epsilon=4.0))

    def test_divergence_is_named(self, linear: MakeLinear) -> None:
        config = DpSgd(batch_size=12, optimiser="sgd", learning_rate=1000.0, epochs=1)
        with pytest.raises(
            MechanismError, check=of_kind("descent-diverged", saying="learning_rate")
        ):
            go(linear(12), plan_of(config, noisy(2, 1e37), records=12))


def test_an_empty_sample_still_adds_noise(linear: MakeLinear) -> None:
    """A Poisson sample may be empty; the step then moves only by noise, as the analysis assumes."""
    made = linear(2)
    before = made[0].flat.clone()
    config = DpSgd(batch_size=1, **PLAIN_SGD)
    plan = plan_of(config, noisy(12, 1.0), records=2)
    go(made, plan)
    assert torch.isfinite(made[0].flat).all()
    assert not torch.any(made[0].flat == before)


def test_the_noise_of_a_weight_sets_the_rate() -> None:
    """As for prior descent, of the same event; a plan keeps the rate alone, and can
    be read back.
    """
    config = DpSgd(
        target_epsilon=2,
        delta=1e-5,
        optimiser="sgd",
        momentum=0.9,
        sampling_prob=1,
        epochs=6,
        weight_noise=0.5,
    )
    plan = config.plan(Task(records=100, classes=3))
    mechanism = DpSgd.model_validate_json(plan.mechanism.model_dump_json())
    wanted = rate_for_noise(0.5, descent_of(plan.event), divisor=100, momentum=0.9)
    assert (mechanism.learning_rate, mechanism.weight_noise) == (pytest.approx(wanted), None)
    with pytest.raises(ValidationError, match="without a learning rate"):
        DpSgd(optimiser="sgd", learning_rate=1, weight_noise=0.5)
