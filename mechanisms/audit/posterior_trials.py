"""Reruns of an exact sampler side by side: a chain a trial, each on its own records, and one draw of each.

A fit that is released takes hundreds of draws so that diagnostics can speak against it. A rerun is looked at once and
released never: one chain, started at its own mode and spread as the Laplace approximation says, is run in for `RUN_IN`
trajectories and draws. Nothing is decided on it. A trajectory turns by a quarter, after which a Gaussian has forgotten
its start; how long the posterior itself remembers is what a full fit's effective sample size says: on OSHA's reports
400 and 800 draws of two fits were worth 100 in their slowest quantity, four and eight trajectories. `RUN_IN` is three
to six times that. A chain that was still at its mode would tell more of its records, not less: such an error would
count against the claim.

All chains have one preconditioner, the first trial's, and go in step: the product with it, which has to be read from
memory, is the dearest part of a single chain's. Metropolis' correction makes any preconditioner right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.training import Progress
from mechanisms.posterior import hmc
from mechanisms.posterior.gibbs import Evaluation, SoftmaxPosterior, mode
from mechanisms.privacy import noise

RUN_IN = 24
"""Trajectories before a draw counts; the step is set in the first half of them."""
_STEPS = 30
"""Of L-BFGS, from the first trial's mode to another's."""


@dataclass(frozen=True)
class SideBySide:
    """Chain k at theta[k] is of posterior k. Priors are the same; records are each one's own."""

    posteriors: Sequence[SoftmaxPosterior]

    def evaluate(self, theta: Tensor) -> Evaluation:
        """At theta [K, classes, width]; ell float32 [K, most records], 0 where a posterior has no more."""
        each = [one.evaluate(theta[k : k + 1]) for k, one in enumerate(self.posteriors)]
        most = max(one.ell.shape[1] for one in each)
        ell = [torch.nn.functional.pad(one.ell, (0, most - one.ell.shape[1])) for one in each]
        return Evaluation(
            torch.cat([one.potential for one in each]), torch.cat([one.gradient for one in each]), torch.cat(ell)
        )


def sample(
    posteriors: Sequence[SoftmaxPosterior], start: Tensor, *, draws: int = 0, progress: Progress | None = None
) -> tuple[Tensor, list[Tensor]]:
    """(one draw of each posterior, float32 [K, classes, width]; |l| of its records at `draws` draws before and at that
    one, float32 [draws + 1, n of it] each).

    Args:
        start: parameters [classes, width] near which modes are sought.
    """
    target, stream = SideBySide(posteriors), noise.SecretStream(noise.new_key())
    first = mode(posteriors[0], start)
    modes = torch.stack([first, *(mode(one, first, steps=_STEPS) for one in posteriors[1:])])
    metric = hmc.Metric.of(modes, posteriors[0].curvature(first[None]))
    theta = modes + metric.velocity(stream.normal_(torch.empty_like(modes), purpose="start", step=0))
    at, size, seen, accepted = target.evaluate(theta), hmc.StepSize(), list[Tensor](), list[Tensor]()
    for step in range(RUN_IN + draws + 1):
        uniform = torch.empty(len(theta), dtype=torch.float64)
        theta, at, moved = hmc.trajectory(
            target,
            metric,
            theta,
            at,
            step_size=size.value,
            angle=hmc.angle(step),
            normal=stream.normal_(torch.empty_like(theta), purpose="velocity", step=step),
            log_uniform=torch.special.log_ndtr(stream.normal_(uniform, purpose="accept", step=step)),
        )
        level = torch.empty(len(theta), posteriors[0].levels * start.shape[1])
        level = stream.normal_(level, purpose="level", step=step)
        theta, at = posteriors[0].shifted(theta, at, level)
        if step < RUN_IN // 2:
            size.update(float(moved.probability.mean()))
        elif step == RUN_IN // 2:
            size.settle()
        else:
            accepted.append(moved.probability)
        if step >= RUN_IN:
            seen.append(at.ell.neg())
        if progress is not None:
            progress(step + 1, RUN_IN + draws + 1)
    if not float(torch.stack(accepted).mean(0).min()) > 0:
        raise MechanismError("a chain of an audit's rerun accepts none of its proposals: lower the prior's deviation")
    losses = torch.stack(seen)
    return theta, [losses[:, k, : len(one.features)] for k, one in enumerate(posteriors)]
