"""The same fit without each of some records, side by side: a linear head on cached features, a trial a record.

A record of weight 0 is as good as absent (`mechanisms.model.training`), so every trial sees the same batches in
the same order and differs from the full fit by one record alone. The fits are an audit's trials
(`mechanisms.audit.trials`) of one seed, in which everybody takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.audit import trials as audit_trials
from mechanisms.audit.trials import Moments, Records
from mechanisms.errors import MechanismError
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.threads import using
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior import swag


def trial_weights(weights: Tensor | None, left_out: Tensor, *, records: int) -> Tensor:
    """Weights float32 [T, n] of each trial: all records', but 0 for the one that the trial leaves out."""
    base = torch.ones(records) if weights is None else weights
    rows = base.repeat(len(left_out), 1)
    rows[torch.arange(len(left_out)), left_out] = 0
    return rows


def refit(
    classifier: Classifier,
    inputs: FeatureInputs,
    labels: Tensor,
    *,
    weights: Tensor,
    adamw: OptimiserPhase,
    sgd: OptimiserPhase,
    rank: int,
    std_scale: float,
    seed: int,
    bounded: BoundedLikelihood | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[swag.Posterior]:
    """Fine-tune and collect SWAG as `training.train` does, for T sets of weights at once, from the classifier's head.

    Args:
        weights: alpha float32 [T, n], one row a trial.
        seed: the full fit's, so that batches are the same.

    Raises:
        MechanismError: the head is not linear, or an optimiser's option has no batched form.
    """
    if not isinstance(classifier.part, nn.Linear):
        raise MechanismError("leaving records out in batches needs model.trainable=head and pooling=mean")
    trials, before, in_all = len(weights), adamw.steps(len(inputs)), adamw.steps(len(inputs)) + sgd.steps(len(inputs))

    def told(done: int, _: int) -> None:
        if progress is not None:
            progress(done, in_all)

    def told_later(done: int, _: int) -> None:
        told(before + done, in_all)

    everybody = torch.ones(trials, len(labels), dtype=torch.bool)
    records = Records(inputs.features, labels, everybody, seeds=(seed,) * trials)
    theta = audit_trials.from_flat(classifier.flat.detach().cpu(), classes=classifier.part.out_features)
    theta = theta.repeat(trials, 1, 1)
    common: Any = {"alpha": weights, "bounded": bounded}
    with using(1):  # steps this small only wait for a second thread
        for _ in audit_trials.fit(theta, records, phase=adamw, purpose="fine-tune", progress=told, **common):
            pass
        moments = Moments(audit_trials.to_flat(theta), rank=rank)
        for at_end in audit_trials.fit(theta, records, phase=sgd, purpose="swag", progress=told_later, **common):
            moments.update(audit_trials.to_flat(at_end))
    told(in_all, in_all)
    temperature = 1.0 if bounded is None else bounded.temperature
    return [moments.posterior(trial, std_scale=std_scale * temperature**0.5) for trial in range(trials)]
