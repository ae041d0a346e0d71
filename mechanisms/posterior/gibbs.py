"""The posterior of a linear softmax head, as a density that can be evaluated: what an exact sampler draws from.

    xi(theta) proportional to exp( sum_i f(alpha_i l_i(theta)) ) N(theta; theta_0, tau^2 I)

with l_i = log softmax(theta x_i + b)[y_i] and f the identity, or a bounded likelihood (`mechanisms.model.bounded`).
theta is [classes, width]; a bias that is sampled is the weight of a constant feature, one that is fixed is `offset`.

With f the identity the potential U = -ln xi is 1/tau^2-strongly convex: -l_i is convex in theta (log-sum-exp of linear
functions minus a linear one). Its gradient in theta is (p - e_y) x', of norm |p - e_y| |x| < sqrt(2) |x|, the
supremum where all probability lies on one wrong class; `LIPSCHITZ` is that for |x| <= 1. With a bound it is not convex.

Of several fields l_i is a record's log-likelihood over all of its fields (`mechanisms.model.fields`): a sum of convex
terms with a minus, so that all of this holds of it, and p - e_y is the fields' residuals side by side.

Several chains are evaluated at once: theta [K, classes, width] is one matrix product with the features. Arithmetic is
float32, sums over records and parameters float64: an error of the energy is then of the order of 1e-3 where the energy
is of the order of 1e4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.fields import Fields
from mechanisms.model.linear import fast_linear

LIPSCHITZ = math.sqrt(2)
"""Of one record's log-likelihood in theta, features of norm at most 1."""


