"""Prior descent: sensitivity and noise of what it releases, its budget, and the map."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from small_heads import KEY, claim, head_of, noisy_sums, scale_p_value
from torch import Tensor, nn

from mechanisms import prior_descent
from mechanisms.descent import exact_sums
from mechanisms.descent.exact_sums import Residuals, Scores
from mechanisms.mechanism import ClassifierModel, Fitted, Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import ComposedEvent, GaussianReleaseEvent, descent_of
from mechanisms.privacy.noise import SecretStream

WIDTH, CLASSES = 8, 4
TITLES = 3 * torch.eye(CLASSES, WIDTH)
"""What is publicly known of the classes: here, the narratives of a class lie elsewhere (`TURNED`)."""
TURNED = torch.linalg.qr(
    torch.eye(WIDTH) + 0.6 * torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3))
)[0]


def problem(n: int, *, seed: int = 0, classes: int = CLASSES) -> tuple[FeatureInputs, Tensor]:
    """Records of the first `classes` classes, around turned titles."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    return FeatureInputs(TITLES[labels] @ TURNED + 0.7 * torch.randn(n, WIDTH, generator=g)), labels


def untrained() -> Classifier:
    part = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        part.weight.copy_(TITLES)
        part.bias.zero_()
    return head_of(part)


def fit(plan: Plan, inputs: FeatureInputs, labels: Tensor, *, folder: Path | None = None) -> Fitted:
    return plan.fit(Records(inputs, labels), Run(classes=CLASSES, seed=0, classifier=untrained, folder=folder, key=KEY))


def planned(epsilon: float, n: int, **settings: object) -> Plan:
    config = PriorDescent.model_validate({"target_epsilon": epsilon, "delta": 1e-5, "directions": 4} | settings)
    return config.plan(Task(records=n, classes=CLASSES))


def accuracy(fitted: Fitted, labels_of: int = CLASSES) -> float:
    test, truth = problem(800, seed=9, classes=labels_of)
    return float((fitted.model.log_probabilities(test).argmax(1) == truth).double().mean())


def event_of(plan: Plan) -> ComposedEvent:
    assert isinstance(plan.event, ComposedEvent)
    return plan.event


def test_budget_is_split_and_met() -> None:
    """Releases, map and rows cost together what one Gaussian of the solved multiplier costs, and that is the target."""
    plan = planned(2.0, 1000, mean_share=0.1, count_share=0.2, align_share=0.3)
    event = event_of(plan)
    map_steps, row_steps = descent_of(event).segments
    parts = [r.noise_multiplier**-2 for r in event.releases]
    parts += [s.steps * s.noise_multiplier**-2 for s in (map_steps, row_steps)]
    assert [p / sum(parts) for p in parts] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    whole = GaussianReleaseEvent(what="one", noise_multiplier=sum(parts) ** -0.5, l2_sensitivity=1.0)
    epsilon = gaussian_cost.epsilon_of_event(event, delta=1e-5)
    assert epsilon == pytest.approx(gaussian_cost.epsilon_of_event(whole, delta=1e-5), rel=1e-3)
    assert 2 * 0.995 <= epsilon <= 2


def test_the_claim_is_formal_and_under_its_own_name() -> None:
    """A statement names `prior-descent`, not what it is composed of; without a map too."""
    for plan in (planned(4.0, 500), planned(4.0, 500, align_share=0.0)):
        made = claim(plan.event, delta=1e-5)
        assert (made.guarantee_kind, event_of(plan).mechanism) == ("formal", "prior-descent")
        assert made.epsilon == pytest.approx(4.0, rel=0.005)


