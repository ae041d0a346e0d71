"""Risks, weights, sensitivity and equation 7 against values worked manually; what a pass over draws
may depend on.
"""

import math
import weakref
from typing import Any

import pytest
import torch
from refusals import of_kind
from small_heads import MakeLinear
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mechanisms.errors import MechanismError
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior import risks, swag
from mechanisms.posterior.risks import RiskPass, at_draw, merge, reweight, risk_pass, risk_weights
from mechanisms.privacy.numerics import failure_probability

P = 3 * 4 + 4
"""Parameters of the linear classifier that the fixture makes."""


def posterior(size: int, *, spread: float = 0.3, seed: int = 0) -> swag.Posterior:
    """A posterior around random parameters; with spread 0 every draw is the mean."""
    g = torch.Generator().manual_seed(seed)
    deviations = tuple(spread * torch.randn(size, generator=g) for _ in range(3))
    return swag.posterior(
        torch.randn(size, generator=g),
        (spread * torch.rand(size, generator=g)) ** 2,
        deviations,
        count=3,
        std_scale=1.0,
    )


def brute_force(
    made: Classifier,
    inputs: FeatureInputs,
    labels: Tensor,
    post: swag.Posterior,
    draws: range,
    *,
    purpose: str,
) -> Tensor:
    """Every |l_i(theta_s)|, float64 [S, n], by the textbook formula on each draw."""
    rows = []
    for s in draws:
        risks.load_draw(made, post, seed=9, purpose=purpose, draw=s)
        logits = made.logits({"features": inputs.features}).detach().double()
        rows.append(logits.logsumexp(1) - logits[torch.arange(len(labels)), labels])
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("risk", "c", "g", "alpha"),
    [
        ([1.0, 2.0, 5.0], 1.0, 0.0, [1, 0.75, 0]),  # scaled 0, 1/4, 1
        ([5.0, 1.0, 2.0], 0.5, 0.25, [0.25, 0.75, 0.625]),  # the order of records is kept
        ([1.0, 2.0, 5.0], 2.0, -0.5, [1, 1, 0]),  # 1.5, 1.0, -0.5 before the clip
        (
            [0.0, 0.0, 0.0],
            0.5,
            0.25,
            [0.75] * 3,
        ),  # none stands out: clip(c + g), nothing divided by zero
        ([2.5, 2.5, 2.5], 0.5, 0.25, [0.75] * 3),
        ([3.0], 1.0, 0.0, [1]),  # the smallest and the largest at once
    ],
)
def test_weights(risk: list[float], c: float, g: float, alpha: list[float]) -> None:
    """alpha = clip(c (1 - r~) + g, 0, 1)."""
    assert risk_weights(torch.tensor(risk), c=c, g=g).tolist() == alpha


class TestReweight:
    """Equation 7: alpha' = clip(k alpha Delta / Delta_i, 0, 1), Delta_i = alpha_i r_i."""

    @pytest.mark.parametrize(
        ("alpha", "risk", "k", "again"),
        [
            ([1.0, 0.5, 0.25], [2.0, 8.0, 4.0], 0.5, [1, 0.25, 0.5]),  # Delta_i (2, 4, 1), Delta 4
            (
                [0.0, 1.0],
                [9.0, 2.0],
                0.9,
                [0, 0.9],
            ),  # weight 0, where the equation divides by zero, stays 0
            ([1.0, 1.0], [1.0, 10.0], 0.9, [1, 0.9]),  # 0.9 * 10 / 1 = 9 is clipped
            (
                [0.5, 1.0, 0.0],
                [0.0, 4.0, 0.0],
                0.5,
                [1, 0.5, 0],
            ),  # no risk: 1 where there was a weight
            ([0.5, 0.0], [0.0, 0.0], 0.5, [1, 0]),  # no NaN when all are such
            ([0.5] * 3, [2.0] * 3, 0.75, [0.375] * 3),  # equal ones shrink by k
        ],
    )
    def test_by_hand(
        self, alpha: list[float], risk: list[float], k: float, again: list[float]
    ) -> None:
        assert reweight(torch.tensor(alpha), torch.tensor(risk), k=k).tolist() == pytest.approx(
            again
        )

    def test_every_new_sensitivity_is_k_delta_unless_clipped(self) -> None:
        """The point of the equation: at the same risks every record then has k Delta, or weight 1
        and less.
        """
        g = torch.Generator().manual_seed(0)
        alpha, risk = torch.rand(50, generator=g), 5 * torch.rand(50, generator=g)
        again = reweight(alpha, risk, k=0.95)
        goal = 0.95 * float((alpha * risk).max())
        free = again < 1
        assert 0 < int(free.sum()) < 50
        torch.testing.assert_close((again * risk)[free], torch.full((int(free.sum()),), goal))
        assert bool((again * risk <= goal * (1 + 1e-6)).all())


