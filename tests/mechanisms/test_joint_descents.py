"""Formal mechanisms of several fields: one clip a record, one release of class sums, one claim."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_heads import FIELDS, N, problem, untrained
from small_heads import KEY, claim, scale_p_value
from torch import Tensor

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Mechanism, Records, Run, Task
from mechanisms.model.dp_head import HeadClipping
from mechanisms.model.fields import Fields
from mechanisms.model.ghost import GhostClipping
from mechanisms.model.inputs import FeatureInputs
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy import class_counts
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, GaussianReleaseEvent
from mechanisms.privacy.noise import SecretStream

TASK = Task(records=N, classes=FIELDS.classes, fields=FIELDS.sizes, target_epsilon=3.0, delta=1e-5)
MECHANISMS: dict[str, Mechanism] = {
    "dp-sgd": DpSgd(optimiser="sgd", learning_rate=1.0, epochs=3, sampling_prob=1.0),
    "class-weights": DpSgd(
        optimiser="sgd",
        learning_rate=1.0,
        epochs=3,
        sampling_prob=1.0,
        class_weights=ClassWeightsConfig(noise_multiplier=2.0),
    ),
    "prior-descent": PriorDescent(steps=3),
}


def clipped_sum(kind: type[HeadClipping | GhostClipping], features: Tensor, labels: Tensor, clip: float) -> Tensor:
    head = untrained()
    out = torch.zeros_like(head.flat)
    with kind(head) as clipper:
        clipper.add_clipped_sum(
            {"features": features}, labels, coefficients=lambda norms: clip / norms.clamp(min=clip), out=out
        )
    return out


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), lacking=st.floats(0, 0.9), scale=st.floats(0.01, 50), clip=st.floats(0.1, 4))
def test_a_record_moves_the_sum_by_no_more_than_the_clip(seed: int, lacking: float, scale: float, clip: float) -> None:
    """Whatever fields it has; in closed form and by ghosts, which know nothing of fields, the same sum."""
    features, labels = problem(10, seed=seed, lacking=lacking)
    features = features * scale
    whole = clipped_sum(HeadClipping, features, labels, clip)
    torch.testing.assert_close(whole, clipped_sum(GhostClipping, features, labels, clip), atol=1e-4, rtol=1e-3)
    for gone in range(len(labels)):
        keep = torch.arange(len(labels)) != gone
        moved = (whole - clipped_sum(HeadClipping, features[keep], labels[keep], clip)).norm()
        assert float(moved) <= clip * (1 + 1e-4) + 1e-5


@pytest.mark.parametrize("name", MECHANISMS)
def test_one_event_one_claim(name: str) -> None:
    """The target is claimed once, whatever the number of fields, and each field's scores sum to one."""
    plan = MECHANISMS[name].plan(TASK)
    features, labels = problem()
    run = Run(FIELDS.classes, 0, untrained, fields=FIELDS, key=KEY)
    fitted = plan.fit(Records(FeatureInputs(features), labels), run)
    made = claim(fitted.event, delta=1e-5)
    assert made.guarantee_kind == "formal"
    assert made.epsilon == pytest.approx(3.0, rel=0.005)
    said = fitted.model.log_probabilities(FeatureInputs(features)).exp()
    for span in FIELDS.spans:
        torch.testing.assert_close(said[:, span].sum(1), torch.ones(N, dtype=torch.float64))


@pytest.mark.parametrize(
    "mechanism",
    [MECHANISMS["prior-descent"], MECHANISMS["class-weights"]],
    ids=lambda one: one.kind,
)
def test_what_was_planned_for_one_field_is_refused(mechanism: Mechanism) -> None:
    """It would have the noise of one field for a record that is in three."""
    plan = mechanism.plan(TASK.model_copy(update={"fields": ()}))
    features, labels = problem()
    with pytest.raises(MechanismError, match="plan again"):
        plan.fit(Records(FeatureInputs(features), labels), Run(FIELDS.classes, 0, untrained, fields=FIELDS, key=KEY))


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_counts_of_all_fields_are_released_once(factor: float, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a sensitivity that a record with all fields attains, under noise of the event's scale (chi-square at level
    1e-6 of 1,212 values; not 2/3 or 3/2 of it), and weights follow field by field."""
    wide, real = Fields((400, 300, 512)), class_counts.with_noise
    noisy: list[Tensor] = []

    def watched(counts: Tensor, *, std: float, stream: SecretStream) -> Tensor:
        noisy.append(real(counts, std=std, stream=stream))
        return noisy[-1]

    monkeypatch.setattr(class_counts, "with_noise", watched)
    config = DpSgd(class_weights=ClassWeightsConfig(noise_multiplier=2.0, normalise="sum"), sampling_prob=1.0)
    plan = config.plan(TASK)
    labels = problem(12, lacking=0.0)[1]
    with_all, without = wide.counts(labels), wide.counts(labels[1:])
    assert isinstance(plan.event, ComposedEvent)
    release = plan.event.events[0]
    assert isinstance(release, GaussianReleaseEvent)
    assert float((with_all - without).norm()) == pytest.approx(release.l2_sensitivity)
    assert isinstance(plan.mechanism, DpSgd)
    weights = dp_sgd._record_weights(plan.mechanism, plan.event, labels, fields=wide, stream=SecretStream(bytes(32)))
    std = factor * release.noise_multiplier * release.l2_sensitivity
    assert (scale_p_value(noisy[0] - with_all, std=std) > 1e-6) == accepted
    assert config.class_weights is not None
    each = [class_counts.class_weights(noisy[0][span], config.class_weights) for span in wide.spans]
    own = [values[column] for values, column in zip(each, labels.unbind(1), strict=True)]
    torch.testing.assert_close(weights, torch.stack(own).mean(0))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), lacking=st.floats(0, 0.9))
def test_a_records_weight_is_the_mean_of_its_fields(seed: int, lacking: float) -> None:
    """Of those that it has, so that it lies between the least and the largest of them and is never above 1."""
    _, labels = problem(9, seed=seed, lacking=lacking)
    g = torch.Generator().manual_seed(seed)
    values = [torch.rand(size, generator=g) for size in FIELDS.sizes]
    found = FIELDS.mean(values, labels)
    for own, weight in zip(labels.tolist(), found.tolist(), strict=True):
        held = [float(field[label]) for field, label in zip(values, own, strict=True) if label >= 0]
        assert weight == pytest.approx(sum(held) / len(held), abs=1e-6)
        assert min(held) - 1e-6 <= weight <= max(held) + 1e-6 <= 1 + 1e-6