def test_a_record_moves_no_release_by_more_than_its_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean, and first step of the map and of the rows, each asked given what was released before it: a record with long
    features moves the sum by R and a gradient by C, and comes near both, so that the bounds bind."""
    inputs, labels = problem(60)
    features = inputs.features.clone()
    features[0] *= 50
    plan, seen = planned(4.0, 60), noisy_sums(monkeypatch)
    fit(plan, FeatureInputs(features), labels)
    fixed = seen["mean"][0][0]
    plan.mechanism.fit(plan, Records(FeatureInputs(features[1:]), labels[1:]), Run(CLASSES, 0, untrained, key=KEY))
    moved = float((seen["mean"][1][0] - fixed).norm()) * 2.0**-exact_sums.FEATURE_BITS
    assert 4.0 * (1 - 1e-3) < moved <= 4.0
    clip = 1.0
    rows = torch.cat([TITLES, torch.zeros(CLASSES, 1)], 1)
    right = prior_descent._directions(TITLES, 4)

    def gradient(name: str, keep: Tensor) -> Tensor:
        scores = Scores(exact_sums.on_grid(features[keep]), torch.zeros(WIDTH, dtype=torch.float64), labels[keep])
        if name == "rows":
            blocks, shape = Residuals(scores, rows).blocks(rows), (CLASSES, WIDTH + 1)
        else:
            blocks, shape = prior_descent._Map(scores, rows, right).blocks(torch.zeros(4, 4)), (4, 4)
        total = torch.zeros(shape, dtype=torch.float64)
        for left_factor, right_factor, _ in blocks:
            exact_sums.clipped_outer_sum(left_factor, right_factor, norm=clip, out=total)
        return total

    everybody = torch.ones(60, dtype=torch.bool)
    for name in ("rows", "map"):
        whole = gradient(name, everybody)
        moves = [
            float((whole - gradient(name, keep)).norm()) * 2.0**-exact_sums.SUM_BITS
            for keep in (torch.arange(60) != i for i in range(60))
        ]
        assert max(moves) <= clip, name
        assert max(moves) > 0.9 * clip, name


def test_the_order_of_records_moves_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one key, the same records in another order, and in blocks of another size, end in the same weights."""
    inputs, labels = problem(500)
    plan = planned(2.0, 500)
    whole = fit(plan, inputs, labels).model.log_probabilities(inputs)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    assert torch.equal(
        fit(plan, FeatureInputs(inputs.features[order]), labels[order]).model.log_probabilities(inputs), whole
    )
    monkeypatch.setattr(exact_sums, "_BLOCK", 33)
    assert torch.equal(fit(plan, inputs, labels).model.log_probabilities(inputs), whole)


def test_rows_that_are_only_noise_stay_at_the_prior() -> None:
    """Two classes have no record and counts that are noise: without a map their rows stay the titles."""
    inputs, labels = problem(600, classes=2)
    fitted = fit(planned(8.0, 600, align_share=0.0), inputs, labels)
    assert isinstance(fitted.model, ClassifierModel)
    weights = fitted.model.classifier.flat[: CLASSES * WIDTH].view(CLASSES, WIDTH)
    assert torch.equal(weights[2:], TITLES[2:])
    assert not torch.isclose(weights[:2], TITLES[:2]).any()


