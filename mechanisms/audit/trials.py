"""Reruns of SWAG-PPM in parallel, each on its own subset of records, for a linear head on cached
features.

An audit reruns everything on which the release depends: three fits, SWAG collections, risks,
weights and one draw, on records that a fair coin included. A single run takes thousands of steps of
a tenth of a millisecond each. Here each step is one batched product over all trials (parameters [T,
classes, width + 1] with the bias in the last column). The computation equals that of `training`,
`swag` and `risks`: it uses the same optimisers, shuffles, recurrences and draws, from each trial's
seed. A test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.linear_head import from_flat, with_bias
from mechanisms.model.seeding import generator
from mechanisms.model.training import Progress
from mechanisms.posterior import risks, rounds, swag
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.posterior.rounds import TABLE, RoundName

_DRAWS_AT_ONCE = 16


@dataclass(frozen=True)
class Records:
    """The audit's pool: features float32 [n, width], labels int64 [n], and for each trial its seed
    and its included records (bool [T, n]).
    """

    features: Tensor
    labels: Tensor
    included: Tensor
    seeds: tuple[int, ...]
    with_bias: Tensor = field(init=False)
    """Features with a column of ones, so that the bias is one more weight."""

    def __post_init__(self) -> None:
        if (
            self.included.shape != (len(self.seeds), len(self.labels))
            or not self.included.any(1).all()
        ):
            raise MechanismError(
                "audit trials: every trial needs a seed and at least one record",
                kind="empty-trials",
            )
        object.__setattr__(self, "with_bias", with_bias(self.features))


@dataclass(frozen=True)
class Drawn:
    """One draw per trial: theta float32 [T, classes, width + 1], and Delta in nats, float64 [T]."""

    theta: Tensor
    sensitivity: Tensor


def log_likelihood(theta: Tensor, with_bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-likelihoods float32 [S, n], and whether the label is the most probable class, bool [S,
    n], at theta [S, classes, width + 1].
    """
    scores = torch.nn.functional.linear(with_bias, theta.flatten(0, 1)).unflatten(
        1, theta.shape[:2]
    )
    at_label = scores.gather(2, labels[:, None, None].expand(-1, theta.shape[0], 1))[..., 0]
    ell = at_label - scores.logsumexp(2)
    return ell.T, (scores.argmax(2) == labels[:, None]).T


