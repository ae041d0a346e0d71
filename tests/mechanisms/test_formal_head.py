"""The formal head: sensitivity and noise of its release, the split of its budget, and that it beats chance honestly."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from small_heads import KEY, head_of, scale_p_value
from torch import Tensor, nn

from mechanisms import formal_head
from mechanisms.errors import MechanismError
from mechanisms.formal_head import FormalHead
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, GaussianReleaseEvent
from mechanisms.privacy.noise import SecretStream

STREAM = SecretStream(KEY)
CONFIG = FormalHead(feature_clip_norm=2.0, count_scale=0.5)


def release(noise: float) -> GaussianReleaseEvent:
    return GaussianReleaseEvent(what="sums", noise_multiplier=noise, l2_sensitivity=math.hypot(1, 0.5))


def sums(features: Tensor, labels: Tensor, *, noise: float = 1e-9, classes: int = 3) -> tuple[Tensor, Tensor]:
    return formal_head.release_class_sums(
        features, labels, fields=Fields((classes,)), config=CONFIG, release=release(noise), stream=STREAM
    )


def test_sums_by_hand() -> None:
    """R = 2: (3, 4) has norm 5 and becomes (0.6, 0.8), (1, 0) becomes (0.5, 0); counts are counts."""
    total, counts = sums(torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1, 2]))
    torch.testing.assert_close(total, torch.tensor([[0.0, 0.0], [1.1, 0.8], [0.0, 0.5]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(counts, torch.tensor([0.0, 2.0, 1.0]), atol=1e-5, rtol=0)


def test_a_record_moves_the_release_by_at_most_the_sensitivity() -> None:
    """The released vector is (S, s N). Leaving out a record with long features moves it by sqrt(1 + s^2), the stated
    sensitivity; one with short features by less."""
    features = torch.tensor([[30.0, 40.0], [0.1, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 2])

    def vector(keep: list[int]) -> Tensor:
        total, counts = sums(features[keep], labels[keep])
        return torch.cat([total.flatten(), counts * CONFIG.count_scale])

    everything = vector([0, 1, 2])
    moves = [float((everything - vector(rest)).norm()) for rest in ([1, 2], [0, 2], [0, 1])]
    assert moves[0] == pytest.approx(release(1.0).l2_sensitivity, abs=1e-5)
    assert max(moves[1:]) < release(1.0).l2_sensitivity


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_noise_of_the_release(factor: float, accepted: bool) -> None:
    """Chi-square test at level 1e-6 over 60,000 coordinates: sigma times sensitivity passes, 2/3 and 3/2 do not."""
    total, _ = sums(torch.zeros(2, 3000), torch.tensor([0, 0]), noise=3.0, classes=20)
    assert (scale_p_value(total, std=3.0 * release(3.0).l2_sensitivity * factor) > 1e-6) == accepted


def test_budget_is_split_and_met() -> None:
    """Release and descent cost together what one Gaussian of the solved multiplier costs, and that is the target."""
    config = FormalHead(target_epsilon=2.0, delta=1e-5, release_share=0.25, steps=16)
    plan = config.plan(Task(records=1000, classes=3))
    assert isinstance(plan.event, ComposedEvent)
    first, descent = plan.event.events
    assert isinstance(first, GaussianReleaseEvent)
    assert isinstance(descent, DpSgdEvent)
    assert descent.sampling_prob == 1
    spent = [first.noise_multiplier**-2, descent.steps * descent.segments[0].noise_multiplier ** -2]
    assert spent[0] / sum(spent) == pytest.approx(0.25)
    whole = GaussianReleaseEvent(what="one", noise_multiplier=sum(spent) ** -0.5, l2_sensitivity=1.0)
    epsilon = gaussian_cost.epsilon_of_event(plan.event, delta=1e-5)
    assert epsilon == pytest.approx(gaussian_cost.epsilon_of_event(whole, delta=1e-5), rel=1e-3)
    assert 2 * 0.995 <= epsilon <= 2


def problem(n: int = 1500, *, seed: int = 0) -> tuple[FeatureInputs, Tensor]:
    """Three classes around three centres, of uneven size."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), n, replacement=True, generator=g)
    centres = 2 * torch.eye(3, 8)
    return FeatureInputs(centres[labels] + 0.7 * torch.randn(n, 8, generator=g)), labels


def head() -> Classifier:
    """The same each time, as a run's untrained model is."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return head_of(nn.Linear(8, 3))


def fit(plan: Plan, inputs: FeatureInputs, labels: Tensor, *, own: Classifier | None = None) -> Fitted:
    return plan.fit(Records(inputs, labels), Run(classes=3, seed=0, classifier=lambda: own or head(), key=KEY))


def accuracy(target_epsilon: float) -> float:
    inputs, labels = problem()
    test, truth = problem(seed=1)
    config = FormalHead(target_epsilon=target_epsilon, delta=1e-5, feature_clip_norm=3.0, learning_rate=1.0)
    plan = config.plan(Task(records=len(inputs), classes=3))
    fitted = fit(plan, inputs, labels)
    assert fitted.event == plan.event
    return float((fitted.model.log_probabilities(test).argmax(1) == truth).double().mean())


def test_it_learns_at_epsilon_2_and_not_at_epsilon_one_hundredth() -> None:
    """A band with a ceiling: well above the largest class (0.6) but below the Bayes rate (about 0.95) at epsilon 2;
    at epsilon 0.01 the noise must show, or it is not there."""
    assert 0.8 < accuracy(2.0) < 0.97
    assert accuracy(0.01) < 0.8


def test_discriminant_without_noise_finds_the_classes() -> None:
    """With a whole weight and no noise the start alone classifies; with all noise it is the prior alone."""
    inputs, labels = problem()
    config = FormalHead(feature_clip_norm=3.0, temperature=1.0)
    event = GaussianReleaseEvent(what="s", noise_multiplier=1e-6, l2_sensitivity=math.hypot(1, 0.25))
    total, counts = formal_head.release_class_sums(
        inputs.features, labels, fields=Fields((3,)), config=config, release=event, stream=STREAM
    )
    weight, bias = formal_head.discriminant(total, counts, config=config, std=1e-6)
    assert float(((inputs.features @ weight.T + bias).argmax(1) == labels).double().mean()) > 0.9
    blind, _ = formal_head.discriminant(total, counts, config=config, std=1e9)
    assert float((blind - blind.mean(0)).abs().max()) < 1e-3


PLAN = FormalHead().plan(Task(records=50, classes=3, target_epsilon=4.0))


class TestRefused:
    def test_a_head_with_a_hidden_layer(self) -> None:
        hidden, (inputs, labels) = head(), problem(50)
        hidden.part = nn.Sequential(nn.Linear(8, 3))
        with pytest.raises(MechanismError, match=r"closed form|pooling `mean`|belong to no layer"):
            fit(PLAN, inputs, labels, own=hidden)

    @pytest.mark.parametrize("field", ["delta", "release_share", "l2_clip_norm", "feature_clip_norm"])
    def test_bad_settings(self, field: str) -> None:
        with pytest.raises(ValidationError, match=field):
            FormalHead.model_validate({field: 0.0})