def test_its_claim_covers_the_released_bits() -> None:
    """No assumption about low-order bits is left; an event of the same noise that is not exact has it."""
    event = event_of(planned(2.0, 500))
    assert not any("low-order" in line for line in claim(event, delta=1e-5).assumptions)
    rounded = [part.model_copy(update={"exact": False}) for part in event.events]
    float_event = event.model_copy(update={"events": tuple(rounded)})
    assert any("low-order" in line for line in claim(float_event, delta=1e-5).assumptions)


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_noise_of_mean_and_counts(factor: float, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are given the standard deviation of the plan's event: sigma R and sigma; and the noise of the mean has it
    (chi-square at level 1e-6 over 20,000 coordinates: 2/3 and 3/2 of it do not pass)."""
    plan = planned(4.0, 60)
    of_mean, of_counts = event_of(plan).releases
    wide = torch.zeros(20_000)
    std = of_mean.noise_multiplier * of_mean.l2_sensitivity
    SecretStream(KEY).add_normal_(wide, std=std, purpose="mean", step=0)
    assert (scale_p_value(wide, std=std * factor) > 1e-6) == accepted
    seen = noisy_sums(monkeypatch)
    fit(plan, *problem(60))
    assert seen["mean"][0][2] == pytest.approx(of_mean.noise_multiplier * 4.0 * 2**exact_sums.FEATURE_BITS)
    assert (of_counts.l2_sensitivity, len(seen["mean"])) == (1.0, 1)


@pytest.mark.parametrize(("epsilon", "n"), [(1.0, 300), (5.0, 3000)])
def test_a_weight_ends_with_the_noise_that_was_asked_for(epsilon: float, n: int) -> None:
    """On features of zeros nothing is learned, and what is left in the weights is their noise: nu, whatever epsilon and
    the number of records (chi-square at level 1e-6; nu 2/3 and 3/2 of it do not pass)."""
    config = PriorDescent(target_epsilon=epsilon, delta=1e-5, weight_noise=0.3, align_share=0.0)
    plan = config.plan(Task(records=n, classes=4))
    blank = nn.Linear(200, 4)
    with torch.no_grad():
        blank.weight.zero_()
        blank.bias.zero_()
    data = Records(FeatureInputs(torch.zeros(n, 200)), torch.arange(n) % 4)
    # the mean is noise alone and would be learned from: taken as known here
    fitted = plan.fit(data, Run(classes=4, seed=0, classifier=lambda: head_of(blank), key=KEY))
    assert isinstance(fitted.model, ClassifierModel)
    weights = fitted.model.classifier.flat[: 4 * 200]
    spread = float(weights.std())
    assert 0.2 < spread < 0.45, "near nu: the noisy mean adds a little"


def test_the_map_learns_what_all_classes_share() -> None:
    """Narratives are turned against titles, and two classes have no record at all. With the map the head tells those
    two apart no worse than with rows alone, at a finite epsilon."""
    inputs, labels = problem(3000, classes=2)

    def unseen(fitted: Fitted) -> float:
        test, truth = problem(800, seed=9)
        rare = truth >= 2
        scores = fitted.model.log_probabilities(test)[rare][:, 2:]  # which of the two, whatever their small prior
        return float((scores.argmax(1) == truth[rare] - 2).double().mean())

    with_map = fit(planned(8.0, 3000, align_noise=0.1), inputs, labels)
    without = fit(planned(8.0, 3000, align_share=0.0), inputs, labels)
    assert accuracy(with_map, 2) > 0.9
    assert unseen(with_map) >= unseen(without)


def test_tempering_takes_a_share_of_the_noisy_log_prior_out_of_the_bias_and_nothing_else() -> None:
    """With one key: weights are the same, and biases differ by the share of what the counts said, most for the rare."""
    inputs, labels = problem(600)
    labels[labels == 3] = 0
    plain, tempered = (fit(planned(8.0, 600, tempering=share), inputs, labels) for share in (0.0, 0.5))
    assert isinstance(plain.model, ClassifierModel)
    assert isinstance(tempered.model, ClassifierModel)
    one, other = plain.model.classifier.flat, tempered.model.classifier.flat
    assert torch.equal(one[: CLASSES * WIDTH], other[: CLASSES * WIDTH])
    raised = (other - one)[CLASSES * WIDTH :]
    assert int(raised.argmax()) == 3
    assert float(raised[3] - raised[0]) == pytest.approx(0.5 * math.log(300 / 3), rel=0.1)


def test_it_learns_at_epsilon_4_and_not_at_epsilon_one_hundredth() -> None:
    """A band: far above the prior's accuracy at epsilon 4; at 0.01 the noise must show, or it is not there."""
    good = fit(planned(4.0, 1500), *problem(1500))
    blind = fit(planned(0.01, 1500), *problem(1500))
    assert accuracy(good) > 0.85
    assert accuracy(blind) < accuracy(good) - 0.1


@pytest.mark.parametrize("killed_at", [2, 7])
def test_it_goes_on_along_its_own_directions(killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine's linear algebra may turn them the other way; the same noise along those is another fit."""
    inputs, labels = problem(300)
    plan = planned(4.0, 300, align_steps=4, steps=6)
    unbroken = fit(plan, inputs, labels).model

    def kill(step: int, _: int) -> None:
        if step == killed_at:
            raise KeyboardInterrupt

    dying = Run(CLASSES, 0, untrained, folder=tmp_path, key=KEY, progress=kill)
    with pytest.raises(KeyboardInterrupt):
        plan.fit(Records(inputs, labels), dying)
    svd = torch.linalg.svd

    def turned_svd(weights: Tensor, *, full_matrices: bool) -> tuple[Tensor, Tensor, Tensor]:
        left, values, right = svd(weights, full_matrices=full_matrices)
        return left, values, right * (-1.0) ** torch.arange(len(right))[:, None]

    monkeypatch.setattr(torch.linalg, "svd", turned_svd)
    resumed = fit(plan, inputs, labels, folder=tmp_path).model
    assert torch.equal(resumed.log_probabilities(inputs), unbroken.log_probabilities(inputs))
    turned = fit(plan, inputs, labels).model
    assert not torch.allclose(turned.log_probabilities(inputs), unbroken.log_probabilities(inputs), atol=1e-3)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="leave nothing for the rows"):
        PriorDescent(mean_share=0.4, count_share=0.3, align_share=0.3)
    with pytest.raises(ValidationError, match="weight_noise"):
        PriorDescent(weight_noise=0.0)


def test_rates_follow_from_the_noise() -> None:
    """By hand, two steps with momentum 0.5: reach sqrt(1.5^2 + 1), rate nu n / (sigma C reach)."""
    config = PriorDescent(target_epsilon=2.0, delta=1e-5, steps=2, momentum=0.5, weight_noise=0.7)
    plan = config.plan(Task(records=100, classes=3))
    segment = descent_of(plan.event).segments[1]
    assert config._rate(segment, 0.7, plan) == pytest.approx(
        0.7 * 100 / (segment.noise_multiplier * math.hypot(1.5, 1.0))
    )
