"""Takes draws whose chains agree, and are worth enough independent ones: split R-hat, effective sample size.

Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, "Rank-normalization, folding, and localization: an improved
R-hat", arXiv 1903.08008: R-hat is the larger of that of rank-normalised draws and of their folded absolute deviations;
the bulk's effective sample size is that of rank-normalised draws, the tails' the smaller of the 5 % and the 95 %
quantile's, each over split chains with Geyer's initial monotone sequence.

The measures take float64 [draws, chains, quantities] and answer [quantities].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from mechanisms.errors import DrawsRefused
from mechanisms.model.training import Progress
from mechanisms.posterior import hmc
from mechanisms.posterior.gibbs import SoftmaxPosterior
from mechanisms.posterior.hmc import Draws, SamplerConfig

LARGEST_R_HAT = 1.05
"""Of any quantity. With some 2,000 quantities and 500 draws their largest is 1.02 to 1.03 where chains do agree."""
SMALLEST_ESS = 100.0
SMALLEST_ACCEPTANCE = 0.5
"""Mean over draws of any chain: one that stands still accepts nothing."""
LARGEST_ENERGY_ERROR = 1000.0
"""A trajectory whose energy is off by more has left the posterior (Stan's divergence)."""
FEWEST_DRAWS = 100
"""A chain: on fewer their agreement cannot be judged, and as many are taken, however few were asked for."""
SAMPLED = (
    "the draw is one of the posterior itself: sampled by Hamiltonian Monte Carlo with Metropolis correction, which "
    "leaves the posterior invariant; that its chains had reached it is assumed, not proven, and refused where split "
    "R-hat, effective sample sizes, acceptance or energy errors speak against it"
)
"""What is assumed of the sampler, as a claim states it."""
FIGURES = ("draws", "chains", "r_hat", "ess_bulk", "ess_tail", "acceptance", "energy_error", "diverged")
"""Of a `Diagnostics`, for reports inside the house."""


def r_hat(draws: np.ndarray) -> np.ndarray:
    """Split, rank-normalised R-hat, the larger of bulk and folded."""
    halves = split(draws)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(_r_hat(normalised(halves)), _r_hat(normalised(folded)))


def ess_bulk(draws: np.ndarray) -> np.ndarray:
    """Effective sample size of the mean of rank-normalised draws."""
    return ess(normalised(split(draws)))


def ess_tail(draws: np.ndarray) -> np.ndarray:
    """The smaller effective sample size of the 5 % and the 95 % quantile."""
    halves = split(draws)
    low, high = np.quantile(halves, [0.05, 0.95], axis=(0, 1))
    return np.minimum(ess((halves <= low).astype(float)), ess((halves <= high).astype(float)))


def split(draws: np.ndarray) -> np.ndarray:
    """Each chain as two, the middle draw of an odd number left out: float64 [draws // 2, 2 chains, quantities]."""
    half = len(draws) // 2
    return np.concatenate([draws[:half], draws[-half:]], axis=1).astype(float)


def normalised(draws: np.ndarray) -> np.ndarray:
    """Ranks over all chains as normal quantiles, (r - 3/8) / (S + 1/4); ties share their mean rank."""
    shape = draws.shape
    from scipy.special import ndtri  # scipy takes a second, and most commands look at no chain
    from scipy.stats import rankdata

    ranks = rankdata(draws.reshape(-1, shape[2]), axis=0, method="average")
    return ndtri((ranks - 0.375) / (len(ranks) + 0.25)).reshape(shape)


def _r_hat(draws: np.ndarray) -> np.ndarray:
    number = len(draws)
    between = number * draws.mean(0).var(0, ddof=1)
    within = draws.var(0, ddof=1).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(((number - 1) / number * within + between / number) / within)
    return np.where(within > 0, ratio, np.where(between > 0, np.inf, 1.0))


def ess(draws: np.ndarray) -> np.ndarray:
    """Effective sample size of the mean, over chains as they are; a constant counts as independent."""
    number, chains, quantities = draws.shape
    covariance = _autocovariance(draws)
    within = covariance[0].mean(0) * number / (number - 1)
    variance = within * (number - 1) / number + draws.mean(0).var(0, ddof=1) * (chains > 1)
    constant = variance <= 0
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within - covariance.mean(1) * number / (number - 1)) / variance
    rho[0] = 1.0
    pairs = rho[: number // 2 * 2].reshape(-1, 2, quantities).sum(1)
    # initial positive, then monotone: the sum stops at the first pair below 0 and no pair exceeds the one before
    positive = np.cumprod(pairs > 0, axis=0).astype(bool)
    time = -1 + 2 * np.where(positive, np.minimum.accumulate(np.where(positive, pairs, 0.0), axis=0), 0.0).sum(0)
    total = number * chains
    time = np.maximum(time, 1 / np.log10(total))
    return np.where(constant, float(total), total / np.where(constant, 1.0, time))


def _autocovariance(draws: np.ndarray) -> np.ndarray:
    """At every lag, divided by the number of draws: float64 [draws, chains, quantities]."""
    number = len(draws)
    padded = np.fft.rfft(draws - draws.mean(0), n=2 * number, axis=0)
    return np.fft.irfft(padded * padded.conj(), n=2 * number, axis=0)[:number] / number


@dataclass(frozen=True)
class Diagnostics:
    """Decides over a sampler's draws: the worst over all quantities. Aggregates, which may be shown."""

    draws: int
    chains: int
    r_hat: float
    ess_bulk: float
    ess_tail: float
    acceptance: float
    """Mean probability of acceptance of the chain that accepts least."""
    energy_error: float
    """Mean absolute change of H over a trajectory, accepted or not."""
    diverged: int
    """Trajectories whose H changed by more than `LARGEST_ENERGY_ERROR`."""
    worst: Mapping[str, str]
    """By diagnostic, what it is worst for: `log-likelihoods`, `sensitivity`, `projections` or `potential`."""

    @staticmethod
    def of(draws: Draws, largest: np.ndarray) -> Diagnostics:
        """Over every record's l, Delta (`largest` float64 [T, K]), random projections and the potential."""
        groups = {
            "log-likelihoods": draws.ell.double().numpy(),
            "sensitivity": largest[..., None],
            "projections": draws.projections.numpy(),
            "potential": draws.potential[..., None].numpy(),
        }
        worst: dict[str, str] = {}
        values: dict[str, float] = {}
        for name, judge, extreme in (("r_hat", r_hat, max), ("ess_bulk", ess_bulk, min), ("ess_tail", ess_tail, min)):
            by_group = {group: float(extreme(judge(column))) for group, column in groups.items()}
            worst[name] = extreme(by_group, key=lambda group: by_group[group])
            values[name] = by_group[worst[name]]
        errors = draws.energy_error
        return Diagnostics(
            draws=draws.count,
            chains=draws.ell.shape[1],
            **values,
            acceptance=float(draws.acceptance.mean(0).min()),
            energy_error=float(errors[errors.isfinite()].abs().mean()),
            diverged=int((errors > LARGEST_ENERGY_ERROR).sum()),
            worst=worst,
        )

    @property
    def failures(self) -> list[str]:
        """Returns what speaks against the draws, in words."""
        failed: list[str] = []
        if not self.r_hat <= LARGEST_R_HAT:
            failed.append(f"split R-hat of {self.worst['r_hat']} is {self.r_hat:.3f}, above {LARGEST_R_HAT}")
        for name, words in (("ess_bulk", "bulk"), ("ess_tail", "tail")):
            value = getattr(self, name)
            if not value >= SMALLEST_ESS:
                failed.append(
                    f"effective {words} sample size of {self.worst[name]} is {value:.0f}, below {SMALLEST_ESS:g}"
                )
        if not self.acceptance >= SMALLEST_ACCEPTANCE:
            failed.append(f"a chain accepts {self.acceptance:.2f} of its proposals, fewer than {SMALLEST_ACCEPTANCE}")
        if self.diverged:
            failed.append(f"{self.diverged} trajectories diverged")
        return failed

    def refuse(self) -> None:
        """Refuses draws that may not be the posterior's; says which diagnostics failed, and what to change."""
        if self.failures:
            raise DrawsRefused(
                f"the sampler's draws are not to be trusted: {'; '.join(self.failures)}. Nothing is released from "
                "them; raise the draws or sampler.warm_up, or lower the mechanism's prior_std"
            )

    @property
    def figures(self) -> dict[str, float]:
        """For reports inside the house."""
        return {name: getattr(self, name) for name in FIGURES}


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
