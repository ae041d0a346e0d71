"""Several fields under one head: one clip a record, one claim, and a single field as it always was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_heads import FIELDS, WIDTH, N, problem, start, untrained
from small_heads import KEY, head_of
from torch import Tensor, nn

from mechanisms import prior_descent
from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import ClassifierModel, Fitted, Mechanism, Plan, Records, Run, Task, kinds
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.non_private import NonPrivate
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy import gaussian_cost, separately
from mechanisms.privacy.events import ComposedEvent, NonPrivateEvent
from mechanisms.privacy.noise import SecretStream


def planned(epsilon: float = 4.0, n: int = N, *, fields: Fields = FIELDS, **options: Any) -> Plan:
    config = PriorDescent.model_validate({"target_epsilon": epsilon, "delta": 1e-5, "directions": 6} | options)
    several = fields.sizes if len(fields.sizes) > 1 else ()
    return config.plan(Task(records=n, classes=fields.classes, fields=several))


def fit(plan: Plan, features: Tensor, labels: Tensor, *, fields: Fields = FIELDS, folder: Path | None = None) -> Fitted:
    several = fields if len(fields.sizes) > 1 else None
    run = Run(fields.classes, 0, lambda: untrained(fields), fields=several, folder=folder, key=KEY)
    return plan.fit(Records(FeatureInputs(features), labels), run)


def by_autograd(features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Gradients of -l_i, one record at a time, [n, classes, width + 1]: a second way to what is clipped."""
    found = []
    for x, own in zip(features, labels, strict=True):
        theta = rows.clone().requires_grad_(True)
        logits = theta[:, :-1] @ x + theta[:, -1]
        loss = torch.zeros(())
        for span, label in zip(FIELDS.spans, own.tolist(), strict=True):
            if label >= 0:
                loss = loss - logits[span].log_softmax(-1)[label]
        loss.backward()
        assert theta.grad is not None
        found.append(theta.grad)
    return torch.stack(found)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), lacking=st.floats(0, 0.9), scale=st.floats(0.01, 50), clip=st.floats(0.1, 4))
def test_a_record_moves_a_joint_sum_by_no_more_than_the_clip(
    seed: int, lacking: float, scale: float, clip: float
) -> None:
    """Whatever fields it has: the rows' gradient and the map's; and the sum is that of gradients clipped one by one."""
    features, labels = problem(12, seed=seed, lacking=lacking)
    features = features * scale
    rows = torch.cat([start(), torch.zeros(FIELDS.classes, 1)], 1)
    right = prior_descent._directions(rows[:, :-1], 6)
    entries, left = torch.zeros(6, 6), rows[:, :-1] @ right / rows[:, :-1].norm(dim=1).max()

    def of_rows(x: Tensor, y: Tensor) -> Tensor:
        return prior_descent._row_gradient(FIELDS, x, y, clip, rows)[0]

    def of_map(x: Tensor, y: Tensor) -> Tensor:
        return prior_descent._map_gradient(FIELDS, x, y, rows, left, right, clip, entries)[0]

    for gradient in (of_rows, of_map):
        whole = gradient(features, labels)
        for gone in range(len(labels)):
            keep = torch.arange(len(labels)) != gone
            assert float((whole - gradient(features[keep], labels[keep])).norm()) <= clip * (1 + 1e-4) + 1e-5
    own = by_autograd(features, labels, rows)
    norms = own.flatten(1).norm(dim=1)
    clipped = own * (clip / norms.clamp(min=clip))[:, None, None]
    torch.testing.assert_close(of_rows(features, labels).float(), clipped.sum(0), atol=1e-4, rtol=1e-3)


def test_the_clip_binds() -> None:
    """With long features a record does move the sum by the clip: the bound is not idle."""
    features, labels = problem(2)
    rows = torch.cat([torch.zeros_like(start()), torch.zeros(FIELDS.classes, 1)], 1)
    moved = prior_descent._row_gradient(FIELDS, 50 * features[:1], labels[:1], 1.0, rows)[0]
    assert float(moved.norm()) == pytest.approx(1.0, rel=1e-4)


def test_a_record_moves_the_counts_by_the_root_of_its_fields() -> None:
    """At most by the sensitivity that the event pays for, and by that where it has them all."""
    _, labels = problem()
    whole = FIELDS.counts(labels)
    moves = [float((whole - FIELDS.counts(labels[torch.arange(N) != gone])).norm()) for gone in range(N)]
    event = planned().event
    assert isinstance(event, ComposedEvent)
    assert max(moves) == pytest.approx(event.releases[1].l2_sensitivity)
    assert moves == pytest.approx([float((own >= 0).sum()) ** 0.5 for own in labels])


def test_noise_of_the_counts_follows_their_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard deviation is the plan's multiplier times the root of the number of fields."""
    plan = planned()
    assert isinstance(plan.event, ComposedEvent)
    release = plan.event.releases[1]
    monkeypatch.setattr(SecretStream, "normal_", lambda self, tensor, **_: tensor.fill_(1.0))
    seen: list[Tensor] = []
    log_prior = PriorDescent._log_prior
    monkeypatch.setattr(
        PriorDescent, "_log_prior", lambda self, counts, *rest: (seen.append(counts), log_prior(self, counts, *rest))[1]
    )
    features, labels = problem()
    fit(plan, features, labels)
    expected = FIELDS.counts(labels) + release.noise_multiplier * 3**0.5
    torch.testing.assert_close(seen[0], expected)


