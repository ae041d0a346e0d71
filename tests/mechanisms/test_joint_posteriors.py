"""Posteriors of several fields: risks, Delta, samplers and an audit's reruns are of a record's joint log-likelihood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from joint_heads import FIELDS, WIDTH, N, problem, start, untrained
from torch import Tensor

from mechanisms.audit import trials
from mechanisms.audit.trials import Records as Pool
from mechanisms.exact_posterior import ExactPosterior, ExactPosteriorEvent
from mechanisms.mechanism import ClassifierModel, Records, Run, Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.linear_head import from_flat
from mechanisms.posterior import risks
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.posterior.gibbs import SoftmaxPosterior
from mechanisms.swag_ppm import ROUNDS, PosteriorDraw, RoundName, SwagPpm

ADAMW = OptimiserPhase(optimiser="adamw", learning_rate=0.02, epochs=3, batch_size=4)
SGD = OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=4, batch_size=4)
SETTINGS: dict[str, Any] = {
    "fine_tune": ADAMW,
    "collect": SGD,
    "moments": SwagConfig(rank=3),
    "pseudo_posterior": PseudoPosteriorConfig(risk_draws=20, sensitivity_draws=20),
}
TASK = Task(records=N, classes=FIELDS.classes, fields=FIELDS.sizes, target_epsilon=6.0)


def by_hand(theta: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """l_i at theta [classes, width + 1], a field after the other: a second way, float64 [n]."""
    scores = features.double() @ theta[:, :-1].double().T + theta[:, -1].double()
    total = torch.zeros(len(features), dtype=torch.float64)
    for span, own in zip(FIELDS.spans, labels.unbind(1), strict=True):
        for at, label in enumerate(own.tolist()):
            if label >= 0:
                total[at] += scores[at, span].log_softmax(-1)[label]
    return total


def fitted(
    last: RoundName, records: tuple[Tensor, Tensor], folder: Path, *, seed: int = 3
) -> tuple[Any, PosteriorDraw]:
    features, labels = records
    plan = SwagPpm(round=last, **SETTINGS).plan(TASK)
    run = Run(FIELDS.classes, seed, untrained, fields=FIELDS, folder=folder, resampled=True)
    made = plan.fit(Records(FeatureInputs(features), labels), run)
    assert isinstance(made.model, PosteriorDraw)
    return made.event, made.model


@pytest.mark.parametrize("last", ["base", "weighted"])
def test_delta_is_of_the_sum_over_a_records_fields(tmp_path: Path, last: RoundName) -> None:
    """The largest weighted |sum of l_if| over the draws, not a sum of the fields' largest, which is more."""
    records = problem()
    event, model = fitted(last, records, tmp_path)
    alpha = torch.ones(N) if model.weights is None else model.weights
    largest, apart = 0.0, torch.zeros(len(FIELDS.sizes), dtype=torch.float64)
    head = model.classifier
    for draw in range(20):
        risks.load_draw(head, model.posterior, seed=3, purpose="risk" if last == "base" else "sensitivity", draw=draw)
        theta = from_flat(head.flat, classes=FIELDS.classes)
        largest = max(largest, float((alpha * by_hand(theta, *records).abs()).max()))
        for at in range(len(FIELDS.sizes)):
            alone = torch.full_like(records[1], -1)
            alone[:, at] = records[1][:, at]
            apart[at] = max(apart[at], (alpha * by_hand(theta, records[0], alone).abs()).max())
    assert event.sensitivity == pytest.approx(largest, rel=1e-4)
    assert event.sensitivity < float(apart.sum())


@pytest.mark.parametrize("last", ["reweighted", "both"])
def test_a_rerun_is_the_chain(tmp_path: Path, last: RoundName) -> None:
    """Trials side by side come to the log-likelihoods of retrains on their records, of joint heads too."""
    features, labels = problem()
    included = torch.rand(2, N, generator=torch.Generator().manual_seed(5)) < torch.tensor([[0.5], [0.9]])
    pool = Pool(features, labels, included, seeds=(11, 12), fields=FIELDS)
    plan = SwagPpm(round=last, **SETTINGS).plan(TASK)
    assert isinstance(plan.mechanism, SwagPpm)
    initial = from_flat(untrained().flat, classes=FIELDS.classes)
    reruns = plan.mechanism.fit_many(plan, pool, initial)
    runs: list[tuple[RoundName, int]] = [(name, t) for name in ROUNDS[last] for t in range(2)]
    for name, t in runs:
        own = included[t]
        _, model = fitted(name, (features[own], labels[own]), tmp_path / name / str(t), seed=pool.seeds[t])
        risks.load_draw(model.classifier, model.posterior, seed=pool.seeds[t], purpose="audit", draw=0)
        theta = from_flat(model.classifier.flat, classes=FIELDS.classes)
        ell = by_hand(theta, features, labels).float()
        assert torch.allclose(reruns[name].ell[t], ell, atol=2e-3), (name, t)
        said = FIELDS.predicted(features @ theta[:, :-1].T + theta[:, -1])
        assert torch.equal(reruns[name].right[t], ((said == labels) | (labels < 0)).all(1))
        assert (reruns[name].ell[1 - t] - ell).abs().max() > 0.05


def target(weights: Tensor | None = None) -> tuple[SoftmaxPosterior, Tensor, Tensor]:
    features, labels = problem(lacking=0.4)
    with_bias = torch.cat([features, torch.ones(N, 1)], 1)
    prior = torch.cat([start(), torch.zeros(FIELDS.classes, 1)], 1)
    made = SoftmaxPosterior(with_bias, labels, prior, 0.7, weights=weights, fields=FIELDS)
    return made, features, labels


