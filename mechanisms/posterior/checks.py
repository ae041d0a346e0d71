"""Is the estimate to be trusted? What more draws would give, whether SWAG covers its iterates, densities at a draw.

Nothing here is part of a claim. Everything is computed from private tensors; only aggregates may be shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import Inputs
from mechanisms.model.seeding import generator
from mechanisms.posterior import swag

_TAIL_SHARE = 0.2
"""Share of the draws taken as the tail."""
FEWEST_DRAWS, FEWEST_ITERATES = 50, 6
"""Below so many draws a tail would be of fewer than ten values; below so many iterates a half has no variance."""
_SCALES = (0.5, 1.0, 2.0, 5.0)
_LEVELS, _DIRECTIONS = (0.5, 0.8, 0.9, 0.95, 0.99), 200
"""Of the intervals whose coverage is looked at, and in how many random directions."""


@dataclass(frozen=True)
class TailEstimate:
    """The maximum over more draws than were taken, extrapolated; and how likely a fresh draw exceeds the one seen.

    expected: median of Delta over so many draws; low, high: 90 % interval of that median over bootstrap samples.
    failure_probability: of one fresh draw above the largest seen, by the fitted tail; `plain` is 1/(S+1), which needs
    no fit.
    """

    draws: int
    expected: float
    low: float
    high: float
    failure_probability: float
    failure_high: float
    plain: float


def extrapolate(maxima: Tensor, *, draws: int, seed: int, bootstraps: int = 400) -> TailEstimate:
    """Extrapolates the maximum over `draws` draws, from the maxima float [S] of the draws taken (one a draw).

    Draws are independent, so their maxima over records are S independent values of one distribution. Beyond its 80 %
    quantile u the tail is taken as exponential, with the mean excess of the fifth of the draws above it:

        P(M > u + x) = zeta exp(-x / mean excess)

    A classifier's |l| grows at most linearly with its last layer, whose draws are Gaussian, so the real tail is
    lighter (Gumbel's domain, approached from below): the estimate errs upwards. A generalised Pareto tail with its
    shape fitted to 100 values gave intervals too wide to say anything. The median of the maximum over N draws is the
    quantile 1 - ln 2 / N of M. Two decades beyond the data it is a guess with an interval, no bound.
    """
    values = maxima.double().numpy()
    if len(values) < FEWEST_DRAWS:
        raise MechanismError(f"a tail needs at least {FEWEST_DRAWS} draws; there are {len(values)}")
    if draws <= len(values):
        raise MechanismError(f"{draws} draws: give more than the {len(values)} taken")
    top = float(values.max())
    expected, failure = _tail(values, draws, top)
    rng = np.random.default_rng(generator(seed, "tail").initial_seed())
    again = [_tail(rng.choice(values, len(values)), draws, top) for _ in range(bootstraps)]
    levels, failures = np.array([a[0] for a in again]), np.array([a[1] for a in again])
    return TailEstimate(
        draws=draws,
        expected=expected,
        low=float(np.quantile(levels, 0.05)),
        high=float(np.quantile(levels, 0.95)),
        failure_probability=failure,
        failure_high=float(np.quantile(failures, 0.95)),
        plain=1 / (len(values) + 1),
    )


def _tail(values: np.ndarray, draws: int, level: float) -> tuple[float, float]:
    """(median of the maximum over `draws`, probability of one draw above `level`)."""
    ordered = np.sort(values)
    count = round(_TAIL_SHARE * len(values))
    threshold = float(ordered[-count - 1])
    excess, share = float((ordered[-count:] - threshold).mean()), count / len(values)
    if excess == 0:
        return threshold, 0.0
    at = threshold + excess * math.log(share * draws / math.log(2))
    return max(at, float(ordered[-1])), share * math.exp(-max(level - threshold, 0.0) / excess)


def iterates(post: swag.Posterior) -> list[Tensor]:
    """The SGD iterates that SWAG's deviations hold, oldest first, float32 [P] each; the last K of all.

    A deviation is d_t = theta_t - mean_t from the running mean, and mean_t - mean_(t-1) = d_t / (t - 1), so going back
    from the final mean gives every mean and iterate again, up to rounding.
    """
    mean, thetas = post.mean.double(), list[Tensor]()
    for step, deviation in zip(
        range(post.snapshots, post.snapshots - post.rank, -1), reversed(post.deviations), strict=True
    ):
        thetas.append((mean + deviation).float())
        if step > 1:
            mean = mean - deviation.double() / (step - 1)
    return thetas[::-1]


@dataclass(frozen=True)
class Coverage:
    """Share of later iterates inside central intervals of a SWAG Gaussian of the earlier ones, at nominal levels."""

    nominal: tuple[float, ...]
    parameters: tuple[float, ...]
    """Each parameter by itself."""
    directions: tuple[float, ...]
    """Random directions through all parameters, where the low rank part counts."""
    drift: float
    """Length of the mean's move from the earlier to the later half, in standard deviations of an iterate's."""


def coverage(post: swag.Posterior, *, seed: int) -> Coverage:
    """Fit SWAG to the first half of the iterates held and see whether the second half lies where it says.

    A posterior that SGD has settled in covers its later iterates about as often as it says. Far below: the iterates
    drift, and the Gaussian is where the optimiser was, not a posterior. Student's t of the few iterates is allowed for
    by its quantiles. Fewer than six iterates are refused.
    """
    from scipy.stats import t as student

    held = iterates(post)
    if len(held) < FEWEST_ITERATES:
        raise MechanismError(f"coverage needs at least {FEWEST_ITERATES} iterates; the posterior holds {len(held)}")
    half = len(held) // 2
    early, late = torch.stack(held[:half]), torch.stack(held[half:])
    g = generator(seed, "coverage")
    random = torch.randn(_DIRECTIONS, early.shape[1], generator=g)
    wanted = [float(student.ppf(0.5 + level / 2, half - 1)) for level in _LEVELS]

    def shares(first: Tensor, second: Tensor) -> tuple[float, ...]:
        std = first.var(0, correction=1).mul(1 + 1 / half).sqrt()
        z = (second - first.mean(0)).abs() / std.clamp(min=torch.finfo(std.dtype).tiny)
        return tuple(float((z <= quantile).double().mean()) for quantile in wanted)

    spread = early.var(0, correction=1).sum().sqrt()
    return Coverage(
        nominal=_LEVELS,
        parameters=shares(early, late),
        directions=shares(early @ random.T, late @ random.T),
        drift=float((late.mean(0) - early.mean(0)).norm() / spread),
    )


class Density:
    """Log density of a SWAG Gaussian, by Woodbury's identity: K x K solves, nothing of size P x P.

    Sigma = s^2 (diag(sigma^2) / 2 + D D' / (2 (K-1))). A parameter whose iterates never moved has no variance; since a
    draw is rounded to float32, each variance is at least that of the rounding, (spacing of the mean)^2 / 12.
    """

    def __init__(self, post: swag.Posterior) -> None:
        scale = post.std_scale
        spacing = torch.finfo(torch.float32).eps * post.mean.double().abs().clamp(min=torch.finfo(torch.float32).tiny)
        self._mean = post.mean.double()
        self._diagonal = (scale**2 / 2) * post.diag_std.double().square() + spacing.square() / 12
        columns = torch.stack([d.double() for d in post.deviations]) * (scale / math.sqrt(2 * (post.rank - 1)))
        self._scaled = columns / self._diagonal  # [K, P]
        inner = torch.eye(post.rank, dtype=torch.float64) + columns @ self._scaled.T
        self._factor = torch.linalg.cholesky(inner)
        self._log_det = float(self._diagonal.log().sum() + 2 * self._factor.diagonal().log().sum())

    def log(self, theta: Tensor) -> float:
        """ln N(theta; mean, Sigma), theta float [P]."""
        off = theta.double() - self._mean
        inner = torch.linalg.solve_triangular(self._factor, (self._scaled @ off)[:, None], upper=False)
        distance = (off.square() / self._diagonal).sum() - inner.square().sum()
        return -0.5 * (float(distance) + self._log_det + len(off) * math.log(2 * math.pi))


MOST_VARIANTS = len(_SCALES) + 3


def variants(post: swag.Posterior) -> Iterator[tuple[str, float, swag.Posterior]]:
    """(`scales` or `ranks`, the value, the posterior so changed), to see how far a figure hangs on SWAG's settings."""
    for scale in _SCALES:
        yield "scales", scale, dataclasses.replace(post, std_scale=post.std_scale * scale)
    for rank in sorted({max(2, post.rank // 4), max(2, post.rank // 2), post.rank}):
        yield "ranks", rank, dataclasses.replace(post, deviations=post.deviations[-rank:])


def mean_log_likelihood(classifier: Classifier, inputs: Inputs, labels: Tensor) -> float:
    """Mean l of all records at the classifier's present parameters, in nats. labels int64 [n], of several fields
    [n, fields]: l is then over those that a record has."""
    logits = classifier.predict(inputs)
    fields = classifier.fields or Fields((logits.shape[1],))
    return float(fields.log_likelihood(fields.log_softmax(logits), labels).mean())


def weights_by_class_size(alpha: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Share of weights alpha float32 [n] that are 1, and mean weight, by quartile of class size; labels int64 [n].

    Of several fields, [n, fields] with -1 where a record lacks one, a record counts once for each code that it has.
    """
    columns = (labels,) if labels.dim() == 1 else labels.unbind(1)
    own = [(alpha[column >= 0], quartiles_of_class_size(column[column >= 0])) for column in columns]
    weights = [torch.cat([weight[quartile == q] for weight, quartile in own]) for q in range(4)]
    return {
        "share_at_one": [float((w >= 1).float().mean()) for w in weights],
        "mean_weight": [float(w.mean()) for w in weights],
    }


def quartiles_of_class_size(labels: Tensor) -> Tensor:
    """For each record, the quartile of its class by size, int64 [n]: 0 the rarest quarter of classes, 3 the largest."""
    code, place, size = torch.unique(labels, return_inverse=True, return_counts=True)
    order = torch.argsort(size, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(code))
    return (4 * rank // len(code))[place]
