"""SWAG against closed forms: moments, deviations, and the distribution of a draw. The statistical
tests take the scale as an argument and run three times: the right one must pass, two thirds and
three halves of the standard deviation must fail. Each bound has a false-alarm rate below 1e-6 a
comparison over the choice of the seed, which is fixed.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import of_kind
from scipy import stats
from small_heads import collected
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.seeding import generator
from mechanisms.posterior import swag

ALARM = 1e-6


def closed_form(thetas: Tensor, *, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean [P], variance [P] and last deviations [K, P] in float64, straight from
    the definitions.
    """
    x = thetas.double().numpy()
    running = np.stack([x[: t + 1].mean(0) for t in range(len(x))])
    return x.mean(0), (x**2).mean(0) - x.mean(0) ** 2, (x - running)[-rank:]


def covariance(post: swag.Posterior) -> np.ndarray:
    """Equation 6: s^2 (diag(sigma^2)/2 + D D'/(2 (K - 1))), [P, P]."""
    d = torch.stack(post.deviations).double().numpy()
    return post.std_scale**2 * (
        np.diag(post.diag_std.double().numpy() ** 2) / 2 + d.T @ d / (2 * (post.rank - 1))
    )


def draws(post: swag.Posterior, n: int, *, seed: int = 0) -> np.ndarray:
    """n draws [n, P], float64."""
    normal = swag.seeded_normal(generator(seed, "test"))
    return torch.stack([swag.sample(post, normal=normal) for _ in range(n)]).double().numpy()