class Target(Protocol):
    """A density of K parameter matrices at once."""

    def evaluate(self, theta: Tensor) -> Evaluation:
        """At theta float32 [K, classes, width]."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """potential U float64 [K], up to a constant; gradient of U float32 [K, classes, width]; ell float32 [K, n]."""

    potential: Tensor
    gradient: Tensor
    ell: Tensor


@dataclass(frozen=True)
class SoftmaxPosterior:
    """The posterior of these records.

    features float32 [n, width]; labels int64 [n], or [K, n] where each chain has labels of its own; prior_mean float32
    [classes, width]; weights alpha float32 [n], None for 1; offset float32 [classes], None for 0; fields of a joint
    head, whose labels are [n, fields].
    """

    features: Tensor
    labels: Tensor
    prior_mean: Tensor
    prior_std: float
    weights: Tensor | None = None
    bounded: BoundedLikelihood | None = None
    offset: Tensor | None = None
    fields: Fields | None = None

    @property
    def levels(self) -> int:
        """Vectors that can be added to rows of the head without a probability changing: one a field."""
        return 1 if self.fields is None else len(self.fields.sizes)

    @cached_property
    def _transposed(self) -> Tensor:
        return self.features.T.contiguous()

    def log_probabilities(self, theta: Tensor) -> Tensor:
        """Returns those of all classes, float32 [n, K, classes]."""
        classes = theta.shape[1]
        bias = torch.zeros(classes) if self.offset is None else self.offset
        with fast_linear(theta.device):
            scores = linear(self.features, theta.flatten(0, 1), bias.repeat(len(theta)))
        apart = scores.unflatten(1, theta.shape[:2])
        return apart.log_softmax(-1) if self.fields is None else self.fields.log_softmax(apart)

    def evaluate(self, theta: Tensor) -> Evaluation:
        """U, its gradient, and every record's log-likelihood."""
        residual = self.log_probabilities(theta)
        if self.fields is None:
            at = self.labels.expand(len(theta), -1).T[..., None]
            ell = residual.gather(2, at)[..., 0]
            residual.exp_().scatter_add_(2, at, torch.full_like(at, -1.0, dtype=residual.dtype))
        else:
            flat, labels = residual.flatten(0, 1), self.labels.repeat_interleave(len(theta), 0)
            ell = self.fields.log_likelihood(flat, labels).view(residual.shape[:2])
            residual = self.fields.residuals_(flat, labels).view_as(residual)
        likelihood, slope = self._scored(ell)
        if slope is not None:
            residual.mul_(slope[..., None])
        gradient = (residual.flatten(1).T @ self.features).view_as(theta)
        off = theta - self.prior_mean
        prior = off.double().square_().sum((1, 2)) / (2 * self.prior_std**2)
        potential = prior - likelihood.double().sum(0)
        return Evaluation(potential, gradient.add_(off, alpha=1 / self.prior_std**2), ell.T)

    def _scored(self, ell: Tensor) -> tuple[Tensor, Tensor | None]:
        """f(alpha l) and its derivative in l, [n, K] each; None where it is 1."""
        weighted = ell if self.weights is None else ell * self.weights[:, None]
        slope = None if self.weights is None else self.weights[:, None].expand_as(ell)
        if self.bounded is None:
            return weighted, slope
        steepness = self.bounded.slope(weighted)
        return self.bounded(weighted), steepness if slope is None else steepness * slope

    def shifted(self, theta: Tensor, at: Evaluation, normal: Tensor) -> tuple[Tensor, Evaluation]:
        """The same with a new mean over classes, drawn from the posterior given all else.

        A vector added to all classes' rows changes no probability, and under the prior the mean over classes is
        independent of the rest: it is N(mean of theta_0, tau^2 / classes I), whatever the records. It is drawn from
        that exactly; blocks of the Hessian, which see one class at a time, would have it move slowly.

        Of several fields that holds of the rows of each.

        Args:
            normal: standard normals [K, levels * width].
        """
        spans = (slice(None),) if self.fields is None else self.fields.spans
        theta, potential, gradient = theta.clone(), at.potential, at.gradient.clone()
        for span, own in zip(spans, normal.chunk(len(spans), 1), strict=True):
            prior = self.prior_mean[span]
            classes, level = len(prior), theta[:, span].mean(1)
            move = prior.mean(0) + own * (self.prior_std / math.sqrt(classes)) - level
            off = level - prior.mean(0)
            change = classes * ((off + move).double().square() - off.double().square()).sum(1)
            potential = potential + change / (2 * self.prior_std**2)
            theta[:, span] += move[:, None]
            gradient[:, span] += move[:, None] / self.prior_std**2
        return theta, Evaluation(potential, gradient, at.ell)

    def curvature(self, theta: Tensor) -> Tensor:
        """Blocks float32 [classes, width, width] of the Hessian of U at theta [K, classes, width], mean over K.

        sum_i f'_i p_i (1 - p_i) x_i x_i' + I / tau^2 for each class: the part between classes is left out, and of a
        bounded likelihood what its own curvature would take away, so that every block is positive definite.
        """
        logs = self.log_probabilities(theta)
        if self.fields is None:
            ell = logs.gather(2, self.labels.expand(len(theta), -1).T[..., None])[..., 0]
        else:
            labels = self.labels.repeat_interleave(len(theta), 0)
            ell = self.fields.log_likelihood(logs.flatten(0, 1), labels).view(logs.shape[:2])
        slope = self._scored(ell)[1]
        p = logs.exp_()
        spread = p * (1 - p)
        if self.fields is not None:  # where a record lacks a field, it tells nothing of its rows
            for span, column in zip(self.fields.spans, self.fields.columns(self.labels), strict=True):
                spread[..., span] *= (column >= 0)[:, None, None]
        mean = (spread if slope is None else spread * slope[..., None]).mean(1)
        blocks = torch.stack([self._transposed @ (self.features * column[:, None]) for column in mean.T])
        blocks.diagonal(dim1=1, dim2=2).add_(1 / self.prior_std**2)
        return blocks


def mode(target: SoftmaxPosterior, start: Tensor, *, steps: int = 100) -> Tensor:
    """A point of high density near `start` [classes, width], by L-BFGS: where chains are set up, not what is drawn."""
    theta = start.clone()
    optimiser = torch.optim.LBFGS([theta], max_iter=steps, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        evaluation = target.evaluate(theta[None])
        theta.grad = evaluation.gradient[0]
        return evaluation.potential[0]

    optimiser.step(closure)
    return theta