def test_a_joint_head_of_one_field_is_the_mechanism_as_it_was() -> None:
    """Labels as the one column of a table, or as they always were: the same event, and bit for bit the same head."""
    one = Fields((4,))
    features, labels = problem(lacking=0)
    plan = planned(fields=one)
    usual = fit(plan, features, labels[:, 0], fields=one)
    run = Run(4, 0, lambda: untrained(one), fields=one, key=KEY)
    joint = plan.fit(Records(FeatureInputs(features), labels[:, :1]), run)
    assert plan.event == usual.event == joint.event
    assert isinstance(usual.model, ClassifierModel)
    assert isinstance(joint.model, ClassifierModel)
    assert torch.equal(usual.model.classifier.flat, joint.model.classifier.flat)


def test_a_plan_for_another_number_of_fields_is_refused() -> None:
    """Its counts would be paid for on another scale; labels outside of their field are refused too."""
    features, labels = problem()
    with pytest.raises(MechanismError, match="plan again"):
        fit(planned(fields=Fields((12,))), features, labels)
    with pytest.raises(MechanismError, match="field 2 lie outside of its 3"):
        fit(planned(), features, torch.where(labels >= 0, 3, labels))
    with pytest.raises(MechanismError, match="3 fields, the records have 2"):
        fit(planned(), features, labels[:, :2])


def test_every_field_is_learned() -> None:
    """With much data and a large budget each field is coded better than by its prior; what is said sums to one each."""
    features, labels = problem(3000)
    test, truth = problem(500, seed=7, lacking=0)
    fitted = fit(planned(50.0, 3000), features, labels)
    scores = fitted.model.log_probabilities(FeatureInputs(test))
    before = ClassifierModel(untrained()).log_probabilities(FeatureInputs(test))
    for span in FIELDS.spans:
        torch.testing.assert_close(scores[:, span].exp().sum(1), torch.ones(500, dtype=torch.float64))
    right = (FIELDS.predicted(scores) == truth).double().mean(0)
    assert (right > (FIELDS.predicted(before) == truth).double().mean(0) + 0.02).all()


def test_without_noise_the_joint_fit_is_that_of_each_field() -> None:
    """The non-private loss is a sum over fields of a head's own rows: full-batch descent is that of each alone."""
    phase = OptimiserPhase(optimiser="sgd", learning_rate=0.1, epochs=20, batch_size=N)
    features, labels = problem(lacking=0)
    plan = NonPrivate(phase=phase).plan(Task(records=N, classes=FIELDS.classes))
    joint = fit(plan, features, labels)
    assert isinstance(joint.model, ClassifierModel)
    both = joint.model.classifier.part
    assert isinstance(both, nn.Linear)
    for span, own in zip(FIELDS.spans, labels.unbind(1), strict=True):
        part = nn.Linear(WIDTH, span.stop - span.start)
        with torch.no_grad():
            part.weight.copy_(start()[span])
            part.bias.zero_()
        alone = plan.fit(
            Records(FeatureInputs(features), own),
            Run(span.stop - span.start, 0, lambda part=part: head_of(part), key=KEY),
        )
        assert isinstance(alone.model, ClassifierModel)
        torch.testing.assert_close(both.weight[span], alone.model.classifier.part.weight, atol=1e-5, rtol=1e-4)


def test_what_separate_releases_cost() -> None:
    """Three at the smaller epsilon compose to the joint's; three at the joint's cost more than it and less than
    three times it."""
    event = planned(4.0).event
    assert event is not None
    apart = separately.composed_cost(event, fields=3, delta=1e-5)
    assert apart is not None
    assert apart.each_epsilon < 4 < apart.together_epsilon < 12
    alone = planned(apart.each_epsilon, fields=Fields((4,))).event
    assert alone is not None
    rate, own = gaussian_cost.gaussian_rate(event), gaussian_cost.gaussian_rate(alone)
    assert rate is not None
    assert 3**0.5 * (own or 0) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("mechanism", [DpSgd(batch_size=20, epochs=5)], ids=lambda one: one.kind)
def test_releases_whose_noise_is_another_are_priced_too(mechanism: Mechanism) -> None:
    """A draw by its Gaussians; sampled steps by composing what they lose: the smaller ones, composed, are the joint."""
    task = Task(records=N, classes=12, fields=FIELDS.sizes, target_epsilon=4.0, delta=1e-5)
    event = mechanism.plan(task).event
    assert event is not None
    apart = separately.composed_cost(event, fields=3, delta=1e-5)
    assert apart is not None
    smaller = mechanism.plan(task.model_copy(update={"target_epsilon": apart.each_epsilon})).event
    assert smaller is not None
    whole = [getattr(one, "gaussian", one) for one in (smaller, event)]
    for one, wanted in zip(whole, (4.0, apart.together_epsilon), strict=True):
        found = gaussian_cost.epsilon_of_event(ComposedEvent(events=(one,) * 3), delta=1e-5, interval=1e-3)
        assert found == pytest.approx(wanted, rel=0.02)


def test_estimates_have_no_price() -> None:
    """What is measured on the records is not said to compose."""
    assert separately.composed_cost(NonPrivateEvent(epochs=1), fields=3, delta=1e-5) is None


@pytest.mark.parametrize("kind", sorted(kind for kind, one in kinds().items() if not one.several))
def test_others_refuse_several_fields(kind: str) -> None:
    """By their name, before they read a record."""
    plan = Plan(mechanism=_bare(kind), task=Task(records=N, classes=FIELDS.classes))
    features, labels = problem()
    with pytest.raises(MechanismError, match=f"`{kind}` codes one field"):
        fit(plan, features, labels)


def _bare(kind: str) -> Mechanism:
    return kinds()[kind].model_validate({})