def snapshots(count: int, size: int, *, seed: int = 1) -> Tensor:
    """A synthetic trajectory [count, size] whose coordinates are correlated."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(count, 1, generator=g)
    return (
        torch.randn(size, generator=g) + 0.3 * common + 0.2 * torch.randn(count, size, generator=g)
    )


def test_moments_and_deviations_equal_their_definitions(tmp_path: Path) -> None:
    """Mean and variance over all snapshots; deviations from the *running* mean, the
    last K of them.
    """
    thetas = snapshots(7, 11)
    post = collected(tmp_path, thetas, rank=3)
    mean, variance, deviations = closed_form(thetas, rank=3)
    np.testing.assert_allclose(post.mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(post.diag_std.numpy() ** 2, variance, rtol=1e-4)
    np.testing.assert_allclose(torch.stack(post.deviations).numpy(), deviations, atol=1e-6)
    assert (post.snapshots, post.rank) == (7, 3)
    from_the_final_mean = (thetas[-3:].double() - thetas.double().mean(0)).numpy()
    assert np.abs(from_the_final_mean - deviations).max() > 0.01, (
        "the two definitions must differ here"
    )


def test_two_snapshots_worked_by_hand(tmp_path: Path) -> None:
    """theta = (0, 2) then (4, 0): mean (2, 1), variance (4, 1), deviations (0, 0) and (2, -1)."""
    post = collected(tmp_path, torch.tensor([[0.0, 2.0], [4.0, 0.0]]), rank=5)
    assert post.mean.tolist() == [2, 1]
    assert (post.diag_std**2).tolist() == [4, 1]
    assert [d.tolist() for d in post.deviations] == [[0, 0], [2, -1]]


def test_welford_keeps_the_variance_where_the_textbook_formula_loses_it(tmp_path: Path) -> None:
    """At fine-tuning scale (spread 1e-4 around 1) float32 E[x^2] - E[x]^2 has no correct digit;
    Welford has three.
    """
    g = torch.Generator().manual_seed(3)
    thetas = 1 + 1e-4 * torch.randn(20, 500, generator=g)
    post = collected(tmp_path, thetas, rank=2)
    _, variance, _ = closed_form(thetas, rank=2)
    naive = (thetas.square().mean(0) - thetas.mean(0).square()).numpy()
    assert np.abs(naive / variance - 1).max() > 1, "the case must be hard"
    np.testing.assert_allclose(post.diag_std.numpy() ** 2, variance, rtol=5e-3)


def test_only_the_last_deviations_stay_on_the_disk(tmp_path: Path) -> None:
    """Disk holds K deviations, not one a snapshot."""
    collected(tmp_path, snapshots(9, 4), rank=3)
    kept = sorted(p.name for p in tmp_path.glob("deviation_*"))
    assert kept == [swag.deviation_file(tmp_path, t).name for t in (7, 8, 9)]


def test_divisor_follows_the_snapshots_really_held(tmp_path: Path) -> None:
    """Three snapshots at rank 20: the low-rank part is D z2 / sqrt(2 (3 - 1)), not sqrt(2 (20 -
    1)).
    """
    post = collected(tmp_path, snapshots(3, 5), rank=20)
    assert post.rank == 3
    asked: list[int] = []

    def normal(out: Tensor) -> Tensor:
        asked.append(out.numel())
        return out.copy_(torch.tensor([0.0, 0.0, 1.0])) if len(asked) == 1 else out.zero_()

    drawn = swag.sample(post, normal=normal)
    torch.testing.assert_close(drawn, post.mean + post.deviations[2] / math.sqrt(2 * 2))
    assert asked[0] == 3


def test_diagonal_part_worked_by_hand(tmp_path: Path) -> None:
    """z2 = 0 and z1 = 1 give mean + sigma / sqrt 2; `std_scale` multiplies both parts."""
    for scale in (1.0, 0.5):
        post = collected(tmp_path / str(scale), snapshots(6, 5), rank=4, std_scale=scale)
        calls = iter([torch.zeros(4), torch.ones(5)])
        drawn = swag.sample(post, normal=lambda out, calls=calls: out.copy_(next(calls)))
        torch.testing.assert_close(drawn, post.mean + scale * post.diag_std / math.sqrt(2))
        calls = iter([torch.ones(4), torch.zeros(5)])
        drawn = swag.sample(post, normal=lambda out, calls=calls: out.copy_(next(calls)))
        torch.testing.assert_close(
            drawn, post.mean + scale * sum(post.deviations) / math.sqrt(2 * 3)
        )


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_mean_and_covariance_of_draws(tmp_path: Path, factor: float, accepted: bool) -> None:
    """In 40 directions (axes, pairs, random) the draws' mean and variance match equation 6. Along a
    direction a, sum over draws of (a'(theta - mean))^2 / a'Sa is chi-squared with n degrees of
    freedom and the mean is normal. False alarms: 1e-6 a comparison, so below 1e-4 in all. Wrong
    scales fail in every direction.
    """
    post = collected(tmp_path, snapshots(8, 12), rank=5, std_scale=factor)
    n, size = 4000, 12
    centred = draws(post, n) - post.mean.double().numpy()
    right = covariance(swag.load(tmp_path))
    rng = np.random.default_rng(0)
    directions = np.concatenate(
        [np.eye(size), np.eye(size) - np.roll(np.eye(size), 1, 1), rng.normal(size=(16, size))]
    )
    verdicts = []
    for a in directions:
        along = centred @ a / math.sqrt(a @ right @ a)
        square = float(along @ along)
        p_variance = 2 * min(stats.chi2.cdf(square, n), stats.chi2.sf(square, n))
        p_mean = 2 * stats.norm.sf(abs(along.mean()) * math.sqrt(n))
        verdicts.append(p_variance > ALARM and (p_mean > ALARM or not accepted))
    assert all(verdicts) if accepted else not any(verdicts)


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_coverage_over_many_parameters(factor: float, accepted: bool) -> None:
    """The share of 1.2 million independent coordinates of one draw inside their 95 % interval is
    0.95. Over several blocks of work, so that no block is left out or drawn twice. Binomial bound,
    false alarm 1e-6.
    """
    size = 1_200_003
    g = torch.Generator().manual_seed(5)
    std = torch.rand(size, generator=g) + 0.1
    nothing = (torch.zeros(size), torch.zeros(size))
    post = swag.posterior(torch.ones(size), std**2 * 4, nothing, count=4, std_scale=factor)
    drawn = swag.sample(post, normal=swag.seeded_normal(generator(0, "coverage")))
    inside = int(((drawn - 1).abs() <= stats.norm.ppf(0.975) * std / math.sqrt(2)).sum())
    assert (stats.binomtest(inside, size, 0.95).pvalue > ALARM) == accepted
    if accepted:  # the tail of the last, short block too
        assert (
            stats.kstest(((drawn - 1) / std)[-150_000:].numpy() * math.sqrt(2), "norm").pvalue
            > ALARM
        )


def test_one_z2_serves_all_parameters() -> None:
    """Without the diagonal a draw is mean + D z with one z: read z off two parameters, predict all
    the others. The vector spans several blocks of work and would span several tensors of a model.
    """
    size = 1_300_000
    g = torch.Generator().manual_seed(2)
    deviations = tuple(torch.randn(size, generator=g) for _ in range(2))
    post = swag.posterior(torch.zeros(size), torch.zeros(size), deviations, count=2, std_scale=1.0)
    drawn = swag.sample(post, normal=swag.seeded_normal(generator(7, "z2")))
    d = torch.stack(deviations, 1)
    z = torch.linalg.solve(d[:2], drawn[:2])
    torch.testing.assert_close(drawn, d @ z, rtol=1e-3, atol=1e-4)
    assert float(z.abs().max()) > 0


def test_draws_do_not_depend_on_threads_or_on_where_they_go() -> None:
    """One seed, one draw: with one thread or two, into a new tensor or a given one."""
    size = 3_300_001
    g = torch.Generator().manual_seed(4)
    deviations = tuple(torch.randn(size, generator=g) for _ in range(3))
    post = swag.posterior(
        torch.randn(size, generator=g),
        torch.rand(size, generator=g),
        deviations,
        count=3,
        std_scale=1,
    )

    def draw(out: Tensor | None = None) -> Tensor:
        return swag.sample(post, normal=swag.seeded_normal(generator(1, "same")), out=out)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = draw()
        torch.set_num_threads(3)
        together = draw()
        given = torch.empty(size)
        assert draw(given) is given
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone, together)
    assert torch.equal(alone, given)
    other = swag.sample(post, normal=swag.seeded_normal(generator(2, "same")))
    assert not torch.equal(alone, other)


def test_a_failing_source_of_noise_fails_the_draw() -> None:
    """No half-made draw: an error in `normal` reaches the caller, whichever block it met."""
    size = 3_300_001
    post = swag.posterior(
        torch.zeros(size), torch.ones(size), (torch.zeros(size),) * 2, count=2, std_scale=1.0
    )
    calls = []

    def normal(out: Tensor) -> Tensor:
        calls.append(out.numel())
        if len(calls) == 3:
            raise OSError("no entropy")
        return out.normal_()

    with pytest.raises(OSError, match="no entropy"):
        swag.sample(post, normal=normal)


def test_too_little_for_a_covariance_is_refused(tmp_path: Path) -> None:
    """Rank 1 and a single snapshot have no covariance: say so, naming what to change."""
    with pytest.raises(MechanismError, check=of_kind("rank"), match=r"\b1\b"):
        swag.init(3, rank=1, folder=tmp_path)
    state = swag.init(3, rank=2, folder=tmp_path)
    swag.update(state, torch.zeros(3))
    with pytest.raises(MechanismError, check=of_kind("too-few-snapshots")):
        swag.save(state)
