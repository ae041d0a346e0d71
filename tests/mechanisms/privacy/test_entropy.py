"""Normal noise from the operating system: standard normal, independent, never the same twice. There
is no seed, so every run is a fresh trial: each bound states its false-alarm rate, 1e-9 or less.
"""

import os

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mechanisms.privacy.entropy import system_normal

N = 1 << 20
ALARM = 1e-9


def draw(shape: tuple[int, ...] = (N,)) -> Tensor:
    return system_normal(torch.empty(shape))


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_normal_with_the_right_scale(factor: float, accepted: bool) -> None:
    """Kolmogorov-Smirnov over a million variates: p > 1e-9 for the right scale, below it for wrong
    ones.
    """
    p = stats.kstest((factor * draw()).numpy(), "norm").pvalue
    assert (p > ALARM) == accepted


def test_moments() -> None:
    """Mean, variance, skewness and kurtosis within six and a half standard errors of 0, 1, 0, 3
    (false alarm 3e-10).
    """
    z = draw().double().numpy()
    errors = {
        "mean": (z.mean(), 1),
        "variance": ((z**2).mean() - 1, 2),
        "third": ((z**3).mean(), 15),
    }
    errors["fourth"] = ((z**4).mean() - 3, 96)  # var of z^k under the normal: 1, 2, 15, 96
    for name, (error, variance) in errors.items():
        assert abs(error) < 6.5 * np.sqrt(variance / N), name


def test_tails() -> None:
    """Beyond three standard deviations lies 0.0027 of it: the tails are there, and no longer than
    they should be.
    """
    beyond, share = int((draw().abs() > 3).sum()), float(2 * stats.norm.sf(3))
    assert stats.binomtest(beyond, N, share).pvalue > ALARM


def test_independent() -> None:
    """No correlation at lags 1, 2 and half a million (the sine and the cosine of one angle lie that
    far apart). Of values and of squares: Box-Muller pairs share a radius. Standard error 1/sqrt n;
    bound 6.5 of them (1e-10).
    """
    z = draw().double()
    for lag in (1, 2, N // 2):
        for x in (z, z.square()):
            a, b = x[:-lag], x[lag:]
            r = float(torch.corrcoef(torch.stack([a, b]))[0, 1])
            assert abs(r) < 6.5 / np.sqrt(len(a)), lag


def test_never_the_same_twice() -> None:
    """Seeding torch and numpy changes nothing: two calls share no variate in its place (chance
    below 1e-6 each).
    """
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.append(draw((1000,)))
    assert int((drawn[0] == drawn[1]).sum()) <= 2


def test_all_of_it_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least eight bytes of system entropy a variate; with the bytes fixed, the variates are, and
    are the textbook's. Bytes 0 give u1 = 1 and u2 = 0, so every variate is sqrt(-2 ln 1) = 0; u1 =
    u2 = 1/2 gives -sqrt(2 ln 2).
    """
    asked: list[int] = []

    def zeros(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    monkeypatch.setattr(os, "urandom", zeros)
    assert system_normal(torch.ones(1001)).abs().max() == 0
    assert sum(asked) >= 8 * 1001
    monkeypatch.setattr(os, "urandom", lambda count: (1 << 52).to_bytes(8, "little") * (count // 8))
    z = system_normal(torch.empty(2))
    assert z.tolist() == pytest.approx([-np.sqrt(2 * np.log(2)), 0], abs=1e-7)


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5, 7), (N + 1,)])
def test_fills_any_shape_in_place(shape: tuple[int, ...]) -> None:
    """Odd sizes, several dimensions, more than one block: every element is written, and the tensor
    is the same one.
    """
    out = torch.full(shape, float("nan"))
    assert system_normal(out) is out
    assert bool(torch.isfinite(out).all())
    assert out.unique().numel() > 0.9 * out.numel()
