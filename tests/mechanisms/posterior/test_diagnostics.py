"""Tails against distributions whose maxima are known, iterates and densities against direct computation, refits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_heads import collected

from mechanisms.errors import MechanismError
from mechanisms.posterior import swag
from mechanisms.posterior.checks import (
    Density,
    coverage,
    extrapolate,
    iterates,
    quartiles_of_class_size,
    weights_by_class_size,
)


class TestTail:
    def estimates(self, quantile: Callable[[np.ndarray], np.ndarray], runs: int = 40) -> list[tuple[float, float]]:
        """90 % intervals for the maximum over 50,000 draws, from 500 draws by inverse transform, many times."""
        rng = np.random.default_rng(5)
        found = []
        for run in range(runs):
            sample = torch.from_numpy(quantile(rng.random(500)))
            made = extrapolate(sample, draws=50_000, seed=run, bootstraps=100)
            assert made.low <= made.high
            assert float(sample.max()) <= made.expected
            found.append((made.low, made.high))
        return found

    def test_covers_the_known_maximum(self) -> None:
        """Exponential maxima, where the assumed tail is right: the true median of the maximum over 50,000 lies in most
        intervals. Seeded, so no false alarms; six tenths and 1.6 times its distance from 3 lie in few."""
        intervals = self.estimates(lambda u: 3 - 0.1 * np.log1p(-u))
        truth = 3 - 0.1 * math.log(math.log(2) / 50_000)
        assert sum(low <= truth <= high for low, high in intervals) >= 0.75 * len(intervals)
        for wrong in (3 + 0.6 * (truth - 3), 3 + 1.6 * (truth - 3)):
            assert sum(low <= wrong <= high for low, high in intervals) < 0.1 * len(intervals)

    def test_errs_upwards_for_a_gaussian_tail(self) -> None:
        """Lighter than exponential at every level: the estimate's upper end lies above the truth nearly always."""
        normal = torch.distributions.Normal(3.0, 0.1)
        truth = float(normal.icdf(torch.tensor(1 - math.log(2) / 50_000, dtype=torch.float64)))
        found = self.estimates(lambda u: normal.icdf(torch.from_numpy(u)).numpy())
        assert sum(truth <= high for _, high in found) >= 0.9 * len(found)
        assert max(high for _, high in found) < 3 + 3 * (truth - 3)

    def test_failure_probability_of_a_fresh_draw(self) -> None:
        """For exponential maxima the fitted probability above the largest of 500 is near the true one, on average."""
        rng = np.random.default_rng(1)
        ratios = []
        for run in range(60):
            sample = rng.exponential(size=500)
            made = extrapolate(torch.from_numpy(sample), draws=501, seed=run, bootstraps=20)
            assert made.plain == pytest.approx(1 / 501)
            ratios.append(made.failure_probability / math.exp(-sample.max()))
        assert 0.5 < float(np.median(ratios)) < 2

    def test_refusals(self) -> None:
        """Too few draws for a tail, and a look back instead of ahead."""
        with pytest.raises(MechanismError, match="at least 50"):
            extrapolate(torch.rand(49), draws=1000, seed=0)
        with pytest.raises(MechanismError, match="give more than"):
            extrapolate(torch.rand(100), draws=100, seed=0)

    def test_equal_maxima(self) -> None:
        """No tail at all: the maximum itself, and nothing is divided by zero."""
        made = extrapolate(torch.full((100,), 2.0), draws=10_000, seed=0, bootstraps=5)
        assert made.expected == made.low == made.high == 2


class TestIterates:
    @pytest.mark.parametrize("rank", [8, 3])
    def test_come_back(self, tmp_path: Path, rank: int) -> None:
        """From mean and deviations alone, all of them or the last K."""
        thetas = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
        back = torch.stack(iterates(collected(tmp_path, thetas, rank=rank)))
        torch.testing.assert_close(back, thetas[-rank:], rtol=1e-5, atol=1e-5)

    def test_coverage_is_nominal_for_a_settled_chain_and_not_for_a_drifting_one(self, tmp_path: Path) -> None:
        """Independent Gaussians: within 2 points of nominal over 20,000 parameters (standard error 0.2 points; the ten
        later iterates of a parameter share its estimate, which widens it threefold). A drift: far below."""
        g = torch.Generator().manual_seed(0)
        still = torch.randn(20, 20_000, generator=g)
        settled = coverage(collected(tmp_path / "a", still, rank=20), seed=0)
        for level, share in zip(settled.nominal, settled.parameters, strict=True):
            assert share == pytest.approx(level, abs=0.02)
        for level, share in zip(settled.nominal, settled.directions, strict=True):
            assert share == pytest.approx(level, abs=0.08)
        moving = still + torch.arange(20)[:, None]
        drifting = coverage(collected(tmp_path / "b", moving, rank=20), seed=0)
        assert drifting.parameters[3] < 0.8
        assert drifting.drift > 5 * settled.drift

    def test_too_few(self, tmp_path: Path) -> None:
        """Five iterates have no halves worth comparing."""
        with pytest.raises(MechanismError, match="at least 6"):
            coverage(collected(tmp_path, torch.randn(5, 4), rank=5), seed=0)


class TestDensity:
    @pytest.mark.parametrize("std_scale", [1.0, 3.0])
    def test_equals_the_dense_gaussian(self, std_scale: float) -> None:
        """Woodbury against torch's multivariate normal on 12 parameters."""
        g = torch.Generator().manual_seed(2)
        deviations = tuple(torch.randn(12, generator=g) for _ in range(4))
        post = swag.posterior(
            torch.randn(12, generator=g), torch.rand(12, generator=g) * 4, deviations, count=4, std_scale=std_scale
        )
        columns = torch.stack(deviations).double()
        dense = std_scale**2 * (torch.diag(post.diag_std.double() ** 2) / 2 + columns.T @ columns / 6)
        normal = torch.distributions.MultivariateNormal(post.mean.double(), dense)
        for _ in range(3):
            theta = torch.randn(12, generator=g)
            assert Density(post).log(theta) == pytest.approx(float(normal.log_prob(theta.double())), rel=1e-6)

    def test_a_parameter_that_never_moved(self) -> None:
        """Has the rounding's variance and not none."""
        post = swag.posterior(torch.ones(2), torch.tensor([0.0, 1.0]), (torch.zeros(2),) * 2, count=2, std_scale=1.0)
        assert math.isfinite(Density(post).log(torch.ones(2)))


def test_weights_of_several_fields_count_once_a_code() -> None:
    """A record that lacks a field does not count there, and each field's codes are ranked among themselves."""
    labels = torch.tensor([[0, 0], [1, 0], [1, 1], [2, 1], [2, -1], [2, 1], [3, 2], [3, 2], [3, 2], [3, 3]])
    alpha = torch.tensor([1.0, 0.5, 0.5, 1.0, 0.25, 1.0, 1.0, 1.0, 1.0, 0.5])
    found = weights_by_class_size(alpha, labels)
    # rarest quarter: code 0 of the first field (one record), code 3 of the second (one record, weight 0.5)
    assert found["mean_weight"][0] == pytest.approx(0.75)
    alone = weights_by_class_size(alpha, labels[:, 0])
    assert alone["mean_weight"][0] == 1.0


def test_quartiles_of_class_size() -> None:
    """Classes of 1, 2, 3 and 4 records: a quarter of the classes each, the rarest first."""
    labels = torch.tensor([9, 5, 5, 7, 7, 7, 1, 1, 1, 1])
    assert quartiles_of_class_size(labels).tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