def test_the_density_is_of_the_joint_likelihood() -> None:
    """Potential, gradient and every record's l, against autograd on another way of writing it."""
    alpha = torch.rand(N, generator=torch.Generator().manual_seed(2))
    made, features, labels = target(alpha)
    noise = torch.randn(2, FIELDS.classes, WIDTH + 1, generator=torch.Generator().manual_seed(3))
    theta = made.prior_mean + 0.5 * noise
    found = made.evaluate(theta)
    for k in range(2):
        leaf = theta[k].double().clone().requires_grad_(True)
        ell = by_hand(leaf, features, labels)
        prior = (leaf - made.prior_mean.double()).square().sum() / (2 * 0.7**2)
        potential = prior - (alpha.double() * ell).sum()
        potential.backward()
        assert torch.allclose(found.ell[k].double(), ell.detach(), atol=1e-5)
        assert float(found.potential[k]) == pytest.approx(potential.item(), rel=1e-5)
        assert leaf.grad is not None
        assert torch.allclose(found.gradient[k].double(), leaf.grad, atol=1e-3)


def test_what_no_probability_sees_is_drawn_field_by_field() -> None:
    """The mean over a field's rows is the prior's; probabilities stay, and what is told of the new place is true."""
    made, _, _ = target()
    theta = made.prior_mean[None] + torch.randn(
        3, FIELDS.classes, WIDTH + 1, generator=torch.Generator().manual_seed(4)
    )
    normal = torch.randn(3, made.levels * (WIDTH + 1), generator=torch.Generator().manual_seed(5))
    at = made.evaluate(theta)
    moved, told = made.shifted(theta, at, normal)
    again = made.evaluate(moved)
    assert made.levels == len(FIELDS.sizes)
    assert torch.allclose(again.ell, at.ell, atol=1e-3)
    assert torch.allclose(told.potential, again.potential, atol=1e-2)
    assert torch.allclose(told.gradient, again.gradient, atol=1e-2)
    for span, own in zip(FIELDS.spans, normal.chunk(made.levels, 1), strict=True):
        mean = made.prior_mean[span].mean(0) + own * 0.7 / (span.stop - span.start) ** 0.5
        assert torch.allclose(moved[:, span].mean(1), mean, atol=1e-4)


def test_a_record_that_lacks_a_field_bends_nothing_there() -> None:
    """Blocks of the Hessian are those of the records that have the field."""
    made, features, labels = target()
    theta = made.prior_mean[None]
    blocks = made.curvature(theta)
    logs = FIELDS.log_softmax(features @ theta[0, :, :-1].T + theta[0, :, -1])
    p = logs.exp()
    with_bias = torch.cat([features, torch.ones(N, 1)], 1)
    for span, own in zip(FIELDS.spans, labels.unbind(1), strict=True):
        there = own >= 0
        for row in range(span.start, span.stop):
            spread = (p[:, row] * (1 - p[:, row]))[there]
            wanted = with_bias[there].T @ (with_bias[there] * spread[:, None]) + torch.eye(WIDTH + 1) / 0.7**2
            assert torch.allclose(blocks[row], wanted, atol=1e-3)


def test_the_audits_log_likelihood_is_the_classifiers() -> None:
    """Of every record, whatever fields it has."""
    features, labels = problem(lacking=0.5)
    head = untrained()
    theta = from_flat(head.flat, classes=FIELDS.classes)[None]
    ell, right = trials.log_likelihood(theta, torch.cat([features, torch.ones(N, 1)], 1), labels, FIELDS)
    given = ClassifierModel(head).log_probabilities(FeatureInputs(features))
    assert torch.allclose(ell[0].double(), FIELDS.log_likelihood(given, labels), atol=1e-5)
    assert torch.allclose(ell[0].double(), by_hand(theta[0], features, labels), atol=1e-5)
    assert right.shape == (1, N)


def test_an_exact_draw_is_of_all_fields(tmp_path: Path) -> None:
    """The sampler's diagnostics bear it out, and Delta is no less than what the released draw says of a record."""
    features, labels = problem()
    config = PseudoPosteriorConfig(risk_draws=100, sensitivity_draws=100)
    plan = ExactPosterior(round="base", prior_std=0.5, pseudo_posterior=config).plan(TASK)
    run = Run(FIELDS.classes, 0, untrained, fields=FIELDS, folder=tmp_path)
    made = plan.fit(Records(FeatureInputs(features), labels), run)
    assert isinstance(made.event, ExactPosteriorEvent)
    assert isinstance(made.model, ClassifierModel)
    theta = from_flat(made.model.classifier.flat, classes=FIELDS.classes)
    assert made.event.sensitivity >= float(by_hand(theta, features, labels).abs().max()) - 1e-4
    assert made.figures["r_hat"] < 1.05


def test_reruns_of_an_exact_draw_are_of_all_fields() -> None:
    """Two trials: what each claims is no less than what its draw says of a record that took part."""
    features, labels = problem()
    included = torch.rand(2, N, generator=torch.Generator().manual_seed(6)) < 0.7
    pool = Pool(features, labels, included, seeds=(1, 2), fields=FIELDS)
    config = PseudoPosteriorConfig(risk_draws=10, sensitivity_draws=10)
    plan = ExactPosterior(round="base", prior_std=0.5, pseudo_posterior=config).plan(TASK)
    assert isinstance(plan.mechanism, ExactPosterior)
    (found,) = plan.mechanism.fit_many(plan, pool, from_flat(untrained().flat, classes=FIELDS.classes)).values()
    assert found.ell.shape == (2, N)
    for own, ell, event in zip(included, found.ell, found.events, strict=True):
        assert isinstance(event, ExactPosteriorEvent)
        assert event.sensitivity >= float(ell[own].neg().max()) - 1e-4
