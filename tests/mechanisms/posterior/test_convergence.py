"""R-hat and effective sample sizes: known values, and that they refuse chains that do not agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mechanisms.errors import MechanismError
from mechanisms.posterior.convergence import Diagnostics, ess_bulk, ess_tail, r_hat
from mechanisms.posterior.hmc import Draws


def autoregressive(
    phi: float, *, draws: int = 1000, chains: int = 4, quantities: int = 200, seed: int = 0
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = np.empty((draws, chains, quantities))
    values[0] = rng.normal(size=(chains, quantities)) / np.sqrt(1 - phi**2)
    for t in range(1, draws):
        values[t] = phi * values[t - 1] + rng.normal(size=(chains, quantities))
    return values


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.3])
def test_effective_sample_size_of_an_autoregression(phi: float) -> None:
    """S (1 - phi) / (1 + phi), in the mean over 200 series within 10 %."""
    found = ess_bulk(autoregressive(phi)).mean()
    assert found == pytest.approx(4000 * (1 - phi) / (1 + phi), rel=0.1)


def test_independent_draws_agree() -> None:
    """R-hat near 1 and tails worth nearly all draws."""
    values = autoregressive(0.0)
    assert r_hat(values).max() < 1.01
    assert ess_tail(values).min() > 2500


@pytest.mark.parametrize("moved", ["mean", "scale", "trend"])
def test_chains_that_differ_are_seen(moved: str) -> None:
    """One chain elsewhere, one wider (seen by folding alone), all moving (seen by splitting alone)."""
    values = autoregressive(0.0, draws=250)
    if moved == "mean":
        values[:, 0] += 1.5
    elif moved == "scale":
        values[:, 0] *= 3
    else:
        values += np.linspace(-1, 1, 250)[:, None, None]
    assert r_hat(values).min() > 1.05


def drawn(**changed: Any) -> Draws:
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    made = Draws(
        theta=torch.zeros(4, 2, 3),
        ell_last=torch.zeros(4, 5),
        ell=normal(125, 4, 5).float(),
        projections=normal(125, 4, 3),
        potential=normal(125, 4),
        acceptance=torch.full((125, 4), 0.9, dtype=torch.float64),
        energy_error=0.1 * normal(125, 4),
        step_size=0.3,
    )
    return replace(made, **changed)


LARGEST = np.random.default_rng(1).normal(size=(125, 4))


def test_draws_that_agree_pass() -> None:
    """500 independent draws of nine quantities."""
    found = Diagnostics.of(drawn(), LARGEST)
    found.refuse()
    assert found.draws == 500


def stuck() -> torch.Tensor:
    ell = drawn().ell.clone()
    ell[:, 2, 3] = 4.0
    return ell


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ell": stuck()}, "R-hat of log-likelihoods"),
        (
            {"projections": torch.from_numpy(autoregressive(0.97, draws=125, quantities=3))},
            "sample size of projections",
        ),
        ({"acceptance": torch.tensor([0.9, 0.9, 0.2, 0.9]).double().expand(125, 4)}, "accepts 0.20"),
        ({"energy_error": torch.full((125, 4), 2000.0).double()}, "500 trajectories diverged"),
    ],
)
def test_draws_that_do_not_are_refused(changed: dict[str, torch.Tensor], said: str) -> None:
    """With the reason, and what to change."""
    with pytest.raises(MechanismError, match=said):
        Diagnostics.of(drawn(**changed), LARGEST).refuse()


def test_a_largest_loss_that_moves_is_refused() -> None:
    """Delta itself is monitored."""
    with pytest.raises(MechanismError, match="sensitivity"):
        Diagnostics.of(drawn(), LARGEST + np.arange(125)[:, None] / 30).refuse()
