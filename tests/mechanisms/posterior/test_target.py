"""The search for a target epsilon, on models of a fit whose answer is known: few fits, never above the target."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mechanisms.errors import MechanismError
from mechanisms.posterior.risks import reweight, risk_weights
from mechanisms.posterior.target import CLOSE, LARGEST_C, Solution, predicted, propose_c, search

RISK = 5 * torch.rand(400, generator=torch.Generator().manual_seed(0)) ** 2


def twice(delta: float) -> float:
    """What is claimed for one record."""
    return 2 * delta


class Fits:
    """A fit in which a record of weight alpha has risk r (1 + more (1 - alpha)): downweighted records surprise more."""

    def __init__(self, more: float) -> None:
        self.more, self.done = more, 0

    def delta(self, alpha: torch.Tensor) -> tuple[float, torch.Tensor]:
        self.done += 1
        risk = RISK * (1 + self.more * (1 - alpha))
        return float((alpha * risk).max()), risk

    def weighted(self, c: float) -> float:
        return self.delta(risk_weights(RISK, c=c, g=0.0))[0]

    def reweighted(self, c: float, k: float) -> float:
        alpha = risk_weights(RISK, c=c, g=0.0)
        return self.delta(reweight(alpha, RISK * (1 + self.more * (1 - alpha)), k=k))[0]

    def run(self, epsilon: float, *, again: bool) -> Solution:
        return search(
            epsilon=epsilon,
            epsilon_at=twice,
            risk=RISK,
            fit_weighted=self.weighted,
            fit_reweighted=self.reweighted if again else None,
        )


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("more", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("epsilon", [1.0, 3.0, 6.0])
def test_meets_the_target_in_few_fits(epsilon: float, more: float, again: bool) -> None:
    """At most the target, within a tenth of it, in at most four fits for each of the two rounds."""
    fits = Fits(more)
    found = fits.run(epsilon, again=again)
    assert CLOSE * epsilon <= 2 * found.sensitivity <= epsilon
    assert fits.done == len(found.trials) <= (8 if again else 4)
    check = Fits(more)
    assert found.sensitivity == (check.reweighted(found.c, found.k) if again and found.k else check.weighted(found.c))


def test_one_fit_a_round_where_risks_stay() -> None:
    """Without inflation the first proposals are right."""
    assert len(Fits(0.0).run(3.0, again=False).trials) == 1
    assert [trial.k is None for trial in Fits(0.0).run(3.0, again=True).trials] == [True, False]


def test_a_flat_answer_to_k_is_learnt() -> None:
    """Delta like k^0.3, as where records of less weight surprise more: five fits; proportional steps took eight."""
    fits: Any = {"fit_weighted": lambda _: 1.97, "fit_reweighted": lambda _, k: 1.97 * k**0.3}
    found = search(epsilon=3.0, epsilon_at=twice, risk=RISK, **fits)
    assert CLOSE * 3 <= 2 * found.sensitivity <= 3
    assert len(found.trials) <= 5


def test_more_than_the_data_have_is_not_chased() -> None:
    """A target above twice the largest risk: full weights, and no further fits."""
    found = Fits(0.0).run(100.0, again=False)
    assert (found.c, len(found.trials)) == (LARGEST_C, 1)


def test_an_unreachable_target_says_how_near_it_came() -> None:
    """A fit that always answers 2: refused, with the smallest epsilon seen, here of a unit of three records."""
    fits: Any = {"fit_weighted": lambda _: 2.0, "fit_reweighted": None}
    with pytest.raises(MechanismError, match=r"not met in \d fits; the smallest epsilon was 12"):
        search(epsilon=1.0, epsilon_at=lambda delta: 6 * delta, risk=RISK, **fits)


def test_proposal_is_the_largest_c_within_the_goal() -> None:
    """Four digits of it; a per mille more exceeds the goal."""
    c = propose_c(RISK, 1.5)
    assert predicted(RISK, c) == pytest.approx(1.5, rel=1e-3)
    assert predicted(RISK, 1.002 * c) > 1.5