def fit(
    theta: Tensor,
    records: Records,
    *,
    phase: OptimiserPhase,
    purpose: str,
    alpha: Tensor | None = None,
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """Runs `training.train` for all trials; yields theta [T, classes, width + 1], updated in place,
    after each epoch.

    Trials with fewer records finish an epoch in fewer steps. They are sorted to the end, so that
    active trials are always the first rows.

    Args:
        alpha: risk weights float32 [T, n]; None means 1.
        phase: must have no gradient cap, and a constant learning rate if trials differ in size.
    """
    sizes = records.included.sum(1)
    moving = phase.schedule != "constant"
    if phase.max_grad_norm is not None or (moving and sizes.unique().numel() > 1):
        raise MechanismError(
            "parallel reruns support only a constant learning rate "
            "(schedule=constant) without max_grad_norm. Use --trials 0",
            kind="unsupported-phase",
        )
    order = sizes.argsort(descending=True, stable=True)
    parameters, start = theta[order], theta[order]
    rows = [row.requires_grad_(False) for row in parameters.unbind(0)]
    optimiser = _optimiser(rows, phase)
    members = [records.included[t].nonzero()[:, 0] for t in order.tolist()]
    seeds = [records.seeds[t] for t in order.tolist()]
    weights = None if alpha is None else alpha[order]
    steps = [math.ceil(len(m) / phase.batch_size) for m in members]
    total = phase.epochs * steps[0]
    for epoch in range(1, phase.epochs + 1):
        index, share, raised = _batches(
            members, seeds, weights, phase=phase, purpose=purpose, epoch=epoch, steps=steps[0]
        )
        for step in range(steps[0]):
            active = sum(s > step for s in steps)
            chosen = (slice(active), step)
            gradient = _gradient(
                parameters[:active], records, index[chosen], share[chosen], raised[chosen]
            )
            if phase.pull:
                gradient.add_(parameters[:active] - start[:active], alpha=phase.pull)
            for position, row in enumerate(rows):
                row.grad = gradient[position] if position < active else None
            done = (epoch - 1) * steps[0] + step
            if moving:
                for group in optimiser.param_groups:
                    group["lr"] = phase.learning_rate * (1 - done / total)
            optimiser.step()
            if progress is not None and step % 64 == 0:
                progress(done, total)
        if not math.isfinite(parameters.sum()):
            raise MechanismError(
                f"an audit trial diverged in epoch {epoch} of phase {purpose}",
                kind="diverged-trial",
            )
        theta[order] = parameters
        yield theta


def _optimiser(rows: list[Tensor], phase: OptimiserPhase) -> torch.optim.Optimizer:
    common: Any = {"lr": phase.learning_rate, "weight_decay": 0.0, "fused": True}
    if phase.optimiser == "adamw":
        return torch.optim.AdamW(rows, **common)
    return torch.optim.SGD(rows, momentum=phase.momentum, **common)


def _batches(
    members: list[Tensor],
    seeds: list[int],
    alpha: Tensor | None,
    *,
    phase: OptimiserPhase,
    purpose: str,
    epoch: int,
    steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Record indices of each step int64 [T, steps, batch]; 1/b (0 for padding) and alpha, float32
    of the same shape.
    """
    size = phase.batch_size
    index = torch.zeros(len(members), steps * size, dtype=torch.int64)
    share = torch.zeros(len(members), steps * size)
    for row, (mine, seed) in enumerate(zip(members, seeds, strict=True)):
        order = torch.randperm(len(mine), generator=generator(seed, purpose, "order", epoch))
        index[row, : len(mine)] = mine[order]
        share[row, : len(mine)] = 1 / size
        remainder = len(mine) % size
        if remainder:
            share[row, len(mine) - remainder : len(mine)] = 1 / remainder
    raised = torch.ones_like(share) if alpha is None else alpha.gather(1, index)
    indices, share, raised = (part.unflatten(1, (steps, size)) for part in (index, share, raised))
    return indices, share, raised


def _gradient(
    theta: Tensor, records: Records, index: Tensor, share: Tensor, alpha: Tensor
) -> Tensor:
    """Gradient of -(1/b) sum alpha l, [T, classes, width + 1]."""
    x, labels = records.with_bias[index], records.labels[index]
    scores = torch.bmm(x, theta.transpose(1, 2))
    residual = scores.log_softmax(-1).exp_()
    residual.scatter_add_(2, labels[..., None], residual.new_full((*labels.shape, 1), -1.0))
    return torch.bmm((residual * (share * alpha)[..., None]).transpose(1, 2), x)


class Moments:
    """SWAG of all trials: the recurrence of `swag.update` on parameters [T, ...], with deviations
    in memory.
    """

    def __init__(self, like: Tensor, *, rank: int) -> None:
        self.count, self.rank = 0, rank
        self.mean, self.m2 = torch.zeros_like(like), torch.zeros_like(like)
        self.deviations: list[Tensor] = []

    def update(self, theta: Tensor) -> None:
        """Adds one snapshot."""
        self.count += 1
        delta = theta - self.mean
        self.mean += delta / self.count
        deviation = theta - self.mean
        self.m2 += delta.mul_(deviation)
        self.deviations = [*self.deviations, deviation][-self.rank :]

    def posterior(self, trial: int, *, std_scale: float) -> swag.Posterior:
        """The posterior of one trial, with flattened parameters."""
        return swag.posterior(
            self.mean[trial].flatten(),
            self.m2[trial].flatten(),
            tuple(d[trial].flatten() for d in self.deviations),
            count=self.count,
            std_scale=std_scale,
        )


def _draws(
    post: swag.Posterior, *, classes: int, seed: int, purpose: str, numbers: range
) -> Tensor:
    """Numbered draws [S, classes, width + 1], from the same noise as `risks.load_draw`."""
    size, rank = post.mean.numel(), post.rank
    z1, z2 = torch.empty(len(numbers), size), torch.empty(len(numbers), rank)
    for row, number in enumerate(numbers):
        normal = swag.seeded_normal(generator(seed, purpose, "draw", number))
        normal(z2[row])
        normal(z1[row])
    low_rank = (z2 * (post.std_scale / math.sqrt(2 * (rank - 1)))) @ torch.stack(post.deviations)
    shape = (classes, size // classes)
    noise = from_flat(z1, classes=classes) * (
        post.diag_std * (post.std_scale / math.sqrt(2))
    ).unflatten(0, shape)
    return (post.mean + low_rank).unflatten(1, shape) + noise


def chain(
    records: Records,
    initial: Tensor,
    *,
    names: Sequence[RoundName],
    fine_tune: OptimiserPhase,
    collect: OptimiserPhase,
    moments: SwagConfig,
    config: PseudoPosteriorConfig,
    progress: Progress | None = None,
) -> dict[RoundName, Drawn]:
    """Runs all rounds in every trial, and draws once from the posterior of each round."""
    trials, classes = len(records.seeds), initial.shape[0]
    drawn: dict[RoundName, Drawn] = {}
    total_epochs = len(names) * (fine_tune.epochs + collect.epochs)
    ended = 0

    def epoch_ended() -> None:
        nonlocal ended
        ended += 1
        if progress is not None:
            progress(ended, total_epochs)

    def fit_round(name: RoundName, weights: Tensor | None) -> Tensor:
        current_round = TABLE[name]
        theta = initial.repeat(trials, 1, 1)
        for _ in fit(theta, records, phase=fine_tune, purpose="fine-tune", alpha=weights):
            epoch_ended()
        state = Moments(theta, rank=moments.rank)
        for at_end in fit(theta, records, phase=collect, purpose="swag", alpha=weights):
            state.update(at_end)
            epoch_ended()
        how: Any = {
            "classes": classes,
            "purpose": current_round.purpose,
            "numbers": range(current_round.draws(config)),
        }
        risk = torch.zeros(records.included.shape)
        released, delta = torch.empty_like(theta), torch.empty(trials, dtype=torch.float64)
        for t, seed in enumerate(records.seeds):
            post = state.posterior(t, std_scale=moments.std_scale)
            mine = records.included[t].nonzero()[:, 0]
            risk[t, mine] = _largest(post, records, mine, seed=seed, **how)
            released[t] = _draws(
                post, classes=classes, seed=seed, purpose="audit", numbers=range(1)
            )[0]
            ell, _ = log_likelihood(
                released[t : t + 1], records.with_bias[mine], records.labels[mine]
            )
            largest = torch.maximum(risk[t, mine], -ell[0])
            delta[t] = (largest if weights is None else largest * weights[t, mine]).max().double()
        drawn[name] = Drawn(theta=released, sensitivity=delta)
        return risk

    def compute_weights(name: RoundName, weights: Tensor | None, risk: Tensor) -> Tensor:
        """Weights of each trial's records, float32 [T, n]; 0 for records that did not take part."""
        alpha = torch.zeros(records.included.shape)
        for t, mine in enumerate(records.included):
            before = None if weights is None else weights[t, mine]
            alpha[t, mine] = risks.weights_of(config, name, before, risk[t, mine])
        return alpha

    rounds.run(names, fit_round, compute_weights)
    return drawn


def _largest(
    post: swag.Posterior,
    records: Records,
    own: Tensor,
    *,
    classes: int,
    seed: int,
    purpose: str,
    numbers: range,
) -> Tensor:
    """max over draws of |l_i|, float32 [own]."""
    worst = torch.zeros(len(own))
    with_bias, labels = records.with_bias[own], records.labels[own]
    for start in range(0, len(numbers), _DRAWS_AT_ONCE):
        block = numbers[start : start + _DRAWS_AT_ONCE]
        theta = _draws(post, classes=classes, seed=seed, purpose=purpose, numbers=block)
        worst = torch.maximum(worst, log_likelihood(theta, with_bias, labels)[0].neg().amax(0))
    return worst
