"""Draws of a sampler that its diagnostics bear out, and the assumption that a claim states about it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from mechanisms.model.training import Progress
from mechanisms.posterior import hmc
from mechanisms.posterior.convergence import Diagnostics
from mechanisms.posterior.gibbs import SoftmaxPosterior
from mechanisms.posterior.hmc import Draws, SamplerConfig

FEWEST_DRAWS = 100
"""A chain: on fewer their agreement cannot be judged, and as many are taken, however few were asked for."""


SAMPLED = (
    "the draw is one of the posterior itself: sampled by Hamiltonian Monte Carlo with Metropolis correction, which "
    "leaves the posterior invariant; that its chains had reached it is assumed, not proven, and refused where split "
    "R-hat, effective sample sizes, acceptance or energy errors speak against it"
)
"""What is assumed of the sampler, as a claim states it."""


def draws_of(
    target: SoftmaxPosterior,
    start: Tensor,
    sampler: SamplerConfig,
    draws: int,
    *,
    purpose: str,
    folder: Path | None,
    key: bytes | None,
    progress: Progress | None,
) -> tuple[Draws, dict[str, float]]:
    """Takes draws until the diagnostics bear them out, or refuses them; returns them with their figures."""
    checked: dict[int, Diagnostics] = {}

    def look(drawn: Draws) -> Diagnostics:
        if drawn.count not in checked:
            losses = drawn.ell if target.weights is None else drawn.ell * target.weights
            checked[drawn.count] = Diagnostics.of(drawn, losses.abs().amax(2).double().numpy())
        return checked[drawn.count]

    drawn = hmc.sample(
        target,
        start,
        sampler,
        draws=max(draws, FEWEST_DRAWS * sampler.chains),
        purpose=purpose,
        satisfied=lambda drawn: not look(drawn).failures,
        file=None if folder is None else folder / f"{purpose}.safetensors",
        progress=progress,
        key=key,
    )
    look(drawn).refuse()
    return drawn, look(drawn).figures
