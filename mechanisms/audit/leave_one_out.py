"""The same fit of a linear head without each of some records, side by side, and what that does to a draw.

A record of weight 0 is as good as absent (`mechanisms.model.training`), so every trial sees the same batches in
the same order and differs from the full fit by one record alone. The fits are an audit's trials
(`mechanisms.audit.trials`) of one seed, in which everybody takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor, nn

from mechanisms.audit import trials as audit_trials
from mechanisms.audit.trials import Moments, Records
from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.linear_head import from_flat, to_flat
from mechanisms.model.seeding import generator
from mechanisms.model.threads import using
from mechanisms.posterior import swag
from mechanisms.posterior.checks import Density

_DRAWS, _LOGIT_DRAWS = 10, 1000
"""Draws of all parameters whose density is compared, and of one record's logits."""
_MARGIN = math.log(1000)
"""By how much a loss must exceed epsilon to count against a delta, in nats: it then counts for 0.999."""


def records_to_leave_out(delta: Tensor, *, count: int, seed: int) -> Tensor:
    """Indices int64 [min(count, n)]: half those with the largest Delta_i (float [n]) first, half others at random."""
    count = min(count, len(delta))
    order = delta.argsort(descending=True, stable=True)
    riskiest, others = order[: (count + 1) // 2], order[(count + 1) // 2 :]
    shuffle = torch.randperm(len(others), generator=generator(seed, "leave-one-out"))
    return torch.cat([riskiest, others[shuffle[: count // 2]]])


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
    progress: Callable[[int, int], None] | None = None,
) -> list[swag.Posterior]:
    """Fine-tune and collect SWAG as `training.train` does, for T sets of weights at once, from the classifier's head.

    Args:
        weights: alpha float32 [T, n], one row a trial.
        seed: the full fit's, so that batches are the same.
    """
    if not isinstance(classifier.part, nn.Linear):
        raise MechanismError("leaving records out in batches needs model.trainable=head and pooling=mean")
    trials, in_all = len(weights), adamw.steps(len(inputs)) + sgd.steps(len(inputs))
    report = progress or (lambda done, total: None)
    everybody = torch.ones(trials, len(labels), dtype=torch.bool)
    records = Records(inputs.features, labels, everybody, seeds=(seed,) * trials, fields=classifier.fields)
    theta = from_flat(classifier.flat.detach().cpu(), classes=classifier.part.out_features)
    theta = theta.repeat(trials, 1, 1)

    def fit(phase: OptimiserPhase, purpose: str, *, before: int) -> Iterator[Tensor]:
        how: Any = {"phase": phase, "purpose": purpose, "alpha": weights}
        return audit_trials.fit(theta, records, progress=lambda done, _: report(before + done, in_all), **how)

    with using(1):  # steps this small only wait for a second thread
        for _ in fit(adamw, "fine-tune", before=0):
            pass
        moments = Moments(to_flat(theta), rank=rank)
        for at_end in fit(sgd, "swag", before=adamw.steps(len(inputs))):
            moments.update(to_flat(at_end))
    report(in_all, in_all)
    return [moments.posterior(trial, std_scale=std_scale) for trial in range(trials)]


@dataclass(frozen=True)
class Effect:
    """A record's log-likelihood l at draws fitted with and without it, and median privacy losses; all in nats.

    own_loss: of somebody who sees the record's l at a draw alone, both sides taken as Gaussian. density_loss: of one
    who sees all parameters. Medians are over draws with the record in.
    """

    with_mean: float
    with_std: float
    without_mean: float
    without_std: float
    own_loss: float
    density_loss: float


class FullFit:
    """The posterior of all records, to be compared with posteriors that lack one."""

    def __init__(self, posterior: swag.Posterior, *, seed: int, fields: Fields | None = None) -> None:
        self._posterior, self._seed, self._fields = posterior, seed, fields
        normals = (swag.seeded_normal(generator(seed, "leave-one-out", draw)) for draw in range(_DRAWS))
        self._draws = [swag.sample(posterior, normal=normal) for normal in normals]
        density = Density(posterior)
        self._log_density = [density.log(theta) for theta in self._draws]

    def effect(self, features: Tensor, label: Tensor, *, without: swag.Posterior) -> Effect:
        """Holds the effect of leaving out a record, `without` being the posterior then.

        Args:
            features: float32 [width].
            label: int64 [], of several fields [fields].
        """
        own, other = (
            log_likelihood_draws(post, features, label, generator(self._seed, "logits", name), fields=self._fields)
            for post, name in ((self._posterior, "with"), (without, "without"))
        )
        (a, s), (b, t) = ((ell.mean(), ell.std().clamp(min=1e-6)) for ell in (own, other))
        losses = ((own - b) / t).square() / 2 + t.log() - ((own - a) / s).square() / 2 - s.log()
        outside = Density(without)
        ratios = torch.tensor([x - outside.log(theta) for x, theta in zip(self._log_density, self._draws, strict=True)])
        return Effect(*(float(value) for value in (a, s, b, t, losses.median(), ratios.median())))


def privacy_losses(within: swag.Posterior, without: swag.Posterior, *, draws: int, seed: int) -> Tensor:
    """Log density ratios, float64 [2, draws]: within over without at draws of within, then the other way round.

    Exact for the two Gaussians: what somebody who sees all parameters of a draw can hold for and against the record.
    """
    densities = [Density(within), Density(without)]
    rows = []
    for own, (posterior, name) in enumerate(((within, "with"), (without, "without"))):
        normals = (swag.seeded_normal(generator(seed, "privacy-losses", name, draw)) for draw in range(draws))
        thetas = [swag.sample(posterior, normal=normal) for normal in normals]
        rows.append([densities[own].log(theta) - densities[1 - own].log(theta) for theta in thetas])
    return torch.tensor(rows, dtype=torch.float64)


def refuted_delta(losses: Tensor, *, epsilon: float, alpha: float) -> float:
    """The largest delta for which (epsilon, delta) is refuted by privacy losses, float [2, draws], of one record.

    (epsilon, delta) needs delta >= E[(1 - e^(epsilon - loss))_+], which is at least (1 - e^-margin) P[loss > epsilon +
    margin]: a binomial proportion, bounded from below (Clopper-Pearson) in each direction at alpha / 2.
    """
    draws = losses.shape[1]
    counts = [int(count) for count in (losses > epsilon + _MARGIN).sum(1)]
    low = max(beta.ppf(alpha / 2, count, draws - count + 1) if count else 0.0 for count in counts)
    return float(low) * -math.expm1(-_MARGIN)


def log_likelihood_draws(
    post: swag.Posterior, features: Tensor, label: Tensor, noise: torch.Generator, *, fields: Fields | None = None
) -> Tensor:
    """l of one record, over all fields that it has, at 1,000 draws, float64: its logits are Gaussian, so they are drawn
    and not the parameters."""
    width = len(features)
    classes = len(post.mean) // (width + 1)
    x = features.double()

    def logits(theta: Tensor) -> Tensor:
        theta = theta.double()
        return theta[: classes * width].view(classes, width) @ x + theta[classes * width :]

    variance = post.diag_std.double().square()
    diagonal = (variance[: classes * width].view(classes, width) @ x.square() + variance[classes * width :]) / 2
    columns = torch.stack([logits(d) for d in post.deviations]) / math.sqrt(2 * (post.rank - 1))
    z1 = torch.randn(_LOGIT_DRAWS, classes, generator=noise, dtype=torch.float64)
    z2 = torch.randn(_LOGIT_DRAWS, post.rank, generator=noise, dtype=torch.float64)
    drawn = logits(post.mean) + post.std_scale * (z1 * diagonal.sqrt() + z2 @ columns)
    fields = fields or Fields((classes,))
    return fields.log_likelihood(fields.log_softmax(drawn), label.expand(_LOGIT_DRAWS, *label.shape))
