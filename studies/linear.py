"""Linear systems of the imbalance papers: logistic regression, plain, by objective perturbation
(weighted or not), in bags that vote, and by class-weighted private gradient descent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.seeding import generator
from mechanisms.privacy import class_counts
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import (
    ComposedEvent,
    DpSgdEvent,
    GaussianReleaseEvent,
    NoiseSegment,
    descent_of,
)
from mechanisms.privacy.noise import SecretStream, new_key
from studies import accounting
from studies.accounting import Constants, Perturbation, Weights
from studies.balance import Balance, balanced
from studies.tables import Columns, Fit, Table

GRADIENT_TOLERANCE = 1e-9
NEWTON_STEPS = 200
SMALLEST_COUNT = 5.0
"""Smaller noisy counts are raised to this before they become weights."""
Split = Literal["subsamples", "disjoint", "stratified"]


def minimise(
    x: Tensor, y: Tensor, weights: Tensor, *, regularisation: float, linear: Tensor
) -> Tensor:
    """Returns the minimiser of (1/n) sum_i w_i ln(1 + e^{-y_i x_i beta}) + (1/n) b beta +
    (regularisation/2) |beta|^2.

    It uses Newton's method in float64, with steps halved until the gradient's norm falls. The norm
    still distinguishes points for which the value's digits cancel. x is [n, d], y in {-1, 1} [n],
    weights [n], linear b [d].

    Raises:
        MechanismError: the gradient's norm stays above `GRADIENT_TOLERANCE`, so that nothing may be
            claimed.
    """
    n, d = x.shape
    beta = torch.zeros(d, dtype=torch.float64)

    def gradient_of(point: Tensor) -> Tensor:
        return (
            -(weights * y * torch.sigmoid(-y * (x @ point))) @ x + linear
        ) / n + regularisation * point

    for _ in range(NEWTON_STEPS):
        gradient = gradient_of(beta)
        norm = float(gradient.norm())
        if norm <= GRADIENT_TOLERANCE:
            return beta
        p = torch.sigmoid(x @ beta)
        hessian = (x * (weights * p * (1 - p))[:, None]).T @ x / n + regularisation * torch.eye(
            d, dtype=torch.float64
        )
        step = torch.linalg.solve(hessian, gradient)
        size = 1.0
        while (
            size > 1e-10
            and float(gradient_of(beta - size * step).norm()) > (1 - 1e-4 * size) * norm
        ):
            size /= 2
        beta = beta - size * step
    raise MechanismError(
        f"the minimiser was not reached after {NEWTON_STEPS} steps. Raise the regularisation",
        kind="not-minimised",
    )


def of_coefficients(beta: Tensor, columns: Columns) -> Callable[[Tensor], Tensor]:
    """Returns the log-probabilities [n, 2] of a logistic regression on unit
    records, with beta [d + 1].
    """

    def scores(features: Tensor) -> Tensor:
        z = columns.unit(features.clamp(0, 1)) @ beta
        return torch.nn.functional.logsigmoid(torch.stack([-z, z], dim=1))

    return scores


@dataclass(frozen=True)
class PlainLogistic:
    """The exact minimiser of the regularised loss, without protection."""

    balance: Balance = "none"
    regularisation: float = 1e-4

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        resampled, weights = balanced(train, self.balance, seed=seed)
        x, y = train.columns.unit(resampled.features), 2.0 * resampled.labels - 1
        zero = torch.zeros_like(x[0])
        beta = minimise(x, y, weights, regularisation=self.regularisation, linear=zero)
        return Fit(of_coefficients(beta, train.columns), accounting.nothing())


def usual_regularisation(records: int, features: int, epsilon: float) -> float:
    """Returns lambda by a rule that reads no record: it balances noise and shrinkage, up to
    constants.

    A perturbation of norm 2 d / epsilon costs at most (2 d / epsilon)^2 / (2 n^2 lambda) of the
    objective, and shrinkage costs lambda B^2 / 2 for coefficients of norm B. Their sum is least at
    2 d / (epsilon n B), here for B = 16: records have a norm of at most 1, so scores of a few nats
    need coefficients of that size.
    """
    return min(features / (8 * records * epsilon), 1e3)


@dataclass(frozen=True)
class Objective:
    """DP logistic regression by objective perturbation. The weighted form is the papers' private
    weighted ERM.

    beta = argmin (1/n) sum_i w_i l(y_i, x_i beta) + (1/n) b beta + (lambda + Delta)/2 |beta|^2

    It corrects the paper in two points: lambda is in the objective (line 6 of its algorithm omits
    it), and the fallback's Delta is solved for so that the Jacobian costs half of epsilon.
    """

    weights: Weights = "none"
    constants: Constants = "tight"
    regularisation: float | None = None
    """None for `usual_regularisation`, raised if epsilon requires it."""

    def plan(self, records: int, features: int, epsilon: float) -> Perturbation:
        """Returns the perturbation that costs this epsilon, for records with this number of
        coordinates, including the constant.
        """
        how = Perturbation(
            records=records, features=features, weights=self.weights, constants=self.constants
        )
        chosen = self.regularisation or usual_regularisation(records, features, epsilon)
        how = replace(how, regularisation=max(chosen, how.smallest_regularisation(epsilon)))
        return replace(how, noise_rate=(epsilon * (1 - 1e-9) - how.jacobian) / how.distance)

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        x = train.columns.unit(train.features)
        how = self.plan(len(x), x.shape[1], epsilon)
        beta = perturbed(how, x, train.labels, SecretStream(new_key()))
        return Fit(of_coefficients(beta, train.columns), accounting.pure(how.epsilon))


def perturbed(how: Perturbation, x: Tensor, labels: Tensor, stream: SecretStream) -> Tensor:
    """Returns the coefficients float64 [d] for records x [n, d] of norm at most 1."""
    n = torch.bincount(labels, minlength=2).double()
    weights = (
        n.flip(0) / len(labels)
        if how.weights == "frequencies"
        else torch.ones(2, dtype=torch.float64)
    )
    b = drawn(how.noise_rate, x.shape[1], stream)
    return minimise(
        x, 2.0 * labels - 1, weights[labels], regularisation=how.regularisation, linear=b
    )


def drawn(rate: float, size: int, stream: SecretStream, *, step: int = 0) -> Tensor:
    """Draws b float64 [size] of density proportional to exp(-rate |b|), with a uniform direction
    and a norm that is Gamma(size).
    """
    direction = stream.normal_(
        torch.empty(size, dtype=torch.float64), purpose="perturbation", step=step
    )
    steps = -(1 - stream.uniform(size, purpose="norm of the perturbation", step=step)).log()
    return direction / direction.norm() * steps.sum() / rate


@dataclass(frozen=True)
class Bagging:
    """Bags of DP logistic regressions that vote (Rosenblatt et al. 2025, section 4.1).

    | split        | a record is in           | cost of all bags                            |
    |--------------|--------------------------|---------------------------------------------|
    | `subsamples` | any number, once in each | the sum                                     |
    | `disjoint`   | one                      | one bag's                                   |
    | `stratified` | one of its class         | one bag's, for neighbours that keep a label |

    Advanced composition costs more than the sum below 2 ln(1/delta) bags. A record that is replaced
    stays in its disjoint bag. If its label changes, other records change stratified bags.

    Subsamples are drawn without replacement, because a record that occurs k times in a bootstrap
    costs its bag up to k times as much. A bag of `share` 0.632 has on average as many distinct
    records as a bootstrap.
    """

    bags: int = 10
    split: Split = "disjoint"
    share: float = 0.632
    vote: Literal["soft", "hard"] = "soft"
    regularisation: float = 0.01

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        x, paid = train.columns.unit(train.features), self.bags if self.split == "subsamples" else 1
        size = round(self.share * len(x)) if self.split == "subsamples" else len(x) // self.bags
        size -= self.split == "stratified"
        how = Objective(regularisation=self.regularisation).plan(size, x.shape[1], epsilon / paid)
        chosen = filled(train.labels, self.bags, self.split, size, generator(seed, "bagging"))
        betas = [
            perturbed(how, x[bag], train.labels[bag], SecretStream(new_key())) for bag in chosen
        ]

        def scores(features: Tensor) -> Tensor:
            members = torch.stack(
                [of_coefficients(beta, train.columns)(features) for beta in betas]
            )
            if self.vote == "soft":
                return members.logsumexp(0).log_softmax(-1)
            votes = torch.nn.functional.one_hot(members.argmax(-1), 2).sum(0).double()
            return ((votes + 0.5) / (len(betas) + 1)).log()

        claim = accounting.pure(paid * how.epsilon)
        if self.split == "stratified":
            kept = (
                "bags are filled class by class: neighbours keep the label, and the size of "
                "each class is public"
            )
            claim = claim.model_copy(update={"assumptions": (*claim.assumptions, kept)})
        return Fit(scores, claim)


def filled(
    labels: Tensor, bags: int, split: Split, size: int, draws: torch.Generator
) -> list[Tensor]:
    if split == "subsamples":
        return [torch.randperm(len(labels), generator=draws)[:size] for _ in range(bags)]
    order = torch.randperm(len(labels), generator=draws)
    strata = labels[order] if split == "stratified" else torch.zeros_like(order)
    # the smallest class first, so that a bag above its size has extra records of the largest class
    groups = sorted((order[strata == stratum] for stratum in strata.unique()), key=len)
    return [
        torch.cat([members[bag::bags][: len(members) // bags] for members in groups])[:size]
        for bag in range(bags)
    ]


def weighted_descent(
    counts_noise: float, *, prob: float, steps: int, noise: float, clip: float
) -> ComposedEvent:
    counts = GaussianReleaseEvent(
        what="class counts", noise_multiplier=counts_noise, l2_sensitivity=1.0
    )
    segment = NoiseSegment(steps=steps, noise_multiplier=noise, l2_clip_norm=clip)
    return ComposedEvent(events=(counts, DpSgdEvent(sampling_prob=prob, segments=(segment,))))


def class_weights(
    event: ComposedEvent, labels: Tensor, stream: SecretStream
) -> tuple[Tensor, float]:
    """Returns weights in (0, 1] of both classes from private counts, and the total weight of all
    records according to these counts.
    """
    (counts,) = event.releases
    noisy = class_counts.noisy_counts(labels, 2, event=counts, stream=stream).clamp(
        min=SMALLEST_COUNT
    )
    weights = class_counts.class_weights(
        noisy, ClassWeightsConfig(smallest_count=SMALLEST_COUNT)
    ).double()
    return weights, float((weights * noisy).sum())


@dataclass(frozen=True)
class WeightedDescent:
    """Full-batch private gradient descent of a softmax, weighted by private class counts. Both
    noises are solved for together.

    `counts_share` is the counts' share of the Gaussian budget. The noisy sum is divided by the
    noisy total weight, so that the rate has the same meaning at every imbalance.
    """

    counts_share: float = 0.1
    steps: int = 50
    learning_rate: float = 4.0
    momentum: float = 0.9
    clip: float = 1.0

    def event(self, noise: float) -> ComposedEvent:
        """Returns counts and descent that together cost as much as one Gaussian
        with this noise multiplier.
        """
        step_noise = noise * math.sqrt(self.steps / (1 - self.counts_share))
        counts_noise = noise / math.sqrt(self.counts_share)
        return weighted_descent(
            counts_noise, prob=1.0, steps=self.steps, noise=step_noise, clip=self.clip
        )

    def __call__(self, train: Table, epsilon: float, delta: float, seed: int) -> Fit:
        event, stream = (
            self.event(accounting.noise_for(self.event, epsilon, delta)),
            SecretStream(new_key()),
        )
        x, target = (
            train.columns.unit(train.features),
            torch.nn.functional.one_hot(train.labels, 2).double(),
        )
        weights, total = class_weights(event, train.labels, stream)
        record_weights, norms = weights[train.labels], x.norm(dim=1)
        theta = velocity = torch.zeros(2, x.shape[1], dtype=torch.float64)
        (segment,) = descent_of(event).segments
        for step in range(segment.steps):
            residual = (x @ theta.T).softmax(1) - target
            factor = (
                record_weights * self.clip / (residual.norm(dim=1) * norms).clamp(min=self.clip)
            )
            gradient = (residual * factor[:, None]).T @ x
            std = segment.noise_multiplier * segment.l2_clip_norm
            gradient += std * stream.normal_(
                torch.empty_like(gradient), purpose="gradient noise", step=step
            )
            velocity = self.momentum * velocity + gradient / total
            theta = theta - self.learning_rate * velocity

        def scores(features: Tensor) -> Tensor:
            return (train.columns.unit(features.clamp(0, 1)) @ theta.T).log_softmax(-1)

        return Fit(scores, accounting.of_event(event, delta))
