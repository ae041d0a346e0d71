"""Posteriors of several fields: risks, Delta, samplers and an audit's reruns are of a record's joint log-likelihood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from joint_heads import FIELDS, N, problem, untrained
from torch import Tensor

from mechanisms.audit import trials
from mechanisms.audit.trials import Records as Pool
from mechanisms.mechanism import ClassifierModel, Records, Run, Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.linear_head import from_flat
from mechanisms.posterior import risks
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
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


def test_a_rerun_is_the_chain(tmp_path: Path) -> None:
    """Trials side by side come to the log-likelihoods of retrains on their records, of joint heads too."""
    last: RoundName = "reweighted"
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