class TestRiskPass:
    def test_known_logits(self, linear: MakeLinear) -> None:
        """Logits (0, ln 2, ln 5, ln 8): |l| = ln 16, ln 8, ln 3.2, ln 2; Delta with and without
        weights manually.
        """
        made, inputs, _ = linear(4)
        theta = torch.zeros(P)
        theta[-4:] = torch.tensor([1.0, 2, 5, 8]).log()
        still = swag.posterior(theta, torch.zeros(P), (torch.zeros(P),) * 2, count=2, std_scale=1.0)
        labels = torch.arange(4)
        alpha = torch.tensor([0.25, 0.5, 1.0, 1.0])
        options: dict[str, Any] = {"draws": range(3), "seed": 0, "purpose": "x"}
        plain = risk_pass(made, inputs, labels, still, **options)
        torch.testing.assert_close(plain.risk, torch.tensor([16, 8, 3.2, 2]).log())
        assert plain.sensitivity == pytest.approx(math.log(16))
        weighted = risk_pass(made, inputs, labels, still, weights=alpha, **options)
        torch.testing.assert_close(weighted.risk, plain.risk)
        assert weighted.sensitivity == pytest.approx(math.log(3.2))  # 1/4 ln 16 < 1/2 ln 8 < ln 3.2
        made.flat.copy_(theta)
        assert at_draw(made, inputs, labels, weights=alpha) == pytest.approx(math.log(3.2))

    def test_maxima_over_draws(self, linear: MakeLinear) -> None:
        """Risks and per-draw maxima equal the textbook maximum over all (draw, record) pairs in
        float64.
        """
        made, inputs, labels = linear(23)
        post, alpha = posterior(P), torch.rand(23)
        got = risk_pass(
            made,
            inputs,
            labels,
            post,
            draws=range(15),
            seed=9,
            purpose="a",
            weights=alpha,
            batch_size=5,
        )
        table = brute_force(made, inputs, labels, post, range(15), purpose="a")
        torch.testing.assert_close(got.risk, table.amax(0).float())
        torch.testing.assert_close(got.draw_maxima, (table * alpha).amax(1).float())
        assert got.sensitivity == pytest.approx(float((table * alpha).max()), rel=1e-5)

    def test_shards_merge_to_one_pass(self, linear: MakeLinear) -> None:
        """A draw depends on (seed, purpose, s) alone: three shards, computed out of order, equal
        one pass.
        """
        made, inputs, labels = linear()
        alpha = torch.rand(12)

        def run(draws: range) -> RiskPass:
            return risk_pass(
                made, inputs, labels, posterior(P), draws=draws, seed=3, purpose="a", weights=alpha
            )

        last, first, middle = run(range(7, 10)), run(range(4)), run(range(4, 7))
        whole, merged = run(range(10)), merge([first, middle, last])
        assert torch.equal(merged.risk, whole.risk)
        assert torch.equal(merged.draw_maxima, whole.draw_maxima)

    def test_draws_differ_by_seed_purpose_and_number(self, linear: MakeLinear) -> None:
        """Risk draws and sensitivity draws are not the same draws."""
        made, _, _ = linear()
        seen = []
        for seed, purpose, draw in [
            (0, "risk", 0),
            (1, "risk", 0),
            (0, "sensitivity", 0),
            (0, "risk", 1),
        ]:
            risks.load_draw(made, posterior(P), seed=seed, purpose=purpose, draw=draw)
            seen.append(made.flat.clone())
        risks.load_draw(made, posterior(P), seed=0, purpose="risk", draw=0)
        assert torch.equal(made.flat, seen[0])
        assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])

    @pytest.mark.parametrize("weight", [0.0, 1.0])
    def test_not_finite_is_an_error(self, linear: MakeLinear, weight: float) -> None:
        """A draw at which a likelihood overflows is reported, also at weight 0, and the parameters
        come back.
        """
        made, inputs, labels = linear()
        wide = swag.posterior(
            torch.zeros(P), torch.full((P,), 1e38), (torch.zeros(P),) * 2, count=2, std_scale=1e25
        )
        before = made.flat.clone()
        with pytest.raises(MechanismError, check=of_kind("posterior-too-wide", saying="sample 0")):
            risk_pass(
                made,
                inputs,
                labels,
                wide,
                draws=range(2),
                seed=0,
                purpose="a",
                weights=torch.full((12,), weight),
            )
        assert torch.equal(made.flat, before)

    def test_progress(self, linear: MakeLinear) -> None:
        """One call a draw, with the number done and the number in all."""
        made, inputs, labels = linear()
        seen: list[tuple[int, int]] = []
        risk_pass(
            made,
            inputs,
            labels,
            posterior(P),
            draws=range(2, 5),
            seed=0,
            purpose="a",
            progress=lambda done, total: seen.append((done, total)),
        )
        assert seen == [(1, 3), (2, 3), (3, 3)]


class TestAtDraw:
    @pytest.mark.parametrize("where", [0, 5, 11])
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_not_finite_is_an_error(self, linear: MakeLinear, where: int, value: float) -> None:
        """One record whose likelihood is not a number must not vanish in a maximum, wherever it
        stands.
        """
        made, inputs, labels = linear()
        inputs.features[where] = value
        with pytest.raises(MechanismError, check=of_kind("not-finite")):
            at_draw(made, inputs, labels, weights=torch.ones(12), batch_size=4)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that operations made and that are still alive, and the most
    there ever were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._users: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, Tensor):
                storage = t.untyped_storage()
                key, size = storage.data_ptr(), storage.nbytes()
                self._users[key] = self._users.get(key, 0) + 1
                if self._users[key] == 1:
                    self.now += size
                    self.peak = max(self.peak, self.now)
                weakref.finalize(t, self._gone, key, size)
        return out

    def _gone(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            self.now -= size


def test_memory_does_not_grow_with_the_draws(linear: MakeLinear) -> None:
    """Bytes of live tensors at the worst moment: the same for 5 and for 105 draws, plus 4 bytes a
    draw (and a copy). A pass that kept draws times records would need 1,000 * 100 * 4 bytes more.
    """
    made, inputs, labels = linear(1000)
    peak = {}
    for draws in (5, 105):
        with LiveBytes() as live:
            risk_pass(made, inputs, labels, posterior(P), draws=range(draws), seed=0, purpose="a")
        peak[draws] = live.peak
    assert peak[5] > 1000 * 4, "the counter must see the pass"
    assert peak[105] - peak[5] <= 2 * 4 * 100


def test_failure_probability_holds_in_simulation() -> None:
    """1/(S + 1): in 100,000 repeats of 9 exchangeable draws and a fresh one, that one is largest a
    tenth of the time. Binomial standard deviation 0.00095; the bound is 5.3 of them, false alarm
    below 2e-7; 1/S = 0.111 is rejected.
    """
    x = torch.rand(100_000, 10, generator=torch.Generator().manual_seed(0))
    share = float((x[:, 9] > x[:, :9].amax(1)).double().mean())
    assert failure_probability(9) == 1 / 10
    assert abs(share - failure_probability(9)) < 0.005
    assert abs(share - 1 / 9) > 0.005
